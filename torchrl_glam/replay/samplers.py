"""Samplers that balance hindsight, original transitions and goals (SAC-GLAM, Appendix E)."""

import math
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from tensordict import NestedKey
from torchrl.data.replay_buffers.storages import Storage

from torchrl_glam.replay._group_sampler import GroupSampler
from torchrl_glam.replay._row_groups import RowGroups

_WRITER = "HindsightTransform"


class HindsightRatioSampler(GroupSampler):
    """Draws batches with an exact share of hindsight transitions.

    A batch of B rows holds round(ratio * B) hindsight transitions and for the rest original ones,
    each drawn uniformly and with replacement, in random order ("HER + ratio" of SAC-GLAM, Gaven et
    al., 2024, section 2.3 and Appendix E). While a kind has no rows at all, the other fills the
    batch, and a warning says so once. Storing k rows costs O(k) and drawing a batch O(B).

    Args:
        ratio: share of hindsight transitions in a batch, in [0, 1]. Default: 0.5.
        is_hindsight_key: entry that marks hindsight transitions, bool [M] or [M, 1]. Default:
            ``"is_hindsight"``.

    Raises:
        ValueError: if ``ratio`` is not in [0, 1].

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = HindsightRatioSampler(ratio=0.25)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler)
        >>> rows = {"is_hindsight": torch.arange(50) % 10 > 0}
        >>> _ = buffer.extend(TensorDict(rows, [50]))
        >>> int(buffer.sample(8)["is_hindsight"].sum())
        2
    """

    def __init__(self, ratio: float = 0.5, *, is_hindsight_key: NestedKey = "is_hindsight") -> None:
        _check_ratio(ratio)
        super().__init__(num_groups=2)
        self.ratio = ratio
        self.is_hindsight_key = is_hindsight_key

    def _groups_of(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        return self._stored(storage, rows, self.is_hindsight_key, _WRITER).reshape(-1)

    def _counts(self, batch_size: int, sizes: list[int]) -> list[int]:
        return self._sides(batch_size, self.ratio, sizes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(ratio={self.ratio})"


class GoalKindSampler(GroupSampler):
    """Draws batches in which goal kinds appear as often as in the environment.

    Of a batch of B rows, B times ``prior[k]`` have a goal of kind k, rounded down or up at random
    so that this is their mean ("HER + prior" of SAC-GLAM, Gaven et al., 2024, Appendix E): a
    social partner names easy goals more often than the environment asks for them. With ``ratio``,
    round(ratio * B) rows are hindsight transitions, and the kinds follow the prior among these and
    among the original ones.

    Rows are drawn uniformly and with replacement within a kind. What has no rows is replaced, and a
    warning says so once: a kind by the others, in proportion to their prior; hindsight transitions
    of kinds with a prior by original ones, and the other way round.

    Args:
        prior: weight of each goal kind, K numbers of at least 0 that are not all 0; or K, and each
            weighs as much as it has original transitions, which were to reach what was pursued.
        ratio: share of hindsight transitions in a batch, in [0, 1]. Default: all are drawn alike.
        hindsight_only: whether to apply the prior to hindsight transitions only, and draw original
            ones uniformly; it needs ``ratio``. Default: ``False``.
        goal_kind_key: entry with the kind of a row's goal, integers [M] from 0 to K - 1. Default:
            ``"goal_kind"``.
        is_hindsight_key: entry that marks hindsight transitions, bool [M] or [M, 1]. Default:
            ``"is_hindsight"``.

    Raises:
        ValueError: on weights or a ratio out of range, on ``hindsight_only`` without a ratio, and
            when rows with another kind are stored, and drawn from.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = GoalKindSampler(prior=[1, 3], ratio=0.5)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler)
        >>> row = torch.arange(100)
        >>> rows = {"goal_kind": (row % 10 == 0).long(), "is_hindsight": row % 4 > 0}
        >>> _ = buffer.extend(TensorDict(rows, [100]))
        >>> batch = buffer.sample(16)
        >>> batch["goal_kind"].bincount(), batch["is_hindsight"].sum()
        (tensor([ 4, 12]), tensor(8))
    """

    def __init__(
        self,
        prior: Sequence[float] | int,
        ratio: float | None = None,
        *,
        hindsight_only: bool = False,
        goal_kind_key: NestedKey = "goal_kind",
        is_hindsight_key: NestedKey = "is_hindsight",
    ) -> None:
        known = [1.0] * prior if isinstance(prior, int) else [float(weight) for weight in prior]
        if not all(0 <= weight < math.inf for weight in known) or sum(known) <= 0:
            raise ValueError(
                f"prior ({prior}) must be weights of at least 0, one a kind, not all 0; or K >= 1"
            )
        if ratio is not None:
            _check_ratio(ratio)
        elif hindsight_only:
            raise ValueError("hindsight_only (True) needs a ratio: else both are drawn alike.")
        super().__init__(num_groups=2 * len(known))  # original, then hindsight, of every kind
        self.num_kinds = len(known)
        self.prior = None if isinstance(prior, int) else [w / sum(known) for w in known]
        self.ratio = ratio
        self.hindsight_only = hindsight_only
        self.goal_kind_key = goal_kind_key
        self.is_hindsight_key = is_hindsight_key

    def _groups_of(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        kind = self._stored(storage, rows, self.goal_kind_key, "the environment").reshape(-1).long()
        if kind.numel() and not 0 <= int(kind.min()) <= int(kind.max()) < self.num_kinds:
            raise ValueError(
                f"{self.goal_kind_key!r} of the rows stored is from {int(kind.min())} to "
                f"{int(kind.max())}, and must be from 0 to {self.num_kinds - 1}: prior says how "
                "many kinds there are."
            )
        is_hindsight = self._stored(storage, rows, self.is_hindsight_key, _WRITER)
        return kind + self.num_kinds * is_hindsight.reshape(-1).long()

    def _counts(self, batch_size: int, sizes: list[int]) -> list[int]:
        original, hindsight = sizes[: self.num_kinds], sizes[self.num_kinds :]
        prior = self.prior or original
        if self.ratio is None:
            stored = list(zip(original, hindsight, strict=True))
            totals = self._split(batch_size, list(map(sum, stored)), prior)
            # a kind's rows are drawn alike: its share of hindsight is that of the buffer
            parts = map(self._round, totals, stored)
            return [*chain(*zip(*parts, strict=True))]
        if any(original):  # then what is never pursued is not wanted in hindsight either
            hindsight = [n if p else 0 for p, n in zip(prior, hindsight, strict=True)]
        counts = self._sides(batch_size, self.ratio, [sum(original), sum(hindsight)])
        alike = original if self.hindsight_only else prior
        return [*self._split(counts[0], original, alike), *self._split(counts[1], hindsight, prior)]

    def _split(self, count: int, stored: list[int], prior: Sequence[float]) -> list[int]:
        """Divides ``count`` rows among kinds by the prior, none to a kind without rows."""
        weights = [p if n else 0.0 for p, n in zip(prior, stored, strict=True)]
        missing = [k for k, p in enumerate(prior) if p and not stored[k]]
        if missing and count:
            self._warn(f"no transitions with goals of kind {missing}")
        return self._round(count, weights if any(weights) else stored)

    def _round(self, count: int, weights: Sequence[float]) -> list[int]:
        """Divides ``count`` in proportion to weights, rounding so that the means are exact.

        One uniform number shifts the borders between the shares ("systematic" rounding), so every
        part is the number next below or above its share.
        """
        if not count:
            return [0] * len(weights)
        device = None if self._rng is None else self._rng.device
        shift = torch.rand((), generator=self._rng, device=device).item()
        scale = count / sum(weights)
        borders = [math.floor(total * scale + shift) for total in accumulate(weights)]
        # rounding errors must neither lose a row nor give one to a share of 0
        last = max(k for k, weight in enumerate(weights) if weight)
        borders = [min(b, count) for b in borders[:last]] + [count] * (len(weights) - last)
        return [end - begin for begin, end in pairwise([0, *borders])]

    def __repr__(self) -> str:
        more = f"ratio={self.ratio}" + ", hindsight_only=True" * self.hindsight_only
        return f"{type(self).__name__}(prior={self.prior or self.num_kinds}, {more})"


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
        goal_key: entry with a row's goal, real numbers ``[M, ...]``; goals are one where all of it
            is equal. Default: ``"goal_tokens"``.
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
        prior: Sequence[float] | int,
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
        is_hindsight = groups >= self.num_kinds
        if is_hindsight.any():
            goals = self._stored(storage, rows[is_hindsight], self.goal_key, "TokenizeText")
            goals = goals.reshape(len(goals), -1).cpu()
            if goals.is_floating_point():
                goals = (goals.double() + 0.0).view(torch.int64)  # -0 becomes 0, which it equals
            goals = goals.long()
            # the kind stands before the goal: what tells kinds apart need not be in the tokens
            named = torch.cat([groups[is_hindsight].unsqueeze(-1) - self.num_kinds, goals], 1)
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
        rows = [super()._draw(counts[: self.num_kinds])]
        device = None if self._rng is None else self._rng.device
        stored = self._by_goal.counts > 0
        for kind, count in enumerate(counts[self.num_kinds :]):
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
        super().load_state_dict(state_dict if "by_goal" in state_dict else {})
        if self._groups is not None:
            self._by_goal = RowGroups.from_state_dict(state_dict["by_goal"])
            if len(state_dict["goals"]):
                self._number(state_dict["goals"].cpu())


def _check_ratio(ratio: float) -> None:
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio ({ratio}) must be in [0, 1]: a batch's share of hindsight rows.")
