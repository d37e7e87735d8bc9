"""Which rows of a storage belong to which group, kept up to date as rows are overwritten."""

from __future__ import annotations

from typing import Any

import torch


class RowGroups:
    """Lists the rows of each group of a storage, for uniform draws from a group.

    A group's rows stand in no particular order at the front of its line of ``members``. A row that
    leaves a group is replaced by one from the end of the line, so changing k rows takes O(k) time
    and drawing k rows O(k), whatever the size of the storage.

    Args:
        num_groups: Number of groups G.
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
        self.sizes = [0] * num_groups
        self._members = torch.zeros(num_groups, capacity, dtype=torch.int64)
        self._place = torch.zeros(capacity, dtype=torch.int64)
        self._group = torch.full((capacity,), -1, dtype=torch.int16)

    def __len__(self) -> int:
        return sum(self.sizes)

    def members(self, group: int) -> torch.Tensor:
        """Rows of a group, int64 [size]; shares memory, not to be changed."""
        return self._members[group, : self.sizes[group]]

    def assign(self, rows: torch.Tensor, groups: torch.Tensor) -> None:
        """Puts rows into groups, taking them out of the ones they were in.

        Args:
            rows: Different rows, int64 [k].
            groups: Their groups, integers [k] from 0 to G - 1, or -1 for none.
        """
        before = self._group[rows]
        moved = before != groups
        rows, groups, before = rows[moved], groups[moved], before[moved]
        for group in range(len(self.sizes)):
            self._remove(group, rows[before == group])
        for group in range(len(self.sizes)):
            self._append(group, rows[groups == group])

    def draw_each(self, counts: list[int], generator: torch.Generator | None) -> torch.Tensor:
        """Draws rows of each group, uniformly and with replacement.

        Args:
            counts: Number of rows of each group, G numbers, 0 for a group without rows.
            generator: Source of randomness; None for PyTorch's global one.

        Returns:
            Rows, int64 [sum of counts], group by group.
        """
        device = None if generator is None else generator.device
        rows = []
        for group, count in enumerate(counts):
            if count:
                size = self.sizes[group]
                place = torch.randint(size, (count,), generator=generator, device=device)
                rows.append(self._members[group][place.to(self._members.device)])
        return torch.cat(rows)

    def state_dict(self) -> dict[str, Any]:
        """The lines of all groups and the capacity, as tensors and plain values."""
        lines = [self.members(group).clone() for group in range(len(self.sizes))]
        return {"capacity": self.capacity, "members": lines}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RowGroups:
        """Builds what :meth:`state_dict` described."""
        groups = cls(len(state["members"]), int(state["capacity"]))
        for group, rows in enumerate(state["members"]):
            groups._append(group, rows)
        return groups

    def _remove(self, group: int, rows: torch.Tensor) -> None:
        """Takes rows out of their group, filling the holes from the end of its line."""
        if not rows.numel():  # every call until the storage is full
            return
        left = self.sizes[group] - rows.shape[0]
        line, places = self._members[group], self._place[rows]
        stays = torch.ones(rows.shape[0], dtype=torch.bool)  # for the places from `left` on
        stays[places[places >= left] - left] = False
        holes = places[places < left]
        movers = line[left : self.sizes[group]][stays]
        line[holes] = movers
        self._place[movers] = holes
        self._group[rows] = -1
        self.sizes[group] = left

    def _append(self, group: int, rows: torch.Tensor) -> None:
        """Puts rows at the end of a group's line."""
        begin, end = self.sizes[group], self.sizes[group] + rows.shape[0]
        self._members[group, begin:end] = rows
        self._place[rows] = torch.arange(begin, end)
        self._group[rows] = group
        self.sizes[group] = end
