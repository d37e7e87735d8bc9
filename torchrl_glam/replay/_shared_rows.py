"""A table of different rows that others point at, each kept once and as long as it is needed.

Notation: k pointers, U different rows among them, S slots of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tensordict import NestedKey, unravel_key

from torchrl_glam.replay._packing import RowLayout

_SMALLEST_TABLE = 256
_GROWTH = 1.25  # the last enlargement decides how much memory lies idle


class SharedRows:
    """Rows of bytes with a count of who points at them.

    Rows that are equal are stored once if they come in the same call: a replay buffer's copies of
    a state do, as an episode and its relabelled copies are let out together. A row whose last
    pointer is released is overwritten by a later one. Calls cost O(k), amortised over the table's
    growth.

    Args:
        layout: Layout of the rows, at first.

    Examples:
        >>> states = {"observation": torch.tensor([[4, 4], [5, 5], [4, 4]])}
        >>> table = SharedRows(RowLayout.of(states))
        >>> pointers = table.acquire(states)
        >>> len(table), table.read(pointers)["observation"].tolist()
        (2, [[4, 4], [5, 5], [4, 4]])
        >>> table.release(pointers[:2])
        >>> len(table)
        1
    """

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self.rows = torch.empty(0, layout.width, dtype=torch.uint8)  # [S, W]
        self._count = torch.empty(0, dtype=torch.int32)  # pointers at each slot, [S]
        self._stack = torch.empty(0, dtype=torch.int32)  # [S], slots that nothing points at
        self._idle = 0  # how many of the stack's entries these are

    def __len__(self) -> int:
        return self.rows.shape[0] - self._idle

    @property
    def nbytes(self) -> int:
        """Bytes allocated, idle ones included."""
        return self.rows.nbytes + self._count.nbytes + self._stack.nbytes

    def acquire(self, rows: Mapping[NestedKey, torch.Tensor]) -> torch.Tensor:
        """Stores rows and points at them.

        Args:
            rows: Entries, {key: [k, ...]}, of the layout's shapes and types.

        Returns:
            The slot of each, int64 [k].
        """
        layout = self.layout.widened(rows)
        self.rows, self.layout = layout.take_over(self.rows, self.layout), layout
        packed = layout.pack(rows)
        first, which = different_rows(packed)
        slots = self._take(first.shape[0])
        self.rows[slots] = packed[first]
        pointers = slots[which]
        self._count.index_add_(0, pointers, torch.ones_like(pointers, dtype=torch.int32))
        return pointers

    def release(self, pointers: torch.Tensor) -> None:
        """Takes pointers back, int64 [k], as :meth:`acquire` gave them, each once."""
        self._count.index_add_(0, pointers, torch.full_like(pointers, -1, dtype=torch.int32))
        freed = pointers[self._count[pointers] == 0].unique()
        self._push(freed)

    def read(
        self, pointers: torch.Tensor, only: NestedKey | None = None
    ) -> dict[NestedKey, torch.Tensor]:
        """Entries {key: [k, ...]} of the rows pointed at, int64 [k]; all of them, or one."""
        stored = self.rows.index_select(0, pointers)
        if only is not None:
            return {only: self.layout.unpack_one(stored, only)}
        return self.layout.unpack(stored)

    def _take(self, count: int) -> torch.Tensor:
        """Slots for new rows, int64 [count]."""
        if count > self._idle:
            self._enlarge(count - self._idle)
        self._idle -= count
        return self._stack[self._idle : self._idle + count].long()

    def _push(self, slots: torch.Tensor) -> None:
        """Puts slots that nothing points at, [k], on the stack."""
        self._stack[self._idle : self._idle + slots.shape[0]] = slots
        self._idle += slots.shape[0]

    def _enlarge(self, missing: int) -> None:
        size = self.rows.shape[0]
        more = max(size + missing, int(size * _GROWTH), _SMALLEST_TABLE) - size
        self.rows = torch.cat([self.rows, self.rows.new_zeros(more, self.rows.shape[1])])
        self._count = torch.cat([self._count, self._count.new_zeros(more)])
        self._stack = torch.cat([self._stack, self._stack.new_zeros(more)])
        self._push(torch.arange(size, size + more))

    @classmethod
    def from_rows(cls, layout: RowLayout, rows: torch.Tensor, pointers: torch.Tensor) -> SharedRows:
        """Builds a table again from its :attr:`rows`, for those who point at them, int64 [k]."""
        table = cls(layout)
        table.rows = rows
        table._count = pointers.bincount(minlength=rows.shape[0]).to(torch.int32)
        table._stack = torch.zeros_like(table._count)
        table._push((table._count == 0).nonzero().squeeze(-1))
        return table


def different_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the different ones among rows of bytes.

    Rows are compared by a hash of 64 bits, and then byte by byte with the row they are taken for;
    should two different rows share a hash, all are sorted instead.

    Args:
        rows: uint8 [k, W], where W is a multiple of 8.

    Returns:
        The first of each group of equal rows, int64 [U], and the group of every row, int64 [k].

    Examples:
        >>> rows = torch.tensor([[1] * 8, [2] * 8, [1] * 8], dtype=torch.uint8)
        >>> first, which = different_rows(rows)
        >>> rows[first[which]].equal(rows), len(first)
        (True, 2)
    """
    _, which = torch.unique(_hash(rows), return_inverse=True)
    first = _first_of_each(which)
    if not rows[first[which]].equal(rows):
        _, which = torch.unique(rows, dim=0, return_inverse=True)
        first = _first_of_each(which)
    return first, which


