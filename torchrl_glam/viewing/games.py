"""The agents that a configuration names, and the environments that they were trained in."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchrl.envs import EnvBase, TransformedEnv

from torchrl_glam.envs.game import GoalFunction
from torchrl_glam.models import Agent, AgentCard, load_agent, zero_shot_agent
from torchrl_glam.runs.config import ENVIRONMENT, LENGTHS, RecipeConfig
from torchrl_glam.runs.config.viewing import ViewConfig
from torchrl_glam.runs.device import choose_device
from torchrl_glam.runs.environments import (
    OWN_ENV,
    make_bare_env,
    of_evaluations,
    refuse_named_env,
    require_kinds,
    token_texts,
)


def open_agent(config: ViewConfig, folder: str | None) -> Agent:
    """Loads the agent of a folder, or the configuration's language model without training.

    Args:
        config: gives ``language_model``, if there is no folder, device and size of passes.
        folder: as :func:`~torchrl_glam.models.load_agent` takes it. None: use the model.

    Examples:
        >>> open_agent(ViewConfig(language_model="tiny"), None).tokenizer.eos_token
        '</s>'
    """
    device = choose_device(config.device)
    options = {"device": device, "max_tokens_per_pass": config.max_tokens_per_pass}
    if folder is not None:
        return load_agent(folder, **options)
    return zero_shot_agent(config.language_model, config.chat_template, **options)


def name_apart(folders: Sequence[str]) -> list[str]:
    """Names folders by the last part of their paths in which all of them differ.

    Args:
        folders: their paths.

    Examples:
        >>> name_apart(["runs/seed0/model", "runs/seed1/model"])
        ['seed0', 'seed1']
    """
    parts = (reversed(Path(folder).parts) for folder in folders)
    columns = zip(*parts, strict=False)
    apart = (list(column) for column in columns if len(set(column)) == len(folders))
    return next(apart, [str(folder) for folder in folders])


def choose_game(config: ViewConfig, card: AgentCard | None) -> dict[str, Any]:
    """Chooses the environment's settings: the agent's own, unless the configuration overrides them.

    Args:
        config: its ``env`` overrides entries of the agent's, so do its ``eval_splits``;
            if its ``env_class`` differs from the agent's, of the agent's settings only ``memory``
            and ``long_texts`` count. Impossible goals are played only where it asks for them.
        card: the agent card. None, or a card without an environment: Playground-Text.

    Returns:
        ``env_class``, ``env``, ``eval_splits``, token lengths, ``memory`` and ``long_texts``, as in
        recipes.

    Raises:
        ValueError: if the agent card names an environment of another package and the configuration
            does not: a card may come from anywhere, and making an environment runs code.

    Examples:
        >>> card = AgentCard(environment={"env": {"num_objects": 3, "max_steps": 10}})
        >>> choose_game(ViewConfig(env={"num_objects": 6}), card)["env"]
        {'num_objects': 6, 'max_steps': 10}
    """
    own = dict(card.environment) if card is not None else {}
    if unknown := sorted(own.keys() - set(ENVIRONMENT)):
        raise ValueError(f"environment of the agent's card has the unknown keys {unknown}")
    require_kinds(own, "the agent's card")
    named = own.get("env_class", OWN_ENV)
    if config.env_class is None:
        refuse_named_env(named, "the agent's card", "env")
    if config.env_class not in (None, named):
        own = {key: own[key] for key in ("memory", "long_texts") if key in own}
    default = RecipeConfig()
    env = own.get("env", {} if config.env_class else default.env)
    env = of_evaluations(replace(default, env_class=named, env=env)).env
    given = config.pick(*LENGTHS, "memory", "long_texts")
    texts = {key: value for key, value in given.items() if value is not None}
    own |= texts | {"env_class": config.env_class or named, "env": {**env, **config.env}}
    own["eval_splits"] = own.get("eval_splits", {}) | config.eval_splits or default.eval_splits
    return own


def make_game(
    settings: Mapping[str, Any],
    *,
    num_envs: int,
    split: str = "train",
    seed: int = 0,
    goal_sampler: GoalFunction | None = None,
    **arguments: Any,
) -> EnvBase:
    """Makes the environment that settings describe, with its text.

    Args:
        settings: as :func:`choose_game` gives them.
        num_envs, seed: of the environment. Default of the seed: 0.
        split: a key of the settings' ``eval_splits``. Default: ``"train"``.
        goal_sampler: draws the goals of all instances. Default: None, the environment draws them.
        **arguments: arguments of the environment that override the settings.

    Raises:
        ValueError: as :func:`~torchrl_glam.runs.environments.make_bare_env` raises it.

    Examples:
        >>> env = make_game(choose_game(ViewConfig(), None), num_envs=2, num_objects=3)
        >>> env.batch_size
        torch.Size([2])
    """
    config = RecipeConfig(**settings)
    config.env = {**config.env, **arguments}
    return make_bare_env(config, num_envs, seed, split, goal_sampler)


def tokenize(env: EnvBase, agent: Agent, settings: Mapping[str, Any] | None = None) -> EnvBase:
    """Adds the token tensors that an agent reads to a text environment.

    Args:
        env: text environment.
        agent: gives tokenizer and template.
        settings: numbers of tokens to keep, and what of longer texts, as :func:`choose_game` gives
            them; texts that training would refuse as too long are read whole. Default: those of the
            environment's longest texts, and no memory.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = tokenize(PlaygroundTextEnv(), zero_shot_agent("tiny"))
        >>> "observation_tokens" in env.reset()
        True
    """
    config = RecipeConfig(**(settings or {}))
    texts = token_texts(config, env, agent.tokenizer, agent.template, refuse=False)
    return TransformedEnv(env, texts)
