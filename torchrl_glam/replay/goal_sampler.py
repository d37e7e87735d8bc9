"""A sampler under which a goal that is reached often crowds out no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey
from torchrl.data.replay_buffers.storages import Storage

from torchrl_glam.replay._row_groups import RowGroups
from torchrl_glam.replay.samplers import GoalKindSampler


class GoalBalancedSampler(GoalKindSampler):
    """Draws hindsight transitions of each goal as often as of any other goal of its kind.

    Goals that are reached by chance, or on the way, are named in nearly every episode: under a
    :class:`~torchrl_glam.replay.GoalKindSampler` a critic sees many successes of a few goals. Here
    a hindsight row of a kind is drawn by its goal, uniformly among the goals that have rows, and
    then uniformly among the goal's rows. The rest is as there. SAC-GLAM (Gaven et al., 2024,
    Appendix E) balances kinds only.

    Storing k rows costs O(k), and drawing B of them O(B + number of different goals).

    Args:
        prior, ratio: as in :class:`~torchrl_glam.replay.GoalKindSampler`.
        goal_key: entry with a row's goal, integers ``[M, ...]``; goals are one where all of it is
            equal. Default: ``"goal_tokens"``.
        **settings: ``hindsight_only``, ``goal_kind_key`` and ``is_hindsight_key``, as there.

    Raises:
        ValueError: as :class:`~torchrl_glam.replay.GoalKindSampler` does.
        KeyError: when rows without a goal are stored.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = GoalBalancedSampler(prior=[1], ratio=1.0)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler)
        >>> goal = torch.where(torch.arange(100) < 98, 7, 9)  # the first is reached often
        >>> rows = {"goal_tokens": goal[:, None], "goal_kind": 0 * goal, "is_hindsight": goal > 0}
        >>> _ = buffer.extend(TensorDict(rows, [100]))
        >>> 400 < (buffer.sample(1000)["goal_tokens"] == 9).sum() < 600
        tensor(True)
    """

    def __init__(
        self,
        prior: Sequence[float],
        ratio: float | None = None,
        *,
        goal_key: NestedKey = "goal_tokens",
        **settings: Any,
    ) -> None:
        super().__init__(prior, ratio, **settings)
        self.goal_key = goal_key

    def _note(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        groups = super()._note(storage, rows)
        if self._by_goal is None:
            self._by_goal = RowGroups(0, storage.max_size)
        numbers = torch.full_like(groups, -1)
        is_hindsight = groups >= len(self.prior)
        if is_hindsight.any():
            goals = self._stored(storage, rows[is_hindsight], self.goal_key, "TokenizeText")
            goals = goals.flatten(1).long().cpu()
            # the kind stands before the goal: what tells kinds apart need not be in the tokens
            named = torch.cat([groups[is_hindsight].unsqueeze(-1) - len(self.prior), goals], 1)
            different, which = named.unique(dim=0, return_inverse=True)
            numbers[is_hindsight] = self._number(different)[which]
        self._by_goal.assign(rows, numbers)
        return groups

    def _number(self, goals: torch.Tensor) -> torch.Tensor:
        """The numbers of different goals, each with its kind before it, int64 [g, 1 + L]."""
        numbers = [self._numbers.setdefault(tuple(g), len(self._numbers)) for g in goals.tolist()]
        numbers = torch.tensor(numbers)
        self._kinds = torch.cat([self._kinds, goals[numbers >= len(self._kinds), 0]])
        return numbers

    def _draw(self, counts: list[int]) -> torch.Tensor:
        kinds = len(self.prior)
        rows = [super()._draw(counts[:kinds])]
        device = None if self._rng is None else self._rng.device
        stored = self._by_goal.counts > 0
        for kind, count in enumerate(counts[kinds:]):
            if count:
                goals = (stored & (self._kinds[: len(stored)] == kind)).nonzero().squeeze(-1)
                place = torch.randint(len(goals), (count,), generator=self._rng, device=device)
                rows.append(self._by_goal.draw(goals[place.cpu()], self._rng))
        return torch.cat(rows)

    def _forget(self) -> None:
        super()._forget()
        self._by_goal: RowGroups | None = None
        self._numbers: dict[tuple[int, ...], int] = {}  # of the goals met so far
        self._kinds = torch.zeros(0, dtype=torch.int64)  # of each goal, by number

    def state_dict(self) -> dict[str, Any]:
        """Rows of each group and of each goal, and the goals; {} while nothing is stored."""
        state = super().state_dict()
        if state:
            state["goals"] = torch.tensor(list(self._numbers), dtype=torch.int64)
            state["by_goal"] = self._by_goal.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned."""
        super().load_state_dict(state_dict)
        if state_dict:
            self._by_goal = RowGroups.from_state_dict(state_dict["by_goal"])
            self._number(state_dict["goals"].view(len(state_dict["goals"]), -1))
