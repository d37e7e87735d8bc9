"""Goals drawn in proportion to the change of success, by goal or by kind of goal."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchrl_glam.goals.sampler import GoalSampler


def change_of_success(results: Tensor, counts: Tensor) -> Tensor:
    """The absolute change of success from the older to the newer half of results, float64 ``[N]``.

    Of an odd number the newer half has one more; of fewer than two there is no change. ``results``
    are rings of the last W, 0 or 1, ``[N, W]``: result i of ``counts`` stands at ``i % W``.
    """
    width = results.shape[1]
    known = counts.clamp(max=width).unsqueeze(1)
    age = (torch.arange(width) - counts.unsqueeze(1) + known) % width  # 0 for the oldest
    older, newer = age < known // 2, (age >= known // 2) & (age < known)
    before, after = (
        (results * half).sum(1) / half.sum(1).clamp(min=1).double() for half in (older, newer)
    )
    return (after - before).abs().where(counts > 1, 0.0)


class ProgressGoals(GoalSampler):
    """Draws goals whose success changes: the on-line baseline of MAGELLAN (section 3.3).

    The progress of a goal is the :func:`~torchrl_glam.goals.progress.change_of_success` in its last
    episodes. Nothing is known of goals that were not pursued.

    Args:
        goal_texts: table of goals, such as ``env.goal_texts``.
        window: last episodes of each goal that count, a byte each. Default: 100.
        **settings: those of :class:`~torchrl_glam.goals.GoalSampler`.

    Examples:
        >>> sampler = ProgressGoals(["Grasp", "Grow"], exploration=(0.0, 0.0))
        >>> sampler.update([1, 1, 0, 1, 1], [0, 0, 1, 1, 1])
        >>> sampler.progress, sampler.sample(4)
        (tensor([0., 1.], dtype=torch.float64), tensor([1, 1, 1, 1]))
    """

    _shown, _kept = ("window",), ("updates", "_results", "_counts")
    _by_kind = False

    def __init__(
        self, goal_texts: Sequence[str] | None, *, window: int = 100, **settings: Any
    ) -> None:
        super().__init__(goal_texts, **settings)
        if window < 2:
            raise ValueError(f"window ({window}) must be at least 2 episodes, for two halves")
        if self._by_kind and settings.get("kinds") is None:
            raise ValueError("kinds is missing: an expert must give the kind of each goal")
        self.window = window
        # goals of a group share their results
        self._groups = self.kinds if self._by_kind else torch.arange(len(goal_texts))
        self._sizes = self._groups.bincount()
        if self._by_kind and self._likely is None:
            self._likely = (1 / self._sizes.double())[self._groups]
            self._even = self._likely.cumsum(0)
        self._results = torch.zeros((len(self._sizes), window), dtype=torch.uint8)
        self._counts = torch.zeros(len(self._sizes), dtype=torch.int64)
        self._changes = torch.zeros(len(self._sizes), dtype=torch.float64)

    def _learn(self, goal_ids: Tensor, successes: Tensor) -> None:
        groups, order = self._groups[goal_ids].sort(stable=True)
        touched, sizes = groups.unique_consecutive(return_counts=True)
        place = torch.arange(len(groups)) - sizes.cumsum(0).repeat_interleave(sizes)  # -1: newest
        self._counts[touched] += sizes
        slot = (self._counts[groups] + place) % self.window
        kept = place >= -self.window  # as many as a ring holds
        self._results[groups[kept], slot[kept]] = successes[order][kept].byte()
        self._measure(touched)

    def _measure(self, groups: Tensor | None = None) -> None:
        if groups is None:
            self._changes.zero_()
            groups = self._counts.nonzero().flatten()
        self._changes[groups] = change_of_success(self._results[groups], self._counts[groups])
        each = self._changes / self._sizes.clamp(min=1)
        self._set_progress(self._changes[self._groups], each[self._groups])


class KindProgressGoals(ProgressGoals):
    """Draws kinds of goals whose success changes, and goals of a kind uniformly.

    The baseline with expert knowledge: all episodes of a kind count together. Uniform draws are of
    kinds, too, unless ``shares`` says otherwise. Arguments are those of
    :class:`~torchrl_glam.goals.ProgressGoals`; ``kinds`` must be given.

    Examples:
        >>> table = ["Grasp a cow", "Grow a cow", "Grow a rose"]
        >>> sampler = KindProgressGoals(table, kinds=[0, 1, 1])
        >>> sampler.update([1, 2, 0, 0], [0, 1, 1, 1])
        >>> sampler.progress
        tensor([0., 1., 1.], dtype=torch.float64)
    """

    _by_kind = True
