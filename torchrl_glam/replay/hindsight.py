"""Hindsight relabelling with the goals that a social partner names.

Notation: *B batch size of a collector's tensordict, H slots for named goals, M rows emitted.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torchrl.envs.transforms import Transform

from torchrl_glam.replay import _checks
from torchrl_glam.replay._episodes import Episodes, StepLog
from torchrl_glam.replay.strategies import (
    STRATEGIES,
    Copies,
    Spans,
    Strategy,
    draw_from_each,
    named_goals,
)
from torchrl_glam.replay.trajectories import trajectories, under_next


class HindsightTransform(Transform):
    """Adds finished episodes to a replay buffer, with copies under the goals they reached.

    Works on ``extend``. Steps are held back until their episode ends, however they are split into
    calls. Rows [M] then go to the buffer: the episode as it was and, for every goal that the social
    partner named after step t, the steps up to t again under that goal, which step t reaches
    (SAC-GLAM, Gaven et al., 2024, section 2.3; :mod:`torchrl_glam.replay.strategies` has other
    choices). Each copy is a run of rows up to its ``("next", "done")``, marked ``is_hindsight``.

    Rows hold every tensor that came in, except the ``"hindsight"`` entries and the root's ends. An
    entry that says which goal is pursued, at the root or under ``"next"``, is replaced by the one
    of its name in ``"hindsight"``, and left out of all rows where there is none. Entries without
    tensors, such as strings, are left out with a warning.

    Trajectories are told apart by the numbers that collectors write; without them, row i of a batch
    [N, T] continues row i of the last one. A trajectory that a reset cuts off without ``done`` is
    never stored, and a warning says so. In a ``Compose``, put TorchRL's own transforms after this
    one: they do not expect the None of unfinished episodes.

    Args:
        relabel: ``"all"`` episodes or ``"none"``. Default: ``"all"``.
        strategy: ``"future"`` (the paper), ``"final"``, or a function like those of
            :mod:`torchrl_glam.replay.strategies`. Default: ``"future"``.
        goals_per_transition: most goals of a transition, drawn at random; the other rows come with
            ``is_context`` set, for the n-step windows of these. Default: None, all.
        seed: of the generator that draws them. Default: 0.
        capacity: of the replay buffer, to refuse a larger batch. Default: None, no check.
        reward_scale: reward of a relabelled step that misses its goal, and of one that reaches it;
            the environment's must lie between. Default: ``(0.0, 1.0)``.
        goal_key, kind_key: goal pursued, and its kind. Default: ``"goal_tokens"``, ``"goal_kind"``.
        goal_entries: others that say it, if they exist. Default: ``("goal", "goal_id")``.
        hindsight_key: group to leave out of the rows. Default: ``"hindsight"``.
        hindsight_goal_key, hindsight_kind_key: under ``"next"``, goals named after a step ``[*B,
            H, ...]`` and their kinds ``[*B, H]``, -1 in empty slots. Default: ``("hindsight",
            "goal_tokens")``, ``("hindsight", "kind")``.
        is_hindsight_key, is_context_key: written. Default: ``"is_hindsight"``, ``"is_context"``.
        reward_key, done_key, terminated_key, truncated_key: under ``"next"``. Default: these names.
        trajectory_key: integers ``[*B]``, -1 for none. Default: ``("collector", "traj_ids")``.

    Raises:
        ValueError: on settings out of range, and on a batch that is not as said above or has padded
            rows, which changes nothing.
        KeyError: on missing entries, saying who should write them.

    Examples:
        >>> done = torch.tensor([[[False], [True]]])  # one environment, an episode of two steps
        >>> named = {"goal_tokens": torch.tensor([[[[7]], [[0]]]])}  # a goal after the first one
        >>> named["kind"] = torch.tensor([[[0], [-1]]])
        >>> following = {"done": done, "terminated": done, "reward": torch.zeros(1, 2, 1)}
        >>> goal = {"goal_tokens": torch.tensor([[[5], [5]]]), "goal_kind": torch.tensor([[0, 0]])}
        >>> steps = TensorDict(goal | {"next": following | {"hindsight": named}}, [1, 2])
        >>> rows = HindsightTransform().inv(steps)
        >>> rows["goal_tokens"].flatten(), rows["next", "reward"].flatten()
        (tensor([5, 5, 7]), tensor([0., 0., 1.]))
    """

    # read by ReplayBuffer(shared=True): the pending steps live in this process only
    requires_shared_write_state = True

    def __init__(
        self,
        relabel: Literal["all", "none"] = "all",
        *,
        strategy: Literal["future", "final"] | Strategy = "future",
        goals_per_transition: int | None = None,
        seed: int = 0,
        capacity: int | None = None,
        reward_scale: tuple[float, float] = (0.0, 1.0),
        goal_key: NestedKey = "goal_tokens",
        kind_key: NestedKey = "goal_kind",
        goal_entries: Sequence[NestedKey] = ("goal", "goal_id"),
        hindsight_key: NestedKey = "hindsight",
        hindsight_goal_key: NestedKey = ("hindsight", "goal_tokens"),
        hindsight_kind_key: NestedKey = ("hindsight", "kind"),
        is_hindsight_key: NestedKey = "is_hindsight",
        is_context_key: NestedKey = "is_context",
        reward_key: NestedKey = "reward",
        done_key: NestedKey = "done",
        terminated_key: NestedKey = "terminated",
        truncated_key: NestedKey = "truncated",
        trajectory_key: NestedKey = ("collector", "traj_ids"),
    ) -> None:
        super().__init__()
        if relabel not in ("all", "none"):
            raise ValueError(f'relabel ({relabel!r}) must be "all" or "none".')
        if not callable(strategy) and strategy not in [*STRATEGIES]:
            raise ValueError(f"strategy ({strategy!r}) must be in {[*STRATEGIES]}, or a function.")
        if goals_per_transition is not None and goals_per_transition < 1:
            raise ValueError(
                f"goals_per_transition ({goals_per_transition}) must be at least 1; "
                'relabel="none" goes without hindsight.'
            )
        if (
            np.shape(reward_scale) != (2,)
            or not -math.inf < reward_scale[0] < reward_scale[1] < math.inf
        ):
            raise ValueError(
                f"reward_scale ({reward_scale}) must be two finite numbers: the reward of a step "
                "that does not reach its goal, and a larger one of a step that does."
            )
        self.relabel = relabel
        self.strategy = strategy
        self._copies_of = strategy if callable(strategy) else STRATEGIES[strategy]
        self.goals_per_transition = goals_per_transition
        self._rng = torch.Generator().manual_seed(seed)
        self.capacity = capacity
        self.reward_scale = tuple(reward_scale)
        self.goal_key = unravel_key(goal_key)
        self.kind_key = unravel_key(kind_key)
        self.hindsight_goal_key = under_next(hindsight_goal_key)
        self.hindsight_kind_key = under_next(hindsight_kind_key)
        self.is_hindsight_key = is_hindsight_key
        self.is_context_key = is_context_key
        ends = (done_key, terminated_key, truncated_key)
        self.reward_key = under_next(reward_key)
        self.done_key, self.terminated_key, self.truncated_key = map(under_next, ends)
        self.trajectory_key = unravel_key(trajectory_key)
        self._left_out = [hindsight_key, under_next(hindsight_key), *ends]
        # the entries that are read, with who writes them
        tokenizer = "the environment's text and the TokenizeText transform"
        needed = (self.kind_key, self.reward_key, self.done_key, self.terminated_key)
        self._writers = {self.goal_key: tokenizer, **dict.fromkeys(needed, "the environment")}
        # by which entry of the goals named each entry of the pursued one is replaced
        self._replaced: dict[NestedKey, NestedKey] = {}
        if relabel != "none":
            self._writers[self.hindsight_goal_key] = f"the social partner, through {tokenizer},"
            self._writers[self.hindsight_kind_key] = "the environment's social partner"
            self._replaced = {unravel_key(k): under_next((hindsight_key, k)) for k in goal_entries}
            self._replaced[self.goal_key] = self.hindsight_goal_key
            self._replaced[self.kind_key] = self.hindsight_kind_key
        self._given: frozenset[NestedKey] = frozenset()  # entries of the last batch
        self._log = StepLog()
        self._num_envs: int | None = None  # where rows stand for environments

    @property
    def pending(self) -> int:
        """Number of steps gathered, over all environments, whose episodes have not ended."""
        return self._log.alive().shape[0]

    def clear(self) -> None:
        """Forgets the pending steps. Call it when the environments are reset in mid-episode."""
        self._log.clear()
        self._num_envs = None

    def forget(self, trajectories: torch.Tensor) -> int:
        """Drops the pending steps of trajectories that nobody continues; returns how many."""
        return self._log.drop(trajectories)

    def clone(self) -> "HindsightTransform":
        """A transform with the same settings and a copy of the pending steps and generator."""
        clone = super().clone()
        clone._log, clone._rng = StepLog(), torch.Generator()
        clone.set_extra_state(self.get_extra_state())
        return clone

    def get_extra_state(self) -> dict[str, Any]:
        """The pending steps and the generator's state, for ``state_dict``."""
        own = {"generator": self._rng.get_state(), "num_envs": self._num_envs}
        return {**self._log.state_dict(), **own}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`get_extra_state` returned."""
        state = dict(state)
        self._rng.set_state(state.pop("generator").cpu())
        self._num_envs = state.pop("num_envs")
        self._log.load_state_dict(state)

    def __repr__(self) -> str:
        names = ("relabel", "strategy", "goals_per_transition", "reward_scale")
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({settings})"

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        _checks.check_in_buffer(self)
        _checks.check_entries(tensordict, self._writers)
        num_envs, drawn_from = self._num_envs, self._rng.get_state()
        self._gather(tensordict)
        episodes = self._log.finished()
        if episodes is None:
            return None
        try:
            rows = self._rows_of(episodes)
        except BaseException:
            self._log.take_back()
            self._num_envs = num_envs
            self._rng.set_state(drawn_from)
            raise
        self._log.forget(episodes.slots)
        return rows

    def _gather(self, batch: TensorDictBase) -> None:
        """Adds a batch's steps to the pending ones."""
        done = batch.get(self.done_key).reshape(-1)
        track, counted = trajectories(batch, self.trajectory_key, done)
        num_envs = batch.shape[0] if batch.get(self.trajectory_key, None) is None else None
        if None not in (self._num_envs, num_envs) and num_envs != self._num_envs:
            raise ValueError(
                f"The data holds {num_envs} environments and earlier calls held {self._num_envs}: "
                "use one transform per collector, or clear() it, which forgets the pending steps."
            )
        entries = dict(batch.items(True, True))
        if self._given != entries.keys():
            self._find_entries(batch)
            _checks.warn_of_strings(batch)
        steps = {
            key: entries[key].to(done.device).flatten(0, batch.ndim - 1)
            for key in (*self._emitted, *self._goals)
        }
        if counted is not None:
            steps = {key: value[counted] for key, value in steps.items()}
            track, done = track[counted], done[counted]
        if self.relabel != "none":
            _checks.check_rewards(steps[self.reward_key], self.reward_scale)
            kinds = steps[self.hindsight_kind_key]
            for named, places in self._goals.items():
                for key in places:
                    _checks.check_named(steps[key], steps[named], kinds, key, named)
        self._log.append(steps, track, done)
        self._num_envs = num_envs

    def _find_entries(self, batch: TensorDictBase) -> None:
        """Finds the entries that rows hold, and the goals named, each with those it replaces.

        Where the goal named is not given, the entry that it would replace is left out.
        """
        self._given = frozenset(batch.keys(True, True))
        stale = [key for key, named in self._replaced.items() if named not in self._given]
        left_out = [*self._left_out, *self._replaced.values(), *stale, *map(under_next, stale)]
        self._emitted = list(batch.exclude(*left_out).keys(True, True))
        self._goals: dict[NestedKey, list[NestedKey]] = {}
        for key, named in self._replaced.items():
            if places := [place for place in (key, under_next(key)) if place in self._emitted]:
                self._goals.setdefault(named, []).extend(places)

    def _rows_of(self, episodes: Episodes) -> TensorDictBase:
        """Rows [M] of finished episodes, and of their copies under the goals they reached."""
        slots, episode, spans = episodes
        steps = self._log.steps
        pursued = steps[self.goal_key].index_select(0, slots)
        _checks.check_same_goal(pursued, spans.first, self.goal_key)
        if self.relabel == "none":
            _checks.check_capacity(slots.shape[0], self.capacity)
            return self._copy(slots, slots.shape[0])
        filled = steps[self.hindsight_kind_key].index_select(0, slots) >= 0
        step, slot = filled.nonzero(as_tuple=True)
        goals = steps[self.hindsight_goal_key][slots[step], slot].to(pursued.dtype)
        other = _checks.rows_differ(goals, pursued[step])
        step, slot = step[other], slot[other]
        named = named_goals(spans, episode[step], step, goals[other])
        copies = self._copies_of(named, spans)
        source = named.source[copies.goal]
        return self._relabel(slots, copies, (slots[step[source]], slot[source]))

    def _relabel(
        self, slots: torch.Tensor, copies: Copies, named_at: tuple[torch.Tensor, torch.Tensor]
    ) -> TensorDictBase:
        """Rows of episodes, whose steps are in these slots of the log [R], and of copies of parts.

        ``named_at`` says where the log has the goal of each copy: step and slot, each int64 [C].
        """
        low, high = self.reward_scale
        spans = Spans(copies.first, copies.last)
        copy, place = spans.places()
        begin, repeated = slots.shape[0], slots[place]
        total = begin + repeated.shape[0]
        is_context = None
        if self.goals_per_transition is not None:
            is_context = torch.zeros(total, dtype=torch.bool, device=slots.device)
            is_context[begin:] = ~draw_from_each(repeated, self.goals_per_transition, self._rng)
            total -= int(is_context.sum())
        _checks.check_capacity(total, self.capacity)
        rows = self._copy(torch.cat([slots, repeated]), begin)
        for key, replaced in self._goals.items():
            values = self._log.steps[key][named_at].index_select(0, copy)
            for entry in map(rows.get, replaced):
                entry[begin:] = values.to(entry.dtype)
        last = begin + spans.lengths.cumsum(0) - 1  # the rows that reach their goals
        for key, before, then in (
            (self.reward_key, low, high),
            (self.done_key, False, True),
            (self.terminated_key, False, True),
            (self.truncated_key, False, False),
        ):
            entry = rows.get(key, None)  # truncated need not exist
            if entry is not None:
                entry[begin:], entry[last] = before, then
        return rows if is_context is None else rows.set(self.is_context_key, is_context)

    def _copy(self, slots: torch.Tensor, begin: int) -> TensorDict:
        """Rows [M] of the steps in these slots, int64 [M], hindsight from the row ``begin`` on."""
        steps = self._log.steps
        rows = TensorDict(
            {key: steps[key].index_select(0, slots) for key in self._emitted},
            batch_size=slots.shape,
            device=slots.device,
        )
        is_hindsight = torch.arange(slots.shape[0], device=slots.device) >= begin
        return rows.set(self.is_hindsight_key, is_hindsight)
