"""Which rows of a storage belong to which group, kept up to date as rows are overwritten."""

from __future__ import annotations

from typing import Any

import torch

from torchrl_glam.replay._indexing import ranges


class RowGroups:
    """Lists the rows of each group of a storage, for uniform draws from a group.

    A group's rows stand in no particular order in a line of its own; all lines share one memory.
    A row that leaves a group is replaced by one from the end of the line, and a line that has no
    room left moves to one twice as long, so changing k rows takes O(k) time, amortised, and drawing
    k rows O(k), whatever the size of the storage and the number of groups.

    Args:
        num_groups: Number of groups G; :meth:`assign` adds groups as it meets them.
        capacity: Number of rows of the storage.

    Examples:
        >>> groups = RowGroups(num_groups=2, capacity=8)
        >>> groups.assign(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 1, 0]))
        >>> groups.assign(torch.tensor([1]), torch.tensor([0]))
        >>> groups.members(0), groups.members(1)
        (tensor([0, 3, 1]), tensor([2]))
    """

    def __init__(self, num_groups: int, capacity: int) -> None:
        self.capacity = capacity
        self._length = 0
        self.counts = torch.zeros(num_groups, dtype=torch.int64)  # rows of each group
        # where in memory the line of a group begins, and for how many rows there is room
        self._begin, self._room = self.counts.clone(), self.counts.clone()
        self._memory = torch.zeros(0, dtype=torch.int64)
        self._used = 0
        self._place = torch.zeros(capacity, dtype=torch.int64)  # of a row in its line
        self._group = torch.full((capacity,), -1, dtype=torch.int32)

    def __len__(self) -> int:
        return self._length

    @property
    def sizes(self) -> list[int]:
        """Rows of each group, G numbers."""
        return self.counts.tolist()

    def members(self, group: int) -> torch.Tensor:
        """Rows of a group, int64 [size]; shares memory, not to be changed."""
        return self._memory[self._begin[group] :][: self.counts[group]]

    def assign(self, rows: torch.Tensor, groups: torch.Tensor) -> None:
        """Puts rows into groups, taking them out of the ones they were in.

        Args:
            rows: Different rows, int64 [k].
            groups: Their groups, integers [k] of at least 0, or -1 for none.
        """
        before = self._group[rows]
        self._remove(rows[(before >= 0) & (before != groups)])
        added = (groups >= 0) & (before != groups)
        if added.any():
            self._append(rows[added], groups[added].long())

    def draw(self, groups: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """Draws a row from each of the groups named, uniformly and with replacement.

        Args:
            groups: Groups that have rows, int64 [k]; one may be named several times.
            generator: Source of randomness; None for PyTorch's global one.

        Returns:
            Rows, int64 [k].
        """
        device = None if generator is None else generator.device
        # float64: float32 would leave out rows of groups of millions
        chance = torch.rand(groups.shape, generator=generator, device=device, dtype=torch.float64)
        place = (chance.cpu() * self.counts.index_select(0, groups)).long()
        place += self._begin.index_select(0, groups)
        return self._memory.index_select(0, place)

    def state_dict(self) -> dict[str, Any]:
        """The capacity, rows of each group, and all lines one after another."""
        lines = self._memory[ranges(self._begin, self.counts)]
        return {"capacity": self.capacity, "sizes": self.counts.clone(), "lines": lines}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RowGroups:
        """Builds what :meth:`state_dict` described."""
        sizes = state["sizes"]
        groups = cls(len(sizes), int(state["capacity"]))
        if len(state["lines"]):
            groups._append(state["lines"], torch.arange(len(sizes)).repeat_interleave(sizes))
        return groups

    def _remove(self, rows: torch.Tensor) -> None:
        """Takes rows out of their groups, filling the holes from the ends of the lines."""
        if not rows.numel():  # every call until the storage is full
            return
        groups, order = self._group[rows].long().sort(stable=True)
        rows = rows[order]
        found, counts = groups.unique_consecutive(return_counts=True)
        self._group[rows] = -1
        self._length -= len(rows)
        left = self.counts[found] - counts
        tails = self._memory[ranges(self._begin[found] + left, counts)]
        movers = tails[self._group[tails] >= 0]
        place = self._place[rows]
        is_hole = place < left.repeat_interleave(counts)
        holes = place[is_hole]
        self._memory[self._begin[groups[is_hole]] + holes] = movers
        self._place[movers] = holes
        self.counts[found] = left

    def _append(self, rows: torch.Tensor, groups: torch.Tensor) -> None:
        """Puts rows at the ends of the lines of their groups."""
        groups, order = groups.sort(stable=True)
        rows = rows[order]
        found, counts = groups.unique_consecutive(return_counts=True)
        self._make_room(found, counts)
        place = ranges(self.counts[found], counts)
        self._memory[self._begin[groups] + place] = rows
        self._place[rows] = place
        self._group[rows] = groups.int()
        self._length += len(rows)
        self.counts[found] += counts

    def _make_room(self, groups: torch.Tensor, counts: torch.Tensor) -> None:
        """Has ``counts`` more rows fit into the lines of the groups given."""
        new = int(groups[-1]) + 1 - len(self.counts)
        if new > 0:
            for name in ("counts", "_begin", "_room"):
                column = getattr(self, name)
                setattr(self, name, torch.cat([column, column.new_zeros(new)]))
        wanted = self.counts[groups] + counts
        full = wanted > self._room[groups]
        if not full.any():
            return
        if self._used + 2 * int(wanted[full].sum()) > len(self._memory):
            self._pack(2 * int(wanted.sum()))
            full = torch.ones_like(full)  # packed lines have no room
        groups, room = groups[full], 2 * wanted[full]
        line = self._memory[ranges(self._begin[groups], self.counts[groups])]
        self._begin[groups] = self._used + room.cumsum(0) - room
        self._memory[ranges(self._begin[groups], self.counts[groups])] = line
        self._room[groups] = room
        self._used += int(room.sum())

    def _pack(self, needed: int) -> None:
        """Puts all lines into new memory, one after another, with as much again left free."""
        lines = self._memory[ranges(self._begin, self.counts)]
        self._memory = lines.new_zeros(2 * (len(lines) + needed))
        self._memory[: len(lines)] = lines
        self._begin = self.counts.cumsum(0) - self.counts
        self._room = self.counts.clone()
        self._used = len(lines)
