"""What the replay transforms refuse: settings out of range, and data that is not as it must be."""

from __future__ import annotations

from collections.abc import Mapping

from tensordict import NestedKey, TensorDictBase


def check_strategy(
    relabel: str,
    strategy: str,
    goals_per_episode: int | None,
    goals_per_transition: int | None,
) -> None:
    """Refuses unknown names, numbers of goals below 1, and two limits at once.

    Raises:
        ValueError: naming the argument, its value and what was expected.
    """
    if relabel not in ("all", "failed", "none"):
        raise ValueError(f'relabel ({relabel!r}) must be "all", "failed" or "none".')
    if strategy not in ("future", "final", "episode"):
        raise ValueError(f'strategy ({strategy!r}) must be "future", "final" or "episode".')
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


def check_steps(batch: TensorDictBase, writers: Mapping[NestedKey, str]) -> None:
    """Refuses a batch of steps without two dimensions, or without an entry.

    Args:
        batch: What a collector gave.
        writers: The entries it must have, each with who should have written it.

    Raises:
        ValueError: on another number of dimensions.
        KeyError: on a missing entry.
    """
    if batch.ndim != 2:
        raise ValueError(
            f"The data's batch size ({list(batch.shape)}) must be [num_envs, num_steps], as "
            "collectors give it; add a dimension of size 1 where one is missing, and use "
            "extend rather than add."
        )
    for key, writer in writers.items():
        if batch.get(key, None) is None:
            raise KeyError(f"The data has no entry {key!r}: {writer} should write it.")


def check_widths(batch: TensorDictBase, goal_key: NestedKey, named_key: NestedKey) -> None:
    """Refuses goals named that are not as wide as the goal pursued, which they are to replace.

    Raises:
        ValueError: if the widths differ.
    """
    width, named_width = batch.get(goal_key).shape[-1], batch.get(named_key).shape[-1]
    if width != named_width:
        raise ValueError(
            f"{named_key!r} is {named_width} tokens wide and {goal_key!r} is {width}: both must be "
            "padded to one width."
        )


def check_capacity(rows: int, capacity: int | None) -> None:
    """Refuses more rows in one call than the replay buffer holds.

    Raises:
        ValueError: if ``rows`` is above ``capacity``; None for no limit.
    """
    if capacity is not None and rows > capacity:
        raise ValueError(
            f"The episodes that ended give {rows} rows with their hindsight, more than the "
            f"replay buffer's capacity ({capacity}): part of them would be overwritten at "
            "once. Enlarge the buffer, use fewer environments, or relabel fewer episodes."
        )
