"""The part of the text contract that is not in an environment's tensors.

All of it is optional: an environment sets attributes or properties named like the fields of
:class:`EnvDescription`; fields that it does not set keep their defaults. The documentation's page
"The text contract" lists the tensors, which ``TextEnvWrapper`` writes for any game.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from torchrl_glam.text.template import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SLOTS = ("goal", "observation", "action")
"""The parts of a prompt, whose tokens have a length each."""

_ASKED: WeakKeyDictionary[EnvBase, dict[str, Any]] = WeakKeyDictionary()  # batched ones


class Oracle(Protocol):
    """A policy that knows the shortest plans of its environment: a yardstick for agents.

    Attributes:
        in_keys: entries that it reads, which a recipe then keeps.
    """

    in_keys: Sequence[NestedKey]

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action, the first of a shortest plan."""

    def shortest_plans(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Actions that begin a shortest plan, ``bool [*B, A]``, and its steps, ``int64 [*B]``."""


class GameStep(NamedTuple):
    """A step of a game's episode, from which hindsight tells the goals that were reached.

    Attributes:
        observation, info: what the game returned; ``{}`` where it returns no ``info``.
        action: the action that led here, a string; None after a reset.
        reward: the reward of that action.
    """

    observation: Any
    info: Mapping[str, Any]
    action: str | None = None
    reward: float = 0.0


@dataclass(frozen=True)
class EnvDescription:
    """An environment's description of itself beyond its tensors, by attributes of the same names.

    Attributes:
        num_actions: candidate actions of a state, admissible or not (A), from its specs.
        entries: keys of what it writes, nested ones as tuples, from its specs.
        goal_kinds: names of the goal kinds, which ``"goal_kind"`` indexes. Default: ``("goal",)``.
        goal_kind_prior: how often new episodes pursue each kind, as weights of at least 0 that
            need not sum to 1. Default: None, unknown.
        success_key: entry of a step that is positive, or True, on the step that reaches the goal,
            which ends the episode, and on no other. Default: ``"reward"``.
        goal_texts: the texts that ``("hindsight", "goal_id")`` and ``"goal_id"`` index. Default:
            None, goals are written as text.
        goal_kind_ids: index into ``goal_kinds`` of each of ``goal_texts``, integers. Default: None,
            unknown.
        max_steps: steps after which an episode is cut off. Default: None, unknown.
        longest_texts: for ``"goal"``, ``"observation"`` and ``"action"``, where known, texts that
            include the longest one, whichever tokenizer is used; see :func:`token_lengths`.
            Default: None.
        is_subgoal: function of two tensors of goal ids that says which of the first are sub-goals
            of the second. Default: None, unknown.
        make_oracle: makes a policy that knows the shortest plans. Default: None.
    """

    num_actions: int
    entries: frozenset[NestedKey] = field(repr=False)
    goal_kinds: tuple[str, ...] = ("goal",)
    goal_kind_prior: tuple[float, ...] | None = None
    success_key: NestedKey = "reward"
    goal_texts: Sequence[str] | None = field(default=None, repr=False)
    goal_kind_ids: Tensor | Sequence[int] | None = field(default=None, repr=False, compare=False)
    max_steps: int | None = None
    longest_texts: Mapping[str, Sequence[str]] | None = field(default=None, repr=False)
    is_subgoal: Callable[[Tensor, Tensor], Tensor] | None = None
    make_oracle: Callable[[], Oracle] | None = None


def describe_env(env: EnvBase, mask_key: NestedKey = "action_mask") -> EnvDescription:
    """Reads what an environment says of itself, with defaults for the rest.

    Args:
        env: an environment of the text contract, bare or in transforms. For a ``SerialEnv`` or
            ``ParallelEnv``, one instance is made, read and closed, once.
        mask_key: which candidate actions are admissible. Default: ``"action_mask"``.

    Raises:
        KeyError: if the environment's specs have no such entry.
        ValueError: if what it says is not what the contract expects; names the attribute.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> description = describe_env(PlaygroundTextEnv(num_envs=2, num_objects=3, text=False))
        >>> description.num_actions, description.max_steps, description.success_key
        (5, 16, 'reward')
    """
    mask = env.observation_spec.get(mask_key, None)
    if mask is None:
        raise KeyError(
            f"key {mask_key!r} is missing from the environment's observation_spec: the text "
            "contract wants one, bool [*B, A], of the candidate actions that are admissible"
        )
    said = _ask(env)
    _check(said, type(_unwrapped(env)).__name__)
    entries = frozenset(env.observation_spec.keys(True, True))
    return EnvDescription(num_actions=mask.shape[-1], entries=entries, **said)


def token_lengths(
    env: EnvBase, tokenizer: PreTrainedTokenizerBase, template: PromptTemplate | None = None
) -> dict[str, int]:
    """Counts the tokens of an environment's longest texts.

    Args:
        env: an environment of the text contract; ``longest_texts`` and ``goal_texts`` are read.
        tokenizer: tokenizer of the language model.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.

    Returns:
        The arguments ``goal_length``, ``observation_length`` and ``action_length`` of
        :class:`~torchrl_glam.text.TokenizeText`, without those whose texts are unknown.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> token_lengths(PlaygroundTextEnv(num_objects=3), load_tokenizer("tiny"))
        {'goal_length': 6, 'observation_length': 12, 'action_length': 2}
    """
    template = PromptTemplate() if template is None else template
    description = describe_env(env)
    texts = {"goal": description.goal_texts, **(description.longest_texts or {})}
    lengths = {}
    for slot in SLOTS:
        if texts.get(slot):
            whole = [template.lead(slot) + text for text in texts[slot]]
            ids = tokenizer(whole, add_special_tokens=False).input_ids
            lengths[f"{slot}_length"] = max(map(len, ids))
    return lengths


def _unwrapped(env: EnvBase) -> EnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def _ask(env: EnvBase) -> dict[str, Any]:
    """The attributes that an environment, or the first of a batched one, has."""
    env = _unwrapped(env)
    if isinstance(env, BatchedEnvBase):
        if env not in _ASKED:
            # Asking a worker for an attribute that it lacks would end it.
            first = env.create_env_fn[0](**env.create_env_kwargs[0])
            _ASKED[env] = _ask(first)
            first.close(raise_if_closed=False)  # a batched one opens when it is reset
        return _ASKED[env]
    optional = (f.name for f in fields(EnvDescription) if f.default is not MISSING)
    return {name: getattr(env, name) for name in optional if hasattr(env, name)}


def _check(said: Mapping[str, Any], env: str) -> None:
    """Refuses what the contract does not expect, by the attribute's name."""

    def require(holds: bool, name: str, expected: str) -> None:
        if not holds:
            raise ValueError(f"{env}.{name} ({said[name]!r}) must {expected}")

    kinds = said.get("goal_kinds", EnvDescription.goal_kinds)
    words = not isinstance(kinds, str) and all(isinstance(kind, str) for kind in kinds)
    named = words and len(kinds) > 0 and len(set(kinds)) == len(kinds)
    require(named, "goal_kinds", "be names of goal kinds, at least one, no two alike")
    prior = said.get("goal_kind_prior")
    if prior is not None:
        weights = len(prior) == len(kinds) and min(prior) >= 0 and sum(prior) > 0
        expected = f"be {len(kinds)} weights of at least 0, one a kind of {kinds}, not all 0"
        require(weights, "goal_kind_prior", expected)
    if said.get("max_steps") is not None:
        require(said["max_steps"] >= 1, "max_steps", "be at least 1, or None where it is unknown")
    texts = said.get("longest_texts") or {}
    require(not set(texts) - set(SLOTS), "longest_texts", f"have no keys but {SLOTS}")
    lists = not any(isinstance(listed, str) for listed in texts.values())
    require(lists, "longest_texts", "be lists of texts")
    require(not isinstance(said.get("goal_texts"), str), "goal_texts", "be a list of texts")
    ids = said.get("goal_kind_ids")
    if ids is not None:
        ids, goals = torch.as_tensor(ids), len(said.get("goal_texts") or ())  # may be thousands
        fit = len(ids) == goals and bool(((ids >= 0) & (ids < len(kinds))).all())
        require(fit, "goal_kind_ids", "be an index into goal_kinds for each of goal_texts")


def draw_admissible(mask: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws an admissible action of each state, uniformly, ``int64 [*B]``: random play.

    Args:
        mask: which candidate actions are admissible, bool ``[*B, A]``; one at least in each state.
        generator: on the device of the mask. Default: the global one.

    Examples:
        >>> draw_admissible(torch.tensor([[False, True], [True, False]]))
        tensor([1, 0])
    """
    rows = mask.reshape(-1, mask.shape[-1]).float()
    return torch.multinomial(rows, 1, generator=generator).view(mask.shape[:-1])
