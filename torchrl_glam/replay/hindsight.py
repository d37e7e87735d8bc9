"""Hindsight relabelling with the goals that a social partner names.

Notation: *B batch size of a collector's tensordict, K steps in it, H slots for named goals, R steps
of the finished episodes, S relabelled segments, M rows let out, Tg tokens of a goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torchrl.envs.transforms import Transform

from torchrl_glam.replay._checks import (
    check_capacity,
    check_entries,
    check_named,
    check_rewards,
    check_same_goal,
    check_scale,
    check_strategy,
    rows_differ,
)
from torchrl_glam.replay._collected import check_order, mask_key, trajectories
from torchrl_glam.replay._episodes import Episodes, StepLog
from torchrl_glam.replay._layout import Layout, under_next
from torchrl_glam.replay._strategies import (
    Namings,
    choose,
    draw_from_each,
    namings,
    relabelled_spans,
    without_success,
    write_ends,
)


class HindsightTransform(Transform):
    """Lets finished episodes into a replay buffer, with copies under the goals they reached.

    Works on ``extend``. It gathers a trajectory's steps, in any split into calls; until the episode
    ends, nothing is stored. Then it lets out rows [M]: the episode as it was and, for every goal
    that the social partner named after step t, the steps up to t once more under that goal, reached
    there (SAC-GLAM, Gaven et al., 2024, section 2.3; :mod:`torchrl_glam.replay` has
    the others). Each is a run of rows up to its ``("next", "done")``, marked ``is_hindsight``.

    Rows hold what came in but the ``"hindsight"`` entries and the root's ends. Every entry that
    says which goal is pursued, at the root and under ``"next"``, is replaced by the one of its name
    in ``"hindsight"``; where that does not exist, it is left out of all rows.

    Trajectories are told apart by the numbers that collectors write; without them, row i of a batch
    [N, T] goes on where row i of the last one ended. Those that a reset cuts off without ``done``
    never get in, and a warning says so. In a ``Compose``, put TorchRL's own transforms, which do
    not expect the None of unfinished episodes, after this one.

    Args:
        relabel: ``"all"`` episodes (the paper), ``"failed"`` ones, whose last reward is that of a
            step that reaches nothing, or ``"none"``. Default: ``"all"``.
        strategy: ``"future"`` (the paper), ``"final"`` or ``"episode"``. Default: ``"future"``.
        goals_per_episode: most goals of an episode, drawn at random. Default: None, all.
        goals_per_transition: most goals of a transition; rows that were not drawn are let out with
            ``is_context`` set, for the windows of others. Default: None, all.
        seed: of the generator that draws both of these. Default: 0.
        capacity: of the replay buffer, to refuse a larger batch. Default: None, no check.
        naming: goals are named once an episode (``"first"``) or after ``"every"`` step that reaches
            them, which the "episode" strategy needs. Default: ``"first"``.
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
        trajectory_key: integers ``[*B]``, -1 for none, and a ``"mask"`` beside it. Default:
            ``("collector", "traj_ids")``.
        step_count_key: steps since the last reset, to find missing ones. Default: None, no check.

    Raises:
        ValueError: on settings out of range, and on a batch that is not as said above, which
            changes nothing.
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

    ENV_ERR = (
        "HindsightTransform relabels finished episodes, so it works in replay buffers only: pass "
        "it to ReplayBuffer(transform=...) instead of an environment."
    )
    # read by ReplayBuffer(shared=True): the pending steps live in this process only
    requires_shared_write_state = True

    def __init__(
        self,
        relabel: Literal["all", "failed", "none"] = "all",
        *,
        strategy: Literal["future", "final", "episode"] = "future",
        goals_per_episode: int | None = None,
        goals_per_transition: int | None = None,
        seed: int = 0,
        capacity: int | None = None,
        naming: Literal["first", "every"] = "first",
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
        step_count_key: NestedKey | None = None,
    ) -> None:
        super().__init__()
        check_strategy(relabel, strategy, goals_per_episode, goals_per_transition, naming)
        check_scale(reward_scale)
        self.relabel = relabel
        self.strategy = strategy
        self.goals_per_episode = goals_per_episode
        self.goals_per_transition = goals_per_transition
        self._rng = torch.Generator().manual_seed(seed)
        self.capacity = capacity
        self.reward_scale = tuple(reward_scale)
        self.goal_key = unravel_key(goal_key)
        self.kind_key = unravel_key(kind_key)
        self.hindsight_key = hindsight_key
        self.hindsight_goal_key = under_next(hindsight_goal_key)
        self.hindsight_kind_key = under_next(hindsight_kind_key)
        self.is_hindsight_key = is_hindsight_key
        self.is_context_key = is_context_key
        self.reward_key = under_next(reward_key)
        self.done_key = under_next(done_key)
        self.terminated_key = under_next(terminated_key)
        self.truncated_key = under_next(truncated_key)
        self.trajectory_key = unravel_key(trajectory_key)
        self.step_count_key = step_count_key
        ends, mask = (done_key, terminated_key, truncated_key), mask_key(trajectory_key)
        self._left_out = [hindsight_key, under_next(hindsight_key), *ends, *filter(None, [mask])]
        # by which entry of the goals named each entry of the pursued one is replaced
        self._replaced: dict[NestedKey, NestedKey] = {}
        if relabel != "none":
            self._replaced = {
                **{unravel_key(k): under_next((hindsight_key, k)) for k in goal_entries},
                self.goal_key: self.hindsight_goal_key,
                self.kind_key: self.hindsight_kind_key,
            }
        # the entries it reads, with who writes them
        tokenizer, env = "the environment's text and the TokenizeText transform", "the environment"
        self._writers = {self.goal_key: tokenizer, self.kind_key: env, self.reward_key: env}
        self._writers |= {self.done_key: env, self.terminated_key: env}
        if relabel != "none":
            self._writers[self.hindsight_goal_key] = f"the social partner, through {tokenizer},"
            self._writers[self.hindsight_kind_key] = "the environment's social partner"
        if step_count_key is not None:
            self._writers[step_count_key] = "a StepCounter transform in the environment"
        self._layout: Layout | None = None
        self._log = StepLog()
        self._num_envs: int | None = None  # where rows stand for environments

    @property
    def pending(self) -> int:
        """Number of steps gathered, over all environments, whose episodes have not ended."""
        return self._log.pending

    def clear(self) -> None:
        """Forgets the pending steps: to be called when the environments are reset midway."""
        self._log.clear()
        self._num_envs = None

    def forget(self, trajectories: torch.Tensor) -> int:
        """Drops the pending steps of trajectories that nobody goes on with; returns how many."""
        return self._log.drop(trajectories)

    def cut_off(self) -> TensorDictBase | None:
        """Lets the pending steps out, their episodes ended as by a time limit: nothing gets lost.

        To be called when the environments will not go on with them.

        Returns:
            Rows [M], as they would go into the buffer, or None if nothing is pending.
        """
        if not self.pending:
            return None
        if self._layout is None:  # restored, and not called since
            self._layout = Layout.of(self._log.steps.keys(), self._left_out, self._replaced)
        self._log.end_all(self.done_key, self.truncated_key)
        rows = self._let_out(self._log.finished())
        self.clear()
        return rows

    def clone(self) -> HindsightTransform:
        """A transform with the same settings and a copy of the pending steps and generator."""
        clone = super().clone()
        clone._log, clone._rng = StepLog(), torch.Generator()
        clone.set_extra_state(self.get_extra_state())
        return clone

    def get_extra_state(self) -> dict[str, Any]:
        """The pending steps and the generator's state, for ``state_dict``."""
        own = {"generator": self._rng.get_state(), "num_envs": self._num_envs}
        return self._log.state_dict() | own

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`get_extra_state` returned."""
        state = dict(state)
        self._rng.set_state(state.pop("generator").cpu())
        self._num_envs = state.pop("num_envs")
        self._log.load_state_dict(state)

    def __repr__(self) -> str:
        limits = ("goals_per_episode", "goals_per_transition")
        names = ("relabel", "strategy", *limits, "reward_scale")
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({settings})"

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        raise ValueError(self.ENV_ERR)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        if self.parent is not None:
            raise ValueError(self.ENV_ERR)
        check_entries(tensordict, self._writers)
        drawn_from = self._rng.get_state()
        self._log.begin()
        try:
            self._gather(tensordict)
            episodes = self._log.finished()
            rows = None if episodes is None else self._let_out(episodes)
        except BaseException:
            self._log.take_back()
            self._rng.set_state(drawn_from)
            raise
        if episodes is not None:
            self._log.forget(episodes.slots)
        return rows

    def _gather(self, batch: TensorDictBase) -> None:
        """Adds a batch's steps to the pending ones."""
        done = batch.get(self.done_key).reshape(-1)
        track, counted = trajectories(batch, self.trajectory_key, done)
        num_envs = batch.shape[0] if batch.get(self.trajectory_key, None) is None else None
        if None not in (self._num_envs, num_envs) and num_envs != self._num_envs:
            raise ValueError(
                f"The data holds {num_envs} environments and earlier calls held {self._num_envs}, "
                "so steps cannot be told apart. Use one replay buffer transform per collector, or "
                "clear() it first, which forgets the pending steps."
            )
        entries = dict(batch.items(True, True))
        if self._layout is None or self._layout.given != entries.keys():
            self._layout = Layout.of(entries, self._left_out, self._replaced)
        steps = {
            key: entries[key].to(done.device).flatten(0, batch.ndim - 1)
            for key in self._layout.gathered
        }
        if counted is not None:
            steps = {key: value[counted] for key, value in steps.items()}
            track, done = track[counted], done[counted]
        if self.relabel != "none":
            check_rewards(steps[self.reward_key], self.reward_scale)
            kinds = steps[self.hindsight_kind_key]
            for named, places in self._layout.goals.items():
                for key in places:
                    check_named(steps[key], steps[named], kinds, key, named)
        self._log.append(steps, track, done)
        if self.step_count_key is not None:
            step_count = batch.get(self.step_count_key)
            check_order(step_count, counted, self._log.places(), batch.shape)
        self._num_envs = num_envs

    def _let_out(self, episodes: Episodes) -> TensorDictBase:
        """Makes rows of finished episodes."""
        slots, episode, spans = episodes
        steps = self._log.steps
        pursued = steps[self.goal_key].index_select(0, slots)
        check_same_goal(pursued, spans.first, self.goal_key)
        if self.relabel == "none":
            return self._copy(slots, slots.shape[0])
        filled = steps[self.hindsight_kind_key].index_select(0, slots) >= 0
        if self.relabel == "failed":
            end = steps[self.reward_key][slots[spans.last]]
            filled &= without_success(end, self.reward_scale)[episode].unsqueeze(-1)
        step, slot = filled.nonzero(as_tuple=True)
        named = steps[self.hindsight_goal_key][slots[step], slot].to(pursued.dtype)
        other = rows_differ(named, pursued[step])
        step, slot, named = step[other], slot[other], named[other]
        found = namings(spans, episode[step], step, named)
        limit = self.goals_per_episode
        chosen = choose(found, spans.first.shape[0], self.strategy, limit, self._rng)
        named_at, slot = slots[chosen.place], slot[chosen.source]
        goals = {key: steps[key][named_at, slot] for key in self._layout.goals}
        return self._relabel(episodes, chosen, goals)

    def _relabel(
        self, episodes: Episodes, found: Namings, goals: dict[NestedKey, torch.Tensor]
    ) -> TensorDictBase:
        """Copies episodes and, under the goals that they reached, parts of them out of the log.

        Args:
            episodes: What the log finished.
            found: The goals they reached, S of them.
            goals: Their entries, [S].
        """
        spans, goal, num_reached = relabelled_spans(
            found, episodes.spans, unreached=self.strategy == "episode"
        )
        span, place = spans.places()
        goal = goal[span]
        begin, copies = episodes.slots.shape[0], episodes.slots[place]
        total = begin + copies.shape[0]
        is_context = None
        if self.goals_per_transition is not None:
            is_context = torch.zeros(total, dtype=torch.bool, device=copies.device)
            is_context[begin:] = ~draw_from_each(copies, self.goals_per_transition, self._rng)
            total -= int(is_context.sum())
        check_capacity(total, self.capacity)
        rows = self._copy(torch.cat([episodes.slots, copies]), begin)
        for key, entries in self._layout.goals.items():
            values = goals[key].index_select(0, goal)
            for replaced in entries:
                entry = rows.get(replaced)
                entry[begin:] = values.to(entry.dtype)
        last = begin + spans.lengths.cumsum(0) - 1
        ends = (self.done_key, self.terminated_key, self.truncated_key)
        write_ends(rows, begin, last, num_reached, self.reward_scale, self.reward_key, *ends)
        return rows if is_context is None else rows.set(self.is_context_key, is_context)

    def _copy(self, slots: torch.Tensor, begin: int) -> TensorDict:
        """Rows [M] of the steps in these slots, int64 [M], hindsight from the row ``begin`` on."""
        steps = self._log.steps
        rows = TensorDict(
            {key: steps[key].index_select(0, slots) for key in self._layout.let_out},
            batch_size=slots.shape,
            device=slots.device,
        )
        is_hindsight = torch.arange(slots.shape[0], device=slots.device) >= begin
        return rows.set(self.is_hindsight_key, is_hindsight)
