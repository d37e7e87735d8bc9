"""From a configuration to the environments of a run: for training, evaluation and the probe."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase, SelectTransform, SerialEnv, TransformedEnv

from torchrl_glam.goals import ImaginedGoals
from torchrl_glam.runs.config import LENGTHS, RecipeConfig
from torchrl_glam.runs.probe import PlanProbe
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.text import PromptTemplate, TokenizeText, describe_env, token_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE_EPISODES = 64
"""Episodes of the probe, or as many as an evaluation has, if that is fewer."""

CPU = torch.device("cpu")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}  # of arguments
_READ = (  # by every recipe
    *("goal_tokens", "observation_tokens", "action_tokens", "action_mask", "goal_kind"),
    *(("hindsight", "goal_tokens"), ("hindsight", "kind")),
)

OWN_ENV = RecipeConfig.env_class
_GAMES = ("babyai", "scienceworld", "textworld", "textworld_express")
OWN_ENVS = (OWN_ENV, *(f"torchrl_glam.envs.games.{game}:make_{game}" for game in _GAMES))
"""What a folder may name by itself: to make any other environment runs code that it chose.

ALFWorld and Jericho are not among them: a folder might name game files of its own, which are code,
or which an interpreter in C reads.
"""


def refuse_named_env(env_class: str, source: str, key: str) -> None:
    """Refuses an environment that only a card or a run's folder names: it may come from anywhere.

    Raises:
        ValueError: if it is not one of this package's, :data:`OWN_ENVS`; it tells the ``source``,
            and the ``key`` that a user who trusts it would name it by.
    """
    if env_class not in OWN_ENVS:
        raise ValueError(
            f"env_class ({env_class}) is what {source} names, and to make it runs code: where you "
            f"trust it, name it yourself with {key}={env_class}"
        )


def require_kinds(settings: Mapping[str, Any], whose: str) -> None:
    """Refuses, by ValueError, keys of an environment whose values are of another kind."""
    kinds = {"env": dict, "eval_splits": dict, "env_class": str, "long_texts": str}
    for key, value in settings.items():
        splits = [*value.values()] if isinstance(value, dict) and key == "eval_splits" else []
        if not all(isinstance(one, kinds.get(key, (int, type(None)))) for one in [value, *splits]):
            raise ValueError(f"{key} ({value!r}) of {whose} must be as recipes take it")


def import_env(path: str) -> Callable[..., EnvBase]:
    """The class or function that a configuration names, from an installed module or a file here.

    Args:
        path: ``module:Name``; the module may lie in the current folder.

    Raises:
        ValueError: if it is no such path, or leads to nothing that makes environments.
        ImportError: if there is no such module, or what it imports is missing.

    Examples:
        >>> import_env("torchrl_glam.envs:PlayTextEnv")
        Traceback (most recent call last):
            ...
        ValueError: env (torchrl_glam.envs:PlayTextEnv): the module torchrl_glam.envs has no
        'PlayTextEnv'; the nearest is 'PlaygroundTextEnv'
    """
    module_name, _, name = path.partition(":")
    if not (module_name and name) or path.startswith("."):
        raise ValueError(f"env_class ({path}) must be module:Name of what makes the environment")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a script has its own folder there instead
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        says = f"there is no module {error.name!r}, neither installed nor in {os.getcwd()}"
        if not f"{module_name}.".startswith(f"{error.name}."):  # what the module imports
            says = f"it needs {error.name!r}, which is not installed"
            if isinstance(error.__cause__, ModuleNotFoundError):  # it names the extra to install
                says = str(error)
        raise ImportError(f"env ({path}): {says}") from error
    make = getattr(module, name, None)
    if make is None:
        near = "".join(f"; the nearest is {n!r}" for n in get_close_matches(name, dir(module), 1))
        raise ValueError(f"env ({path}): the module {module_name} has no {name!r}{near}")
    if not callable(make) or (isinstance(make, type) and not issubclass(make, EnvBase)):
        raise ValueError(
            f"env ({path}) must be a torchrl.envs.EnvBase, or a function that returns one"
        )
    return make


def make_bare_env(
    config: RecipeConfig,
    num_envs: int,
    seed: int,
    split: str = "train",
    goal_sampler: Callable[[torch.Generator, int], Tensor] | None = None,
) -> EnvBase:
    """The environment that a configuration names, as it writes text, in main memory.

    What takes an argument ``num_envs`` is made once. Anything else makes one instance at a time,
    and a ``SerialEnv`` plays them side by side.

    Args:
        config: the run's.
        num_envs, seed: of the environment.
        split: a key of the configuration's ``eval_splits``. Default: ``"train"``.
        goal_sampler: draws the goals of all instances. Default: None, the environment draws them.

    Raises:
        ValueError: if there is no such split, if the configuration gives arguments that the
            environment does not take, or if it is of another batch size.
    """
    if split not in config.eval_splits:
        raise ValueError(f"split ({split}) must be one of {list(config.eval_splits)}")
    make = import_env(config.env_class)
    signature = inspect.signature(partial(make.__init__, None) if isinstance(make, type) else make)
    taken, given = signature.parameters, {**config.env, **config.eval_splits[split]}
    own = {"num_envs": num_envs, "seed": seed, "device": CPU}
    for name, value in given.items():
        if name in (*own, "goal_sampler"):
            raise ValueError(f"env.{name} cannot be given: recipes choose it, see --help")
        if name == "memory" and name not in taken:
            raise ValueError(f"env.memory cannot be given: give memory={value} instead")
        if split == "train" and config.env.get(name, value) != value:
            raise ValueError(
                f"env.{name} ({config.env[name]}) is {value} by eval_splits, which training plays "
                f"too: give eval_splits.train.{name}"
            )
        kind = type(taken[name].default) if name in taken else None
        if kind in _KINDS and type(value) not in (kind, int if kind is float else kind):
            raise ValueError(f"env.{name} ({value}) must be {_KINDS[kind]}")
    if goal_sampler is not None:
        given["goal_sampler"] = goal_sampler
    whole = "num_envs" in taken
    own = {name: value for name, value in own.items() if whole and name in taken}
    try:
        signature.bind(**given, **own)
    except TypeError as error:
        raise ValueError(f"env ({config.env_class}): {error}; it takes {[*taken]}") from None
    env = make(**given, **own) if whole else SerialEnv(num_envs, partial(make, **given))
    if not isinstance(env, EnvBase):
        raise ValueError(
            f"env ({config.env_class}) made a {type(env).__name__}, expected a torchrl.envs.EnvBase"
        )
    if env.batch_size != (num_envs,):
        raise ValueError(
            f"env ({config.env_class}) made environments of batch size "
            f"{list(env.batch_size)}, expected [{num_envs}]: take an argument num_envs, or make "
            "single ones, of batch size []"
        )
    if not {"num_envs", "seed"} <= taken.keys():
        env.set_seed(seed)
    return env if env.device == CPU else env.to(CPU)


def make_env(
    config: RecipeConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_envs: int | None = None,
    split: str = "train",
    seed: int | None = None,
    keep: Sequence[NestedKey] = (),
    goal_sampler: Callable[[torch.Generator, int], Tensor] | None = None,
    imagined: ImaginedGoals | None = None,
) -> TransformedEnv:
    """The configuration's environment as collectors want it: token tensors, and no text.

    Tokens kept for a text are as many as the configuration says, else as the environment's longest
    text has, else the defaults of :class:`~torchrl_glam.text.TokenizeText`.

    Args:
        config, tokenizer: of the run.
        num_envs, seed: of the environment. Defaults: the configuration's.
        split, goal_sampler: as of :func:`make_bare_env`.
        keep: entries to keep besides those that every recipe reads. Default: none.
        imagined: draws goals in its place, imagined ones too. Default: None.
    """
    num_envs = config.num_envs if num_envs is None else num_envs
    seed = config.seed if seed is None else seed
    template = config.template(tokenizer)
    with seeded(seed):  # how much environments draw here depends on how many there are
        draw = goal_sampler if imagined is None else imagined.draw
        env = make_bare_env(config, num_envs, seed, split, draw)
        texts = token_texts(config, env, tokenizer, template)
    env = TransformedEnv(env, imagined)
    env.append_transform(texts)
    game = describe_env(env)
    wanted = {*_READ, game.success_key, *keep}
    return env.append_transform(SelectTransform(*(wanted & game.entries)))


def token_texts(
    config: RecipeConfig,
    env: EnvBase,
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate,
    *,
    refuse: bool = True,
) -> TokenizeText:
    """The transform that writes tokens, with the configuration's lengths, memory and long texts.

    With ``refuse``, the default, longer texts are refused, unless ``long_texts`` has them cut;
    without it they are read whole instead.
    """
    lengths, end = token_lengths(env, tokenizer, template), config.long_texts
    for name in LENGTHS:
        if (given := getattr(config, name)) is not None:
            whole = 0 if refuse or end != "error" else lengths.get(name, 0)
            lengths[name] = max(given, whole)
    end = None if end == "error" else end
    return TokenizeText(tokenizer, template=template, keep=end, memory=config.memory, **lengths)


def of_evaluations(config: RecipeConfig) -> RecipeConfig:
    """The configuration of evaluations: of Playground-Text, without impossible goals.

    An entry ``impossible`` of ``eval_splits`` has them evaluated too.
    """
    if config.env_class != OWN_ENV:
        return config
    env = {name: value for name, value in config.env.items() if name != "impossible"}
    return replace(config, env=env)


def make_eval_envs(
    config: RecipeConfig, tokenizer: PreTrainedTokenizerBase
) -> dict[str, TransformedEnv]:
    """:func:`make_env` for evaluations, by split of goals: an instance for each episode."""
    config = of_evaluations(config)
    return {
        split: make_env(config, tokenizer, num_envs=config.eval_episodes, split=split)
        for split in config.eval_splits
    }


def make_reference_env(config: RecipeConfig) -> EnvBase:
    """The environment of evaluations for policies that read no text, as random play and the oracle.

    Playground-Text plays thousands of episodes side by side; other games are slow and large.
    """
    config = of_evaluations(config)
    if config.env_class != OWN_ENV:
        return make_bare_env(config, 100, config.seed)
    return make_bare_env(replace(config, env={**config.env, "text": False}), 2_000, config.seed)


def make_probe(
    config: RecipeConfig, tokenizer: PreTrainedTokenizerBase, like: EnvBase
) -> PlanProbe | None:
    """Instruments for policy and critic; None where ``like`` has no oracle or no time limit."""
    config, game = of_evaluations(config), describe_env(like)
    if game.make_oracle is None or game.max_steps is None:
        return None
    oracle = game.make_oracle()
    episodes = min(PROBE_EPISODES, config.eval_episodes)
    env = make_env(config, tokenizer, num_envs=episodes, keep=oracle.in_keys)
    return PlanProbe(env, oracle, game.max_steps, gamma=config.gamma)
