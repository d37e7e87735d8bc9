"""Draws from groups of rows in which some rows are likelier than others.

Notation: C rows, G groups, k rows of one call, B rows of a batch. A *block* is 64 neighbours.

TorchRL's sum trees are compiled code that its releases build against one PyTorch (0.14.1 does not
load with PyTorch 2.13), hold one group each and cannot be written to a checkpoint as tensors; so
this is one of our own. It is as wide as it is so that a million rows are four levels.
"""

from __future__ import annotations

from typing import Any

import torch

from torchrl_glam.replay._indexing import last_of_each

_BLOCK = 64


class PriorityGroups:
    """Groups of rows as :class:`~torchrl_glam.replay._row_groups.RowGroups` keeps them, weighted.

    Every row has a weight, and every group a tree over all rows with the sums of its own rows'
    weights in each block, in each block of blocks, and so on. Changing k rows takes O(k) time and
    drawing k rows O(k), whatever C is (the number of levels is its logarithm to base 64). Memory
    is 10 bytes a row and G / 8 bytes for the sums.

    Args:
        num_groups: Number of groups G.
        capacity: Number of rows C.
        default: Weight of a row that is assigned, until :meth:`reweight` gives it another.

    Examples:
        >>> groups = PriorityGroups(num_groups=2, capacity=8)
        >>> groups.assign(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 1, 0]))
        >>> groups.reweight(torch.tensor([1, 2]), torch.tensor([0.0, 5.0]))
        >>> groups.totals()
        tensor([2., 5.], dtype=torch.float64)
        >>> groups.draw_each([1, 2], torch.Generator().manual_seed(0))[1:]
        tensor([2, 2])
    """

    def __init__(self, num_groups: int, capacity: int, default: float = 1.0) -> None:
        self.capacity = capacity
        self.default = default
        self.sizes = [0] * num_groups
        blocks = -(-capacity // _BLOCK)
        self._group = torch.full((blocks * _BLOCK,), -1, dtype=torch.int16)
        self._weight = torch.zeros(blocks * _BLOCK, dtype=torch.float64)
        # sums of blocks of rows, [G, blocks, padded to whole blocks], then of blocks of these
        self._sums: list[torch.Tensor] = []
        while not self._sums or self._sums[-1].shape[1] > _BLOCK:
            padded = -(-blocks // _BLOCK) * _BLOCK
            self._sums.append(torch.zeros(num_groups, padded, dtype=torch.float64))
            blocks = padded // _BLOCK

    def __len__(self) -> int:
        return sum(self.sizes)

    def totals(self) -> torch.Tensor:
        """Sum of the weights of every group, float64 [G]."""
        return self._sums[-1].sum(-1)

    def assign(self, rows: torch.Tensor, groups: torch.Tensor) -> None:
        """Puts rows into groups, taking them out of the ones they were in.

        Args:
            rows: Different rows, int64 [k]; their weight becomes the default.
            groups: Their groups, integers [k] from 0 to G - 1, or -1 for none.
        """
        before = self._group[rows]
        for group in range(len(self.sizes)):
            self.sizes[group] += int((groups == group).sum()) - int((before == group).sum())
        self._group[rows] = groups.to(self._group.dtype)
        self._weight[rows] = self.default
        self._add_up(rows)

    def reweight(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        """Gives rows, int64 [k], new weights of at least 0, [k]; of a row named twice, the last."""
        rows, entries = last_of_each(rows, {"weight": weights.to(torch.float64)})
        self._weight[rows] = entries["weight"]
        self._add_up(rows)

    def draw_each(self, counts: list[int], generator: torch.Generator | None) -> torch.Tensor:
        """Draws rows of each group, with replacement, in proportion to their weights.

        Args:
            counts: Number of rows of each group, G numbers, 0 for a group without rows.
            generator: Source of randomness; None for PyTorch's global one.

        Returns:
            Rows, int64 [sum of counts], group by group.
        """
        group = torch.repeat_interleave(torch.tensor(counts))
        device = None if generator is None else generator.device
        share = torch.rand(len(group), generator=generator, device=device, dtype=torch.float64)
        left = share.cpu() * self.totals()[group]  # of the weight, before the row that is drawn
        node = torch.zeros_like(group)
        for sums in reversed(self._sums):
            node, left = _descend(sums.unflatten(1, (-1, _BLOCK))[group, node], node, left)
        own = self._group.view(-1, _BLOCK)[node] == group.unsqueeze(1)
        node, _ = _descend(torch.where(own, self._weight.view(-1, _BLOCK)[node], 0), node, left)
        return node

    def probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        """Chance of rows, int64 [k], when one row of their group is drawn; float64 [k]."""
        return self._weight[rows] / self.totals()[self._group[rows].long()]

    def group_sizes(self, rows: torch.Tensor) -> torch.Tensor:
        """Number of rows in the groups of these rows, int64 [k]."""
        return torch.tensor(self.sizes)[self._group[rows].long()]

    def _add_up(self, rows: torch.Tensor) -> None:
        """Brings the sums above changed rows up to date."""
        block = rows // _BLOCK
        groups = torch.arange(len(self.sizes)).view(-1, 1, 1)
        own = self._group.view(-1, _BLOCK)[block] == groups  # [G, k, 64]
        sums = torch.where(own, self._weight.view(-1, _BLOCK)[block], 0).sum(-1)
        for level in self._sums:
            level[:, block] = sums
            block = block // _BLOCK
            sums = level.unflatten(1, (-1, _BLOCK))[:, block].sum(-1)

    def state_dict(self) -> dict[str, Any]:
        """Groups, weights and sums; these too, so that not even their rounding differs."""
        used = int((self._group >= 0).nonzero().max()) + 1 if len(self) else 0
        return {
            "capacity": self.capacity,
            "default": self.default,
            "group": self._group[:used].clone(),
            "weight": self._weight[:used].clone(),
            "sums": [level.clone() for level in self._sums],
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> PriorityGroups:
        """Builds what :meth:`state_dict` described."""
        groups = cls(state["sums"][0].shape[0], int(state["capacity"]), float(state["default"]))
        used = state["group"].shape[0]
        groups._group[:used], groups._weight[:used] = state["group"], state["weight"]
        groups._sums = [level.clone() for level in state["sums"]]
        groups.sizes = [int((groups._group == group).sum()) for group in range(len(groups.sizes))]
        return groups


def _descend(
    children: torch.Tensor, node: torch.Tensor, left: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the child in which a cumulative weight falls.

    Args:
        children: Weights of each node's children, [B, 64].
        node: The nodes, int64 [B].
        left: Cumulative weight looked for, within each node, [B].

    Returns:
        The children, int64 [B], and the cumulative weight within these, [B].
    """
    upto = children.cumsum(-1)
    pick = (upto <= left.unsqueeze(1)).sum(-1)
    # rounding may put it past the end: then it is the last child that has any weight
    place = torch.arange(_BLOCK)
    pick = torch.minimum(pick, torch.where(children > 0, place, 0).amax(-1)).unsqueeze(1)
    before = upto.gather(1, pick) - children.gather(1, pick)
    left = (left - before.squeeze(1)).clamp_min(0)
    return node * _BLOCK + pick.squeeze(1), left
