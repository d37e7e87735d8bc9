"""Prioritised sampling within the groups of another sampler."""

from __future__ import annotations

import math
from typing import Any

import torch
from torchrl.data.replay_buffers.samplers import PrioritizedSampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_glam.replay._group_sampler import GroupSampler
from torchrl_glam.replay._state_file import StateFile
from torchrl_glam.replay.priority_groups import PriorityGroups


class PrioritizedGroupSampler(StateFile, PrioritizedSampler):
    """Draws transitions with a large temporal-difference error more often, group by group.

    Prioritised experience replay (Schaul et al., 2016, https://arxiv.org/abs/1511.05952,
    proportional variant) within the groups of another sampler, whose shares stay exact: with
    :class:`~torchrl_glam.replay.HindsightRatioSampler`, half of a batch is still hindsight. Of its
    group's n rows, row i is drawn with probability ``P(i) = w_i / sum_j w_j``, where
    ``w_i = (priority_i + eps) ** alpha``. Batches get ``"priority_weight"`` float32 [B],
    ``(n P(i)) ** -beta`` over the largest in the batch, which undoes the preference in the mean
    when ``beta`` is 1; TorchRL's losses and
    :class:`~torchrl_glam.objectives.SACGLAMLoss` multiply by it.

    A new row has the largest priority there has been so far, 1 before the first update. After each
    update of the weights, ``buffer.update_tensordict_priority(batch)`` takes the priorities from
    ``"td_error"``, which the loss wrote into the batch; ``beta`` can be raised over time, by
    hand or with TorchRL's :class:`~torchrl.data.replay_buffers.scheduler.LinearScheduler`.

    It is TorchRL's :class:`~torchrl.data.PrioritizedSampler` to a replay buffer, but for the trees
    behind it, see :mod:`torchrl_glam.replay.priority_groups`. Its state is made of tensors and
    numbers, so checkpoints contain it. Storing k rows costs O(k) and drawing a batch O(B), whatever
    the size of the buffer.

    Args:
        sampler: Sampler that names the groups and says how many rows to take of each, such as
            :class:`~torchrl_glam.replay.HindsightRatioSampler` or
            :class:`~torchrl_glam.replay.GoalKindSampler`. Default: None, all rows in one group.
        alpha: Exponent of the priorities, at least 0, which is uniform. Default: 0.6.
        beta: Exponent of the weights, in [0, 1]. Default: 0.4.
        eps: Added to priorities, above 0, so that every row can be drawn. Default: 1e-8.

    Raises:
        ValueError: on exponents out of range, and on priorities that are negative, not finite, or
            not one a row.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from torchrl_glam.replay import HindsightRatioSampler
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100),
        ...     sampler=PrioritizedGroupSampler(HindsightRatioSampler(0.5), alpha=1.0, beta=1.0),
        ...     batch_size=8,
        ... )
        >>> _ = buffer.extend(TensorDict({"is_hindsight": torch.arange(6) > 1}, [6]))
        >>> errors = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 3.0])
        >>> buffer.update_priority(torch.arange(6), errors)
        >>> batch = buffer.sample()
        >>> batch["is_hindsight"].sum(), batch["index"].unique(), batch["priority_weight"].unique()
        (tensor(4), tensor([0, 1, 5]), tensor([0.2500, 1.0000]))
    """

    _file = "prioritized_group_sampler.pt"

    def __init__(
        self,
        sampler: GroupSampler | None = None,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-8,
    ) -> None:
        # without super().__init__(), which builds the trees that are replaced here
        for name, value, high in (("alpha", alpha, math.inf), ("beta", beta, 1.0)):
            if not 0 <= value <= high or math.isinf(value):
                raise ValueError(f"{name} ({value}) must be at least 0 and at most {high:g}.")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps ({eps}) must be above 0, or rows without error are never drawn.")
        self._alpha, self._beta, self._eps = alpha, beta, eps
        self.reduction = "max"  # of a priority with several numbers a row
        self.sampler = _OneGroup() if sampler is None else sampler
        self.sampler._groups_type = PriorityGroups
        self._empty()

    @property
    def alpha(self) -> float:
        """Exponent of the priorities."""
        return self._alpha

    @property
    def device(self) -> torch.device:
        """Where priorities are kept."""
        return torch.device("cpu")

    @property
    def default_priority(self) -> float:
        """Priority of a new row."""
        return 1.0 if self._largest is None else self._largest

    @property
    def _rng(self) -> torch.Generator | None:
        return self.sampler._rng

    @_rng.setter
    def _rng(self, generator: torch.Generator | None) -> None:
        self.sampler._rng = generator

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict]:
        """Draws the rows of a batch.

        Args:
            storage: The buffer's storage.
            batch_size: Number of rows B.

        Returns:
            Rows, int64 [B], and ``{"priority_weight": float32 [B]}``.

        Raises:
            RuntimeError: if the storage is empty.
        """
        rows, info = self.sampler.sample(storage, batch_size)
        groups = self.sampler._groups
        weight = (groups.group_sizes(rows) * groups.probabilities(rows)) ** -self._beta
        return rows, info | {"priority_weight": (weight / weight.max()).float()}

    @torch.no_grad()
    def update_priority(
        self,
        index: int | torch.Tensor,
        priority: float | torch.Tensor,
        *,
        storage: Storage | None = None,
    ) -> None:
        """Changes the priorities of rows.

        Args:
            index: The rows, integers [k].
            priority: Their priorities, [k], or one for all.
            storage: The buffer's storage, to look at rows written before this sampler was there.
        """
        if storage is not None:
            self.sampler._keep_up_with(storage)
        rows = torch.as_tensor(index).reshape(-1).long().cpu()
        priority = torch.as_tensor(priority).detach().double().cpu().reshape(-1)
        if priority.shape[0] not in (1, rows.shape[0]):
            raise ValueError(
                f"priority has {priority.shape[0]} numbers for {rows.shape[0]} rows: it must be "
                "one a row, such as the loss's 'td_error'."
            )
        if not (priority.isfinite() & (priority >= 0)).all():
            raise ValueError(
                f"priority (from {priority.min():g} to {priority.max():g}) must be finite and at "
                "least 0: pass absolute errors."
            )
        if not rows.numel():
            return
        self._largest = max(self._largest or 0.0, float(priority.max()))
        groups = self.sampler._groups
        groups.default = self._weight(torch.tensor(self._largest).double()).item()
        groups.reweight(rows, self._weight(priority).expand(rows.shape[0]))

    def mark_update(self, index: int | torch.Tensor, *, storage: Storage | None = None) -> None:
        """Takes note of rows that were written; the replay buffer calls it on every write."""
        self.sampler.mark_update(index, storage=storage)

    def _weight(self, priority: torch.Tensor) -> torch.Tensor:
        return (priority + self._eps) ** self._alpha

    def add(self, index: int) -> None:
        """Does nothing: :meth:`mark_update` has been called."""

    def extend(self, index: torch.Tensor) -> None:
        """Does nothing: :meth:`mark_update` has been called."""

    def _empty(self) -> None:
        self._largest: float | None = None
        self.sampler._empty()

    def state_dict(self) -> dict[str, Any]:
        """Groups, weights, ``beta`` and the largest priority so far."""
        return {
            "beta": self._beta,
            "largest": self._largest,
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned."""
        self._beta, self._largest = state_dict["beta"], state_dict["largest"]
        self.sampler.load_state_dict(state_dict["sampler"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sampler}, alpha={self._alpha}, beta={self._beta})"


class _OneGroup(GroupSampler):
    """All rows alike."""

    def __init__(self) -> None:
        super().__init__(num_groups=1)

    def _groups_of(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(rows)

    def _counts(self, batch_size: int, sizes: list[int]) -> list[int]:
        return [batch_size]

    def __repr__(self) -> str:
        return "all rows"