def _hash(rows: torch.Tensor) -> torch.Tensor:
    """A number for each row of bytes, int64 [k]."""
    words = rows.view(torch.int64)
    place = torch.arange(1, words.shape[1] + 1)
    # odd multipliers that differ by place; the shifts carry high bits to where products keep them
    mixed = (words ^ (words >> 29)) * (place * 0x1E3779B97F4A7C15 | 1)
    return (mixed ^ (mixed >> 32)).sum(-1)


def _first_of_each(group: torch.Tensor) -> torch.Tensor:
    """First member of every group, int64 [U], from the group of each, int64 [k]."""
    count = int(group.max()) + 1 if group.numel() else 0
    place = torch.arange(group.shape[0])
    return place.new_zeros(count).scatter_reduce(0, group, place, "amin", include_self=False)


class Link(NamedTuple):
    """What a transition has in a table.

    Args:
        pointer: Name of the column that says where in the table.
        table: Which one.
        keys: Each entry's key in the table, with its key in the transition.
    """

    pointer: str
    table: int
    keys: dict[NestedKey, NestedKey]


def links_of(
    entries: Mapping[NestedKey, torch.Tensor], groups: Sequence[Sequence[NestedKey]]
) -> list[Link]:
    """What transitions share, table by table.

    Args:
        entries: Their entries, {key: [k, ...]}.
        groups: Entries to keep in one table each, at the root, under ``"next"``, or at both, where
            they must be of one shape and type.

    Examples:
        >>> x = torch.zeros(4)
        >>> entries = {"state": x, ("next", "state"): x, "goal": x, "action": x}
        >>> for link in links_of(entries, [["state", "mask"], ["goal"]]):
        ...     print(*link)
        pointer 0 0 {'state': 'state'}
        pointer 1 0 {'state': ('next', 'state')}
        pointer 2 1 {'goal': 'goal'}
    """
    links: list[Link] = []
    table = 0
    for group in groups:
        places = [{key: key for key in group}, {key: unravel_key(("next", key)) for key in group}]
        places = [place for place in places if any(k in entries for k in place.values())]
        alike = [
            key
            for key in group
            if all(place[key] in entries for place in places)
            and len({_kind(entries[place[key]]) for place in places}) == 1
        ]
        if alike:
            for place in places:
                keys = {key: place[key] for key in alike}
                links.append(Link(f"pointer {len(links)}", table, keys))
            table += 1
    return links


def _kind(entry: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return entry.dtype, entry.shape[1:]
