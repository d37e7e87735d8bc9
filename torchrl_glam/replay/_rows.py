"""What rows of a replay buffer hold of a collector's batch, and the ends of relabelled ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key


def under_next(key: NestedKey) -> NestedKey:
    """The same key under ``"next"``."""
    return unravel_key(("next", key))


def _path(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else unravel_key(key)


class Layout(NamedTuple):
    """What becomes of a batch's entries.

    Args:
        given: all of them.
        gathered: those that are kept until the episode ends.
        emitted: those of them that rows hold.
        goals: entries of the goals named, each with the entries of the rows that say the same of
            the goal pursued.
    """

    given: frozenset[NestedKey]
    gathered: list[NestedKey]
    emitted: list[NestedKey]
    goals: dict[NestedKey, list[NestedKey]]

    @classmethod
    def of(
        cls,
        given: Collection[NestedKey],
        left_out: Sequence[NestedKey],
        goals: Mapping[NestedKey, NestedKey],
    ) -> Layout:
        """Decides it.

        ``left_out`` are entries, and groups of them, that rows do not hold. ``goals`` are entries
        that say which goal is pursued, at the root or under ``"next"``, each with the entry of the
        goals named that replaces it; where that is not given, the entry is left out.

        Examples:
            >>> layout = Layout.of(
            ...     ["goal", "goal_id", "action", ("next", "goal_id"), ("next", "hindsight", "id")],
            ...     left_out=[("next", "hindsight")],
            ...     goals={"goal": "text", "goal_id": ("next", "hindsight", "id")},
            ... )
            >>> layout.emitted
            ['goal_id', 'action', ('next', 'goal_id')]
            >>> layout.goals
            {('next', 'hindsight', 'id'): ['goal_id', ('next', 'goal_id')]}
        """
        stale = [key for key, named in goals.items() if named not in given]
        left_out = [*left_out, *goals.values(), *stale, *map(under_next, stale)]
        prefixes = [_path(key) for key in left_out]
        emitted = [
            key
            for key in given
            if not any(_path(key)[: len(prefix)] == prefix for prefix in prefixes)
        ]
        replaced: dict[NestedKey, list[NestedKey]] = {}
        for key, named in goals.items():
            places = [place for place in (key, under_next(key)) if place in emitted]
            if places:
                replaced.setdefault(named, []).extend(places)
        return cls(frozenset(given), [*emitted, *replaced], emitted, replaced)


class EndKeys(NamedTuple):
    """Entries that say how a step ends, [M, 1]; ``truncated`` need not exist."""

    reward: NestedKey
    done: NestedKey
    terminated: NestedKey
    truncated: NestedKey


def write_ends(
    rows: TensorDictBase, begin: int, last: torch.Tensor, scale: tuple[float, float], keys: EndKeys
) -> None:
    """Writes rewards and ends of the steps that were repeated under other goals, in place.

    These are the rows from ``begin`` on; ``last``, int64 [C], are those that reach their goals.
    """
    reward = rows.get(keys.reward)
    reward[begin:] = scale[0]
    reward[last] = scale[1]
    for key, value in ((keys.done, True), (keys.terminated, True), (keys.truncated, False)):
        entry = rows.get(key, None)
        if entry is not None:
            entry[begin:] = False
            entry[last] = value
