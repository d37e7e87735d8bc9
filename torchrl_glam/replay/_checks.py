"""What the replay transforms refuse: settings out of range, and data that is not as it must be.

Each raises ValueError, or KeyError for a missing entry, that names the argument or entry, its value
and what was expected.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping

import torch
from tensordict import NestedKey, TensorDictBase, is_leaf_nontensor

from torchrl_glam.replay._rows import REWARD_SLACK
from torchrl_glam.replay.strategies import STRATEGIES


def check_settings(
    relabel: str,
    strategy: str | Callable,
    goals_per_episode: int | None,
    goals_per_transition: int | None,
    naming: str,
    scale: tuple[float, float],
) -> None:
    """Refuses unknown names, numbers out of range, two limits at once, and false failures."""
    if relabel not in ("all", "failed", "none"):
        raise ValueError(f'relabel ({relabel!r}) must be "all", "failed" or "none".')
    if strategy not in STRATEGIES and not callable(strategy):
        raise ValueError(
            f"strategy ({strategy!r}) must be one of {list(STRATEGIES)}, or a function like them."
        )
    if naming not in ("first", "every"):
        raise ValueError(f'naming ({naming!r}) must be "first" or "every".')
    if strategy == "episode" and naming == "first" and relabel != "none":
        raise ValueError(
            'strategy ("episode") takes a goal that is not named again for not reached again, '
            'which is false where a goal is named once an episode (naming="first", as in '
            'PlaygroundTextEnv): use "future" or "final", or an environment that names a goal '
            'after every step that reaches it, and naming="every".'
        )
    for name, value in (
        ("goals_per_episode", goals_per_episode),
        ("goals_per_transition", goals_per_transition),
    ):
        if value is not None and value < 1:
            raise ValueError(
                f'{name} ({value}) must be at least 1; relabel="none" goes without hindsight.'
            )
    if goals_per_episode is not None and goals_per_transition is not None:
        raise ValueError(
            f"goals_per_episode ({goals_per_episode}) and goals_per_transition "
            f"({goals_per_transition}) must not both be given: choose one limit."
        )
    if len(scale) != 2 or not -math.inf < scale[0] < scale[1] < math.inf:
        raise ValueError(
            f"reward_scale ({scale}) must be two finite numbers: the reward of a step that does "
            "not reach its goal, and a larger one of a step that does."
        )


def check_entries(batch: TensorDictBase, writers: Mapping[NestedKey, str]) -> None:
    """Refuses a batch without an entry; ``writers`` says who should have written each."""
    for key, writer in writers.items():
        if batch.get(key, None) is None:
            raise KeyError(f"The data has no entry {key!r}: {writer} should write it.")


def check_same_goal(goals: torch.Tensor, first: torch.Tensor, goal_key: NestedKey) -> None:
    """Refuses episodes in which the goal pursued, [R, ...], changes; ``first`` [E] begins each."""
    changes = rows_differ(goals[1:], goals[:-1])
    changes[first[1:] - 1] = False
    if changes.any():
        step = int(changes.nonzero()[0]) + 1
        raise ValueError(
            f"{goal_key!r} changes from {goals[step - 1].tolist()} to {goals[step].tolist()} "
            f"between two steps of one trajectory without an end, so these are of two episodes. "
            "Give every trajectory a number of its own in trajectory_key, as TorchRL's collectors "
            "do (several collectors count alike), or clear() the transform where environments are "
            "reset in mid-episode."
        )


def rows_differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Which rows of two entries [k, ...] are not equal, bool [k]."""
    unlike = one != other
    return unlike.flatten(1).any(1) if unlike.ndim > 1 else unlike


