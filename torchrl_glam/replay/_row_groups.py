"""Which rows of a storage belong to which group, kept up to date as rows are overwritten."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any

import torch


class RowGroups:
    """Lists the rows of each group of a storage, for uniform draws from a group.

    A group's rows stand in a line of its own. A row that leaves a group is replaced by one from the
    end of the line, so changing or drawing k rows takes O(k) time.

    :meth:`assign` adds groups as it meets them; ``capacity`` is that of the storage.
    """

    def __init__(self, num_groups: int, capacity: int) -> None:
        self.capacity = capacity
        # Arrays, not tensors: of a few dozen numbers, half of torch's time is in calling it.
        self._lines = [array("q") for _ in range(num_groups)]
        self._place = array("q", [0]) * capacity  # of a row in its line
        self._group = array("i", [-1]) * capacity

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    @property
    def counts(self) -> torch.Tensor:
        """Rows of each group, int64 [G]."""
        return torch.tensor([len(line) for line in self._lines], dtype=torch.int64)

    def assign(self, rows: torch.Tensor, groups: torch.Tensor) -> None:
        """Moves different rows, int64 [k], into groups [k]; -1 for none."""
        leaves: dict[int, list[int]] = {}
        comes = []
        for row, group in zip(rows.tolist(), groups.tolist(), strict=True):
            before = self._group[row]
            if before != group:
                self._group[row] = group
                if before >= 0:
                    leaves.setdefault(before, []).append(row)
                if group >= 0:
                    comes.append((row, group))
        for group, gone in leaves.items():
            self._remove(self._lines[group], gone)
        for row, group in comes:
            while group >= len(self._lines):
                self._lines.append(array("q"))
            self._place[row] = len(self._lines[group])
            self._lines[group].append(row)

    def _remove(self, line: array[int], gone: list[int]) -> None:
        """Takes rows out of a line, filling the holes from its end."""
        left, out = len(line) - len(gone), set(gone)
        movers = [row for row in line[left:] if row not in out]
        holes = [place for place in (self._place[row] for row in gone) if place < left]
        for hole, mover in zip(holes, movers, strict=True):
            line[hole], self._place[mover] = mover, hole
        del line[left:]

    def draw(self, groups: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """Draws a row of each group named, int64 [k] both, uniformly and with replacement.

        A group may be named several times, and must have rows. Without a generator, PyTorch's
        global one draws.
        """
        device = None if generator is None else generator.device
        # float64: float32 would leave out rows of groups of millions
        chance = torch.rand(groups.shape, generator=generator, device=device, dtype=torch.float64)
        lines = [self._lines[group] for group in groups.tolist()]
        rows = [line[int(c * len(line))] for line, c in zip(lines, chance.tolist(), strict=True)]
        return torch.tensor(rows, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        """The capacity, rows of each group, and all lines one after another."""
        lines = torch.tensor(list(chain(*self._lines)), dtype=torch.int64)
        return {"capacity": self.capacity, "sizes": self.counts, "lines": lines}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RowGroups:
        """Builds what :meth:`state_dict` described."""
        sizes = state["sizes"]
        groups = cls(len(sizes), int(state["capacity"]))
        groups.assign(state["lines"], torch.arange(len(sizes)).repeat_interleave(sizes))
        return groups
