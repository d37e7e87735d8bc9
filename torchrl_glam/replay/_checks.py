"""Checks of the replay transforms: settings out of range, and data of another form."""

import warnings
from collections.abc import Mapping

import torch
from tensordict import NestedKey, TensorDictBase, is_leaf_nontensor
from torchrl.envs.transforms import Transform

_SLACK = 1e-4  # of the distance between the two rewards of a scale


def check_in_buffer(transform: Transform) -> None:
    """Refuses a transform of whole episodes that stands in an environment."""
    if transform.parent is not None:
        raise ValueError(
            f"{type(transform).__name__} reads whole episodes, so it works in replay buffers only: "
            "pass it to ReplayBuffer(transform=...) instead of an environment."
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
            "between two steps of one trajectory without an end: number trajectories apart in "
            "trajectory_key (several collectors count alike), or clear() the transform where "
            "environments are reset in mid-episode."
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
    """Refuses goals named, [K, H, ...], that cannot replace those pursued, [K, ...].

    Slots whose kind, [K, H], is below 0 do not count.
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
    """Refuses rewards of the environment that are not on the scale of relabelled steps."""
    unreached, reached = scale
    exact = reward if reward.is_floating_point() else reward.double()
    low, high = (float(x) for x in exact.aminmax()) if reward.numel() else scale
    slack = _SLACK * (reached - unreached)
    if not unreached - slack <= low <= high <= reached + slack:
        raise ValueError(
            f"The environment's rewards are from {low:g} to {high:g}, outside of reward_scale "
            f"({scale}), by which relabelled steps are rewarded: rescale them (TextEnvWrapper: "
            "reward=...), or give HindsightTransform their reward_scale."
        )
    if not reward.is_floating_point() and scale != tuple(map(int, scale)):
        raise ValueError(f"reward_scale ({scale}) must be whole numbers, as rewards are.")


def check_capacity(rows: int, capacity: int | None) -> None:
    """Refuses more rows in one call than the replay buffer holds; None for no limit."""
    if capacity is not None and rows > capacity:
        raise ValueError(
            f"The episodes that ended give {rows} rows with their hindsight, more than the replay "
            f"buffer's capacity ({capacity}): enlarge it, or use fewer environments."
        )


def check_same_entries(
    given: Mapping[NestedKey, torch.Tensor], held: Mapping[NestedKey, torch.Tensor]
) -> None:
    """Refuses steps that are not like those before, in entries, types or shapes."""
    if held.keys() != given.keys():
        new, missing = given.keys() - held.keys(), held.keys() - given.keys()
        raise KeyError(
            f"The data's entries changed between calls: {sorted(map(str, new))} are new and "
            f"{sorted(map(str, missing))} are missing."
        )
    for key, value in given.items():
        dtype, shape = held[key].dtype, held[key].shape[1:]
        if (value.dtype, value.shape[1:]) != (dtype, shape):
            raise ValueError(
                f"Entry {key!r} is {value.dtype} of shape {list(value.shape[1:])} a row, and was "
                f"{dtype} of shape {list(shape)} in the first call."
            )


def warn_of_strings(batch: TensorDictBase) -> None:
    """Says which entries of a batch cannot be stored."""
    tensors = set(batch.keys(True, True))
    strings = [k for k in batch.keys(True, True, is_leaf=is_leaf_nontensor) if k not in tensors]
    if strings:
        warnings.warn(
            f"The entries {strings} hold no tensors and are left out of the replay buffer: encode "
            "them as numbers (text as bytes), or drop them with ExcludeTransform.",
            stacklevel=7,
        )