def check_named(
    pursued: torch.Tensor,
    named: torch.Tensor,
    kinds: torch.Tensor,
    key: NestedKey,
    named_key: NestedKey,
) -> None:
    """Refuses what is named if it cannot stand where it is to replace what is pursued.

    Args:
        pursued: entry of the goal pursued, [K, ...].
        named: the same of the goals named, [K, H, ...].
        kinds: kinds of the goals named, [K, H]; slots below 0 do not count.
        key, named_key: their names.
    """
    if named.shape[2:] != pursued.shape[1:]:
        raise ValueError(
            f"{named_key!r} is {list(named.shape[2:])} a goal and {key!r} is "
            f"{list(pursued.shape[1:])}: both must have one shape; pad tokens to one width."
        )
    if named.dtype == pursued.dtype:
        return
    values = named[kinds >= 0]
    cast = values.to(pursued.dtype)
    wrong = (cast.to(named.dtype) != values) | (cast != values)
    if wrong.any():
        raise ValueError(
            f"{named_key!r} ({named.dtype}) holds {values[wrong][0].item()}, which {key!r} "
            f"({pursued.dtype}) cannot hold: write both with one type."
        )


def check_rewards(reward: torch.Tensor, scale: tuple[float, float]) -> None:
    """Refuses rewards of the environment that are not of the scale of relabelled steps.

    ``scale`` is the reward of a step that does not reach its goal, and of one that does.
    """
    unreached, reached = scale
    exact = reward if reward.is_floating_point() else reward.double()
    low, high = (float(x) for x in exact.aminmax()) if reward.numel() else scale
    slack = REWARD_SLACK * (reached - unreached)
    if not unreached - slack <= low <= high <= reached + slack:
        raise ValueError(
            f"The environment's rewards are from {low:g} to {high:g}, and reward_scale ({scale}) "
            "says that a step gets the first number, or the second where it reaches its goal, or "
            "one between: relabelled steps would be rewarded on another scale. Rescale the "
            "environment's rewards (TextEnvWrapper takes reward=...), or give HindsightTransform "
            "their reward_scale."
        )
    if not reward.is_floating_point() and scale != tuple(map(int, scale)):
        raise ValueError(f"reward_scale ({scale}) must be whole numbers, as rewards are.")


def check_capacity(rows: int, capacity: int | None) -> None:
    """Refuses more rows in one call than the replay buffer holds; None for no limit."""
    if capacity is not None and rows > capacity:
        raise ValueError(
            f"The episodes that ended give {rows} rows with their hindsight, more than the "
            f"replay buffer's capacity ({capacity}): part of them would be overwritten at "
            "once. Enlarge the buffer, use fewer environments, or relabel fewer episodes."
        )


def check_same_entries(
    given: Mapping[NestedKey, torch.Tensor],
    held: Mapping[NestedKey, tuple[torch.dtype, torch.Size]],
) -> None:
    """Refuses rows or steps that are not like the first ones, in entries, types or shapes."""
    if held.keys() != given.keys():
        new, missing = given.keys() - held.keys(), held.keys() - given.keys()
        raise KeyError(
            f"The data's entries changed between calls: {sorted(map(str, new))} are new and "
            f"{sorted(map(str, missing))} are missing. Every call must bring the same entries."
        )
    for key, value in given.items():
        dtype, shape = held[key]
        if (value.dtype, value.shape[1:]) != (dtype, shape):
            raise ValueError(
                f"Entry {key!r} is {value.dtype} of shape {list(value.shape[1:])} a row, and was "
                f"{dtype} of shape {list(shape)} in the first call: entries must keep their layout."
            )


def warn_of_strings(batch: TensorDictBase) -> None:
    """Says which entries of a batch cannot be stored."""
    tensors = set(batch.keys(True, True))
    strings = [k for k in batch.keys(True, True, is_leaf=is_leaf_nontensor) if k not in tensors]
    if strings:
        warnings.warn(
            f"The entries {strings} hold no tensors and are left out of the replay buffer: encode "
            "what is to be stored as numbers (text as bytes), or drop them with ExcludeTransform.",
            stacklevel=7,
        )
