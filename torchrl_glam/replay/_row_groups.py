"""Groups of a storage's rows, kept up to date as rows are overwritten."""

from typing import Any

import numpy as np
import torch


class RowGroups:
    """Lists the rows of each group of a storage, for uniform draws from a group.

    A group's rows stand in a line of its own; all lines share one memory. A row that leaves a group
    is replaced by one from the end of the line, and a line that has no room left moves to one twice
    as long, so changing or drawing k rows takes O(k) time, amortised.

    :meth:`assign` adds groups as it meets them; ``capacity`` is that of the storage.
    """

    def __init__(self, num_groups: int, capacity: int) -> None:
        self.capacity = capacity
        # Arrays, not tensors: of a few dozen numbers, half of torch's time is in calling it.
        self._counts = np.zeros(num_groups, dtype=np.int64)  # rows of each group
        # where in memory the line of a group begins, and for how many rows there is room
        self._begin, self._room = self._counts.copy(), self._counts.copy()
        self._memory = np.zeros(0, dtype=np.int64)
        self._used = 0
        self._place = np.zeros(capacity, dtype=np.int64)  # of a row in its line
        self._group = np.full(capacity, -1, dtype=np.int32)

    @property
    def counts(self) -> torch.Tensor:
        """Rows of each group, int64 [G]; shares memory, not to be changed."""
        return torch.from_numpy(self._counts)

    def assign(self, rows: torch.Tensor, groups: torch.Tensor) -> None:
        """Moves different rows, int64 [k], into groups [k]; -1 for none."""
        rows, groups = rows.numpy(), groups.numpy()
        before = self._group[rows]
        changed = before != groups
        leaves, comes = changed & (before >= 0), changed & (groups >= 0)
        self._remove(rows[leaves], before[leaves])
        self._append(rows[comes], groups[comes])

    def draw(self, groups: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """Draws a row of each group named, int64 [k] both, uniformly and with replacement.

        A group may be named several times, and must have rows. Without a generator, PyTorch's
        global one draws.
        """
        device = None if generator is None else generator.device
        # float64: float32 would leave out rows of groups of millions
        chance = torch.rand(groups.shape, generator=generator, device=device, dtype=torch.float64)
        groups = groups.numpy()
        place = (chance.cpu().numpy() * self._counts[groups]).astype(np.int64)
        return torch.from_numpy(self._memory[self._begin[groups] + place])

    def state_dict(self) -> dict[str, Any]:
        """The capacity, rows of each group, and all lines one after another."""
        lines = torch.from_numpy(self._memory[_ranges(self._begin, self._counts)])
        return {"capacity": self.capacity, "sizes": self.counts.clone(), "lines": lines}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "RowGroups":
        """Builds what :meth:`state_dict` described."""
        sizes = state["sizes"].cpu().numpy()
        groups = cls(len(sizes), int(state["capacity"]))
        groups._append(state["lines"].cpu().numpy(), np.arange(len(sizes)).repeat(sizes))
        return groups

    def _remove(self, rows: np.ndarray, groups: np.ndarray) -> None:
        """Takes rows out of their groups, filling the holes from the ends of the lines."""
        if not len(rows):  # every call until the storage is full
            return
        rows, found, counts = _by_group(rows, groups)
        self._group[rows] = -1
        left = self._counts[found] - counts
        tails = self._memory[_ranges(self._begin[found] + left, counts)]
        movers = tails[self._group[tails] >= 0]
        place = self._place[rows]
        is_hole = place < left.repeat(counts)
        holes = place[is_hole]
        self._memory[self._begin[found].repeat(counts)[is_hole] + holes] = movers
        self._place[movers] = holes
        self._counts[found] = left

    def _append(self, rows: np.ndarray, groups: np.ndarray) -> None:
        """Puts rows at the ends of the lines of their groups."""
        if not len(rows):
            return
        rows, found, counts = _by_group(rows, groups)
        self._make_room(found, counts)
        place = _ranges(self._counts[found], counts)
        self._memory[self._begin[found].repeat(counts) + place] = rows
        self._place[rows] = place
        self._group[rows] = found.repeat(counts)
        self._counts[found] += counts

    def _make_room(self, groups: np.ndarray, counts: np.ndarray) -> None:
        """Has ``counts`` more rows fit into the lines of the groups given."""
        new = int(groups[-1]) + 1 - len(self._counts)
        if new > 0:
            for name in ("_counts", "_begin", "_room"):
                setattr(self, name, np.pad(getattr(self, name), (0, new)))
        wanted = self._counts[groups] + counts
        full = wanted > self._room[groups]
        if not full.any():
            return
        moved, room, memory = groups[full], 2 * wanted[full], self._memory
        if self._used + int(room.sum()) > len(memory):  # all lines move; as much again stays free
            moved, room = np.arange(len(self._counts)), 2 * self._counts
            room[groups] = 2 * wanted
            self._memory, self._used = np.zeros(2 * int(room.sum()), dtype=np.int64), 0
        lines = memory[_ranges(self._begin[moved], self._counts[moved])]
        self._begin[moved] = self._used + room.cumsum() - room
        self._memory[_ranges(self._begin[moved], self._counts[moved])] = lines
        self._room[moved] = room
        self._used += int(room.sum())


def _by_group(rows: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in the order of their groups, int64 [k], these groups, and the rows of each, [G]."""
    order = groups.argsort(kind="stable")
    return rows[order], *np.unique(groups, return_counts=True)


def _ranges(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers from each ``begin`` on, as many as ``lengths`` says, one range after another."""
    after = lengths.cumsum()
    return np.arange(after[-1] if len(after) else 0) + (begin - after + lengths).repeat(lengths)
