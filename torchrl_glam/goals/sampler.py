"""What all goal samplers have in common, and the one that draws goals uniformly."""

import hashlib
import math
from collections.abc import Mapping, Sequence, Sized
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor


class Resumable:
    """Saves and restores attributes; a state of what was made in another way is refused."""

    _made: Mapping[str, str]  # what a state must say too, of which its kind is the first name
    _kept: tuple[str, ...] = ()  # attributes to save, besides the generator
    _generator: torch.Generator

    def state_dict(self) -> dict[str, Any]:
        """All that is random or learned: tensors, numbers and strings, in nested dictionaries."""
        state = {**self._made, "generator": self._generator.get_state()}
        for name in self._kept:
            part = getattr(self, name)
            state[name] = part.state_dict() if hasattr(part, "state_dict") else part
        return deepcopy(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state; a ValueError names what was made in another way."""
        for name, mine in self._made.items():
            if state_dict.get(name) != mine:
                raise ValueError(
                    f"{name} of the state is {state_dict.get(name)}, expected {mine}: make the "
                    f"{next(iter(self._made))} as the saved one was made"
                )
        state = deepcopy(dict(state_dict))
        self._generator.set_state(state["generator"].cpu())
        for name in self._kept:
            if hasattr(part := getattr(self, name), "load_state_dict"):
                part.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])


class GoalSampler(Resumable):
    """Draws goals in proportion to their progress, and some uniformly; the base of all samplers.

    The share of uniform draws falls from ``exploration[0]`` to ``exploration[1]``, the difference
    by a factor of e every ``decay`` updates; while no goal has progress, all draws are uniform.
    Draws come from a generator of the sampler's own, not from that which an environment gives.

    Args:
        goal_texts: table of G goals, whose places are the ids, such as ``env.goal_texts``.
        kinds: kind of each goal, integers ``[G]``, such as ``env.goals.kind_ids``. Default: one.
        shares: share of each kind in uniform draws, numbers that sum to 1, such as
            ``env.goals.kind_shares``. Default: None, all goals are equally likely.
        exploration: first and last share of uniform draws. Default: ``(1.0, 0.2)``.
        decay: updates. Default: 320.
        hindsight: whether goals named in hindsight count as episodes that reached them. These tell
            of no failures, so success looks likelier than it is. Default: False.
        seed: of the generator. Default: 0.

    Attributes:
        kinds: kind of every goal, ``int64 [G]``.
        progress: of every goal, at least 0, ``float64 [G]``.

    Raises:
        ValueError: if there is no table, or an argument does not fit it or is out of range.
    """

    _shown: tuple[str, ...] = ()  # attributes that a state of the same sampler shares
    _kept = ("updates",)

    def __init__(
        self,
        goal_texts: Sequence[str] | None,
        *,
        kinds: Tensor | Sequence[int] | None = None,
        shares: Sequence[float] | None = None,
        exploration: tuple[float, float] = (1.0, 0.2),
        decay: float = 320,
        hindsight: bool = False,
        seed: int = 0,
    ) -> None:
        if goal_texts is None or isinstance(goal_texts, str) or not len(goal_texts):
            raise ValueError(f"goal_texts ({goal_texts!r}) must be a table of goals to choose from")
        pair = isinstance(exploration, Sized) and len(exploration) == 2
        if not (pair and all(0 <= share <= 1 for share in exploration) and 0 < decay < math.inf):
            raise ValueError(
                f"exploration {exploration} must be two shares in [0, 1], decay {decay} above 0"
            )
        self.goal_texts, self.hindsight, self.updates = goal_texts, hindsight, 0
        self._schedule = (*exploration, decay)
        self.kinds, self._likely = _check_kinds(kinds, shares, len(goal_texts))
        self._even = None if self._likely is None else self._likely.cumsum(0)
        self._used: Tensor | None = None
        self._table = name_table(goal_texts, self.kinds.tolist())
        self._generator = torch.Generator().manual_seed(seed)
        self._set_progress(torch.zeros(len(goal_texts), dtype=torch.float64))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in self._shown)
        return f"{type(self).__name__}({shown})"

    def __call__(self, generator: torch.Generator | None, count: int) -> Tensor:
        """Draws the goals of ``count`` new episodes, as environments ask for them."""
        return self.sample(count)

    @property
    def exploration(self) -> float:
        """The share of goals that is drawn uniformly."""
        first, last, decay = self._schedule
        return last + (first - last) * math.exp(-self.updates / decay)

    def sample(self, count: int) -> Tensor:
        """Draws goals: ids, ``int64 [count]``."""
        goals = self._draw_evenly(count)
        if not self._cumulated[-1]:
            return goals
        explores = torch.rand(count, generator=self._generator) < self.exploration
        return torch.where(explores, goals, self._in_proportion(self._cumulated, count))

    def use(self, used: Tensor) -> None:
        """Draws only these goals from here on, bool ``[G]``; nothing is forgotten of the others.

        Kinds count by their goals in use. The state does not hold it: a resumed run says it again.

        Raises:
            ValueError: if they are not bool ``[G]``, or none of them is ever drawn.
        """
        used = torch.as_tensor(used).cpu()
        if used.dtype != torch.bool or used.shape != self.progress.shape:
            raise ValueError(f"used ({used}) must be bool, one for each goal: {len(self.progress)}")
        likely = torch.ones_like(self.progress) if self._likely is None else self._likely
        even = (likely * used).cumsum(0)
        if not even[-1] > 0:
            raise ValueError(f"used has {int(used.sum())} goals, and none that is ever drawn")
        self._used, self._even = used, even
        self._measure()

    def update(self, goal_ids: Tensor, successes: Tensor, named: Tensor | None = None) -> None:
        """Takes in the episodes that ended. Call it once a round, also where none has.

        Args:
            goal_ids: goals that they pursued, integers ``[E]``, the earliest first.
            successes: whether they reached them, bool or 0 and 1, ``[E]``.
            named: goals reached in hindsight, integers of any shape, -1 for none; not read without
                ``hindsight``. Default: None.

        Raises:
            ValueError: if these do not fit together or are no goals; nothing has changed then.
        """
        ids = check_ids("goal_ids", goal_ids, 0, len(self.goal_texts))
        reached = torch.as_tensor(successes).cpu().flatten()
        if len(ids) != len(reached) or not ((reached == 0) | (reached == 1)).all():
            raise ValueError(
                f"successes ({successes}) must be 0 or 1, as many as goal_ids: {len(ids)}"
            )
        if self.hindsight and named is not None:
            named = check_ids("named", named, -1, len(self.goal_texts))
            named = named[named >= 0]
            ids, reached = torch.cat((ids, named)), torch.cat((reached, torch.ones_like(named)))
        self.updates += 1
        self._learn(ids, reached.bool())

    @property
    def _made(self) -> dict[str, str]:
        return {"sampler": repr(self), "goals": self._table}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state; a ValueError names another sampler or another table of goals."""
        super().load_state_dict(state_dict)
        self._measure()

    def _learn(self, goal_ids: Tensor, successes: Tensor) -> None:
        """Takes in episodes, ``int64 [E]`` and ``bool [E]``, and sets the progress."""

    def _measure(self) -> None:
        """Sets the progress by the state, of which it is a part unless a class says otherwise."""
        self._set_progress(self.progress)

    def _set_progress(self, progress: Tensor, weights: Tensor | None = None) -> None:
        """Takes the progress of every goal, and the weights to draw by where these are others."""
        wrong = (~progress.isfinite()).nonzero().flatten().tolist()
        if wrong:
            first = self.goal_texts[wrong[0]]
            raise ValueError(f"progress of {len(wrong)} goals is not finite, of {first!r} first")
        self.progress = progress
        weights = progress if weights is None else weights
        self._cumulated = (weights if self._used is None else weights * self._used).cumsum(0)

    def _draw_evenly(self, count: int) -> Tensor:
        if self._even is None:
            return torch.randint(len(self.goal_texts), (count,), generator=self._generator)
        return self._in_proportion(self._even, count)

    def _in_proportion(self, cumulated: Tensor, count: int) -> Tensor:
        """Draws places by weights whose sums so far are given; never one of no weight."""
        # A float64 draw below 1, times the sum, stays below the sum.
        draw = torch.rand(count, generator=self._generator, dtype=torch.float64)
        return torch.searchsorted(cumulated, draw * cumulated[-1], right=True)


def name_table(goal_texts: Sequence[str], *more: Any) -> str:
    """What a state says of its table of goals: their number, and a hash."""
    table = repr((list(goal_texts), *more)).encode()
    return f"{len(goal_texts)} goals, {hashlib.sha256(table).hexdigest()[:16]}"


def check_ids(name: str, ids: Tensor, least: int, size: int) -> Tensor:
    """Ids of a table of goals in one dimension, ``int64``."""
    ids = torch.as_tensor(ids).cpu().flatten()
    whole = not (ids.is_floating_point() or ids.dtype == torch.bool)
    if len(ids) and not (whole and least <= ids.min() <= ids.max() < size):
        raise ValueError(f"{name} ({ids}) must be ids of goals, in [{least}, {size})")
    return ids.long()


def _check_kinds(
    kinds: Tensor | Sequence[int] | None, shares: Sequence[float] | None, num_goals: int
) -> tuple[Tensor, Tensor | None]:
    """The kind of every goal, ``int64 [G]``, and its weight in uniform draws, ``float64 [G]``."""
    kinds = torch.as_tensor([0] * num_goals if kinds is None else kinds).cpu()
    if kinds.shape != (num_goals,) or kinds.is_floating_point() or kinds.min() < 0:
        raise ValueError(f"kinds ({kinds}) must be {num_goals} integers, the kind of each goal")
    kinds = kinds.long()
    if shares is None:
        return kinds, None
    each = torch.as_tensor(shares, dtype=torch.float64)
    size = kinds.bincount(minlength=len(each))
    weights = (each / size.clamp(min=1))[kinds] if len(size) == len(each) else torch.zeros(1)
    if not ((each >= 0).all() and abs(weights.sum() - 1) < 1e-6):
        raise ValueError(
            f"shares ({shares}) must be at least 0, one for each kind, and sum to 1 over the kinds "
            f"that have goals: their numbers of goals are {size.tolist()}"
        )
    return kinds, weights


class UniformGoals(GoalSampler):
    """Draws goals uniformly, or kinds in given shares: the baseline.

    Arguments are those of :class:`~torchrl_glam.goals.GoalSampler`.

    Examples:
        >>> UniformGoals(["Grasp", "Grow"], kinds=[0, 1], shares=[0.0, 1.0]).sample(3)
        tensor([1, 1, 1])
    """
