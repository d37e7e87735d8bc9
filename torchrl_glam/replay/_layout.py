"""What becomes of the entries of a collector's batch on their way into a replay buffer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tensordict import NestedKey, unravel_key


def under_next(key: NestedKey) -> NestedKey:
    """The same key under ``"next"``.

    Examples:
        >>> under_next(("agent", "reward"))
        ('next', 'agent', 'reward')
    """
    return unravel_key(("next", key))


def _path(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else unravel_key(key)


class Layout(NamedTuple):
    """What becomes of a batch's entries.

    Args:
        given: All of them.
        gathered: Those that are kept until the episode ends.
        let_out: Those of them that rows hold.
        goals: Entries of the goals named, each with the entries of the rows that say the same of
            the goal pursued.
    """

    given: frozenset[NestedKey]
    gathered: list[NestedKey]
    let_out: list[NestedKey]
    goals: dict[NestedKey, list[NestedKey]]

    @classmethod
    def of(
        cls,
        given: Collection[NestedKey],
        left_out: Sequence[NestedKey],
        goals: Mapping[NestedKey, NestedKey],
    ) -> Layout:
        """Decides it.

        Args:
            given: The batch's entries.
            left_out: Entries and groups of them that rows do not hold.
            goals: Entries that say which goal is pursued, each with the entry of the goals named
                that replaces it, at the root and under ``"next"``. Where that is not given, the
                entry is left out.

        Examples:
            >>> layout = Layout.of(
            ...     ["goal", "goal_id", "action", ("next", "goal_id"), ("next", "hindsight", "id")],
            ...     left_out=[("next", "hindsight")],
            ...     goals={"goal": "text", "goal_id": ("next", "hindsight", "id")},
            ... )
            >>> layout.let_out
            ['goal_id', 'action', ('next', 'goal_id')]
            >>> layout.goals
            {('next', 'hindsight', 'id'): ['goal_id', ('next', 'goal_id')]}
        """
        stale = [key for key, named in goals.items() if named not in given]
        left_out = [*left_out, *goals.values(), *stale, *map(under_next, stale)]
        prefixes = [_path(key) for key in left_out]
        let_out = [
            key
            for key in given
            if not any(_path(key)[: len(prefix)] == prefix for prefix in prefixes)
        ]
        replaced: dict[NestedKey, list[NestedKey]] = {}
        for key, named in goals.items():
            places = [place for place in (key, under_next(key)) if place in let_out]
            if places:
                replaced.setdefault(named, []).extend(places)
        return cls(frozenset(given), [*let_out, *replaced], let_out, replaced)
