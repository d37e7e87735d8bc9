"""The entries of a collector's batch that rows of a replay buffer hold."""

from collections.abc import Mapping, Sequence

from tensordict import NestedKey, TensorDictBase, unravel_key


def under_next(key: NestedKey) -> NestedKey:
    """The same key under ``"next"``."""
    return unravel_key(("next", key))


def entries_of_rows(
    batch: TensorDictBase, left_out: Sequence[NestedKey], goals: Mapping[NestedKey, NestedKey]
) -> tuple[list[NestedKey], dict[NestedKey, list[NestedKey]]]:
    """The entries of a batch that rows hold; and the goals named, each with those it replaces.

    ``left_out`` are entries, and groups of them, that rows do not hold. ``goals`` are entries that
    say which goal is pursued, at the root or under ``"next"``, each with the entry of the goals
    named that replaces it; where that is not given, the entry is left out.
    """
    given = frozenset(batch.keys(True, True))
    stale = [key for key, named in goals.items() if named not in given]
    left_out = [*left_out, *goals.values(), *stale, *map(under_next, stale)]
    emitted = list(batch.exclude(*left_out).keys(True, True))
    replaced: dict[NestedKey, list[NestedKey]] = {}
    for key, named in goals.items():
        places = [place for place in (key, under_next(key)) if place in emitted]
        if places:
            replaced.setdefault(named, []).extend(places)
    return emitted, replaced
