"""Hindsight relabelling with the goals that a social partner names.

Notation: N environments, T steps of a collector batch, H slots for named goals, R rows of the
finished episodes, S relabelled segments, M rows let out, Tg tokens of a goal.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torchrl.envs.transforms import Transform

from torchrl_glam.replay.checks import (
    check_capacity,
    check_steps,
    check_strategy,
    check_widths,
)
from torchrl_glam.replay.episodes import Spans, StepRing
from torchrl_glam.replay.strategies import (
    draw_from_each,
    named_last,
    relabelled_spans,
    write_ends,
)


def _under_next(key: NestedKey) -> NestedKey:
    return unravel_key(("next", key))


class HindsightTransform(Transform):
    """Lets finished episodes into a replay buffer, with copies under the goals they reached.

    A replay-buffer transform that works on ``extend``. It gathers each environment's steps until
    the episode ends. Then it lets out the episode as it was and, for every goal that the social
    partner named after step t, the steps 0..t once more under that goal, with reward 1 and
    ``terminated`` at t and 0 before (SAC-GLAM, Gaven et al., 2024, section 2.3; the "future"
    strategy with all goals named, Appendix E). If the same goal was named before, after step s,
    these are the steps s + 1..t: step s has reached it, so no reward of 0 would be true there.
    While no episode has ended there is nothing to store, and ``extend`` stores nothing.

    Other strategies are those of Hindsight Experience Replay (Andrychowicz et al., 2017, section
    4.5), in which each transition is replayed with goals reached in its episode:

    - ``"future"``: every step with the goals named after it or after a later one, as above.
    - ``"final"``: every step with the goal reached at the end. A partner does not name a goal
      after every step, so the end is the last step after which any goal but the pursued one was
      named; only the goals named then are used.
    - ``"episode"``: every step with the goals named anywhere in the episode: as "future" and, for
      a goal that is not named again after step t, the steps from t + 1 to the episode's end too,
      where this goal is not reached: reward 0, and at the end ``truncated``, or ``terminated``
      if the episode ended in a terminal state without reward.

    Of the pairs that a strategy gives, all are used, or at most ``goals_per_episode`` goals of an
    episode, or at most ``goals_per_transition`` goals with each of its transitions (the k of
    Andrychowicz et al.), drawn at random without replacement. In the last case whole segments are
    still let out, because n-step returns need the steps that follow; rows that were not drawn
    have ``is_context`` set, and
    :class:`~torchrl_glam.replay.SegmentMultiStepTransform` drops them.

    Reads batches as collectors give them, [N, T] with any T, in any split into calls:

    - ``goal_tokens`` [N, T, Tg] and ``goal_kind`` [N, T], the goal pursued and its kind;
    - ``("next", "hindsight", "goal_tokens")`` [N, T, H, Tg] and ``("next", "hindsight", "kind")``
      [N, T, H]: the goals named after the step and their kinds, -1 marking an empty slot. The goal
      pursued is never relabelled, even if it is named;
    - ``("next", "reward")``, ``("next", "done")``, ``("next", "terminated")`` and, if there,
      ``("next", "truncated")``, all [N, T, 1].

    Lets out rows [M], first all episodes, then all relabelled segments; each is a run of
    consecutive rows that ends with ``("next", "done")``. They hold what came in without the
    ``"hindsight"`` entries and without the root's ends, which are of the step before and always
    False, plus ``is_hindsight`` bool [M]; goal and kind are replaced under ``"next"`` too, where
    they are present.

    TorchRL's :class:`~torchrl.data.HERReplayBuffer` relabels when it samples, and for one step
    with one achieved goal. It is not used here because it cannot be followed by n-step returns,
    leaves ``terminated`` False on relabelled successes, and knows no social partner.

    Pending steps are part of ``state_dict``, so a replay buffer's checkpoint contains them. In a
    :class:`~torchrl.envs.transforms.Compose`, inverse transforms run from last to first and
    TorchRL's own do not expect the ``None`` that this one returns while no episode has ended: put
    them after it in the list, where they run before it.

    Args:
        relabel: ``"all"``: every episode (the paper). ``"failed"``: episodes whose last reward is
            not positive. ``"none"``: no hindsight; the hindsight entries need not exist. Defaults
            to ``"all"``.
        strategy: ``"future"`` (the paper), ``"final"`` or ``"episode"``, see above. Defaults to
            ``"future"``.
        goals_per_episode: Most goals of an episode to relabel with, at least 1. Defaults to None,
            all of them (the paper).
        goals_per_transition: Most goals to relabel a transition with, at least 1; not together
            with ``goals_per_episode``. Defaults to None, all of them (the paper).
        seed: Of the generator that these two draw from, whose state is part of ``state_dict``.
            Defaults to 0.
        capacity: Capacity of the replay buffer, to refuse a batch that is larger before anything
            is written. Defaults to None, no check.
        goal_key: The goal pursued. Defaults to ``"goal_tokens"``.
        kind_key: Its kind. Defaults to ``"goal_kind"``.
        hindsight_key: The group of entries to leave out of the rows. Defaults to ``"hindsight"``.
        hindsight_goal_key: Goals named, under ``"next"``. Defaults to
            ``("hindsight", "goal_tokens")``.
        hindsight_kind_key: Their kinds, under ``"next"``. Defaults to ``("hindsight", "kind")``.
        is_hindsight_key: Entry to write. Defaults to ``"is_hindsight"``.
        is_context_key: Entry to write with ``goals_per_transition``. Defaults to
            ``"is_context"``.
        reward_key: Reward, under ``"next"``. Defaults to ``"reward"``.
        done_key: End of episode, under ``"next"``. Defaults to ``"done"``.
        terminated_key: Terminal state, under ``"next"``. Defaults to ``"terminated"``.
        truncated_key: Time-out, under ``"next"``. Defaults to ``"truncated"``.
        step_count_key: Steps made since the last reset, [N, T, 1] or [N, T], as
            :class:`~torchrl.envs.transforms.StepCounter` writes them; when given, steps that are
            missing, repeated or follow an unseen reset are found. Defaults to None, no check.

    Raises:
        ValueError: on settings out of range, on data that is not [N, T], has another number of
            environments than before or steps out of order, on goals of unequal width, on more rows
            than ``capacity``, and when used in an environment.
        KeyError: on missing entries, saying who should write them.

    Examples:
        >>> from tensordict import TensorDict
        >>> def steps(goal, named, done):  # one environment, goals of one token, one slot
        ...     named = torch.tensor(named).view(1, -1, 1)
        ...     done = torch.tensor(done).view(1, -1, 1)
        ...     return TensorDict(
        ...         {
        ...             "goal_tokens": torch.full_like(named, goal),
        ...             "goal_kind": torch.zeros_like(named[..., 0]),
        ...             "next": {
        ...                 "hindsight": {
        ...                     "goal_tokens": named.unsqueeze(-1),
        ...                     "kind": named.sign() - 1,
        ...                 },
        ...                 "reward": torch.zeros(done.shape),
        ...                 "done": done,
        ...                 "terminated": torch.zeros_like(done),
        ...             },
        ...         },
        ...         batch_size=[1, done.shape[1]],
        ...     )
        >>> transform = HindsightTransform()
        >>> transform.inv(steps(goal=5, named=[0, 7], done=[False, False])) is None
        True
        >>> rows = transform.inv(steps(goal=5, named=[0], done=[True]))
        >>> rows["goal_tokens"].flatten(), rows["is_hindsight"]
        (tensor([5, 5, 5, 7, 7]), tensor([False, False, False,  True,  True]))
        >>> rows["next", "reward"].flatten(), rows["next", "terminated"].flatten()
        (tensor([0., 0., 0., 0., 1.]), tensor([False, False, False, False,  True]))
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
        goal_key: NestedKey = "goal_tokens",
        kind_key: NestedKey = "goal_kind",
        hindsight_key: NestedKey = "hindsight",
        hindsight_goal_key: NestedKey = ("hindsight", "goal_tokens"),
        hindsight_kind_key: NestedKey = ("hindsight", "kind"),
        is_hindsight_key: NestedKey = "is_hindsight",
        is_context_key: NestedKey = "is_context",
        reward_key: NestedKey = "reward",
        done_key: NestedKey = "done",
        terminated_key: NestedKey = "terminated",
        truncated_key: NestedKey = "truncated",
        step_count_key: NestedKey | None = None,
    ) -> None:
        super().__init__()
        check_strategy(relabel, strategy, goals_per_episode, goals_per_transition)
        self.relabel = relabel
        self.strategy = strategy
        self.goals_per_episode = goals_per_episode
        self.goals_per_transition = goals_per_transition
        self._rng = torch.Generator().manual_seed(seed)
        self.capacity = capacity
        self.goal_key = unravel_key(goal_key)
        self.kind_key = unravel_key(kind_key)
        self.hindsight_key = hindsight_key
        self.hindsight_goal_key = _under_next(hindsight_goal_key)
        self.hindsight_kind_key = _under_next(hindsight_kind_key)
        self.is_hindsight_key = is_hindsight_key
        self.is_context_key = is_context_key
        self.reward_key = _under_next(reward_key)
        self.done_key = _under_next(done_key)
        self.terminated_key = _under_next(terminated_key)
        self.truncated_key = _under_next(truncated_key)
        self.step_count_key = step_count_key
        self._left_out = [
            *(hindsight_key, _under_next(hindsight_key)),
            *(done_key, terminated_key, truncated_key),
        ]
        self._ring = StepRing()

    @property
    def pending(self) -> int:
        """Number of steps gathered, over all environments, whose episodes have not ended."""
        return self._ring.pending

    def clear(self) -> None:
        """Forgets the pending steps: to be called when the environments are reset midway."""
        self._ring.clear()

    def clone(self) -> HindsightTransform:
        """A transform with the same settings and a copy of the pending steps and generator."""
        clone = super().clone()
        clone._ring, clone._rng = StepRing(), torch.Generator()
        clone.set_extra_state(self.get_extra_state())
        return clone

    def get_extra_state(self) -> dict[str, Any]:
        """The pending steps and the generator's state, for ``state_dict``."""
        return self._ring.state_dict() | {"generator": self._rng.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores the pending steps and the generator's state."""
        state = dict(state)
        self._rng.set_state(state.pop("generator").cpu())
        self._ring.load_state_dict(state)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        raise ValueError(self.ENV_ERR)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        if self.parent is not None:
            raise ValueError(self.ENV_ERR)
        check_steps(tensordict, self._required())
        if self.relabel != "none":
            check_widths(tensordict, self.goal_key, self.hindsight_goal_key)
        episodes = self._gather(tensordict)
        if not episodes.env.numel():
            return None
        episode, time = episodes.steps()
        rows = self._ring.rows(episodes.env[episode], time)
        step, goals, kinds = self._named(rows, episode, episodes)
        named_in, named_at = episode[step], time[step]
        spans, goal, reached = relabelled_spans(
            episodes, named_in, named_at, goals, unreached=self.strategy == "episode"
        )
        chosen = self._choose(named_in, named_at, episodes.env.shape[0])[goal]
        segments = Spans(*(field[chosen] for field in spans))
        goal, reached = goal[chosen], reached[chosen]
        return self._emit(rows, segments, goals[goal], kinds[goal], reached)

    def _choose(self, episode: torch.Tensor, time: torch.Tensor, num_episodes: int) -> torch.Tensor:
        """Says which of the goals named in these episodes at these times are used, bool [S]."""
        chosen = torch.ones_like(episode, dtype=torch.bool)
        if self.strategy == "final":
            chosen = named_last(episode, time, num_episodes)
        if self.goals_per_episode is not None:
            candidates = chosen.nonzero().squeeze(-1)
            chosen = torch.zeros_like(chosen)
            chosen[candidates] = draw_from_each(
                episode[candidates], self.goals_per_episode, self._rng
            )
        return chosen

    def _named(
        self, rows: torch.Tensor, episode: torch.Tensor, episodes: Spans
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Finds the goals that finished episodes can be relabelled with.

        Args:
            rows: Place in the ring of every step of the finished episodes, [R].
            episode: Index in ``episodes`` of every such step, [R].
            episodes: The finished episodes.

        Returns:
            For each goal: the index in ``rows`` of the step after which it was named, [S], its
            tokens, [S, Tg], and its kind, [S].
        """
        flat = self._ring.flat
        pursued = flat(self.goal_key)
        if self.relabel == "none":
            return rows[:0], pursued[:0], flat(self.kind_key)[:0]
        kind = flat(self.hindsight_kind_key).index_select(0, rows)
        named = kind >= 0
        if self.relabel == "failed":
            end = self._ring.rows(episodes.env, episodes.last)
            failed = flat(self.reward_key)[end].reshape(end.shape) <= 0
            named &= failed[episode].unsqueeze(-1)
        step, slot = named.nonzero(as_tuple=True)
        goals = flat(self.hindsight_goal_key)[rows[step], slot]
        other = (goals != pursued[rows[step]]).any(-1)
        step, slot = step[other], slot[other]
        return step, goals[other], kind[step, slot]

    def _emit(
        self,
        rows: torch.Tensor,
        segments: Spans,
        goals: torch.Tensor,
        kinds: torch.Tensor,
        reached: torch.Tensor,
    ) -> TensorDictBase:
        """Copies episodes and relabelled segments out of the ring.

        Args:
            rows: Place in the ring of every step of the finished episodes, [R].
            segments: The steps to repeat for each goal, S spans.
            goals: Their goals, [S, Tg].
            kinds: The kinds of these, [S].
            reached: Whether the last step of each reaches its goal, bool [S].

        Returns:
            Rows [M], the episodes first.
        """
        segment, time = segments.steps()
        copies = self._ring.rows(segments.env[segment], time)
        begin, total = rows.shape[0], rows.shape[0] + copies.shape[0]
        is_context = torch.zeros(total, dtype=torch.bool, device=copies.device)
        if self.goals_per_transition is not None:
            is_context[begin:] = ~draw_from_each(copies, self.goals_per_transition, self._rng)
        check_capacity(total - int(is_context.sum()), self.capacity)
        picked = torch.cat([rows, copies])
        out = TensorDict(
            {
                key: self._ring.flat(key).index_select(0, picked)
                for key in self._ring.steps
                if key not in (self.hindsight_goal_key, self.hindsight_kind_key)
            },
            batch_size=[total],
            device=picked.device,
        )
        for key, value in ((self.goal_key, goals), (self.kind_key, kinds)):
            for place in (key, _under_next(key)):
                if out.get(place, None) is not None:
                    out.get(place)[begin:] = value[segment].to(out.get(place).dtype)
        ends = (self.done_key, self.terminated_key, self.truncated_key)
        last = begin + segments.lengths.cumsum(0) - 1
        write_ends(out, begin, last, reached, self.reward_key, *ends)
        if self.goals_per_transition is not None:
            out.set(self.is_context_key, is_context)
        is_hindsight = torch.arange(total, device=picked.device) >= begin
        return out.set(self.is_hindsight_key, is_hindsight)

    def _gather(self, batch: TensorDictBase) -> Spans:
        """Adds steps to the pending ones and returns the episodes that ended."""
        done = batch.get(self.done_key).reshape(batch.shape)
        step_count = None
        if self.step_count_key is not None:
            step_count = batch.get(self.step_count_key).reshape(batch.shape)
        both = [self.hindsight_goal_key, self.hindsight_kind_key]
        steps = dict(batch.exclude(*self._left_out, *both).items(True, True))
        if self.relabel != "none":
            steps |= {key: batch.get(key) for key in both}
        return self._ring.append(steps, done, step_count)

    def _required(self) -> dict[NestedKey, str]:
        """Entries the transform reads, with who writes them."""
        tokenizer = "the environment's text and the TokenizeText transform"
        keys = {
            self.goal_key: tokenizer,
            self.kind_key: "the environment",
            self.reward_key: "the environment",
            self.done_key: "the environment",
            self.terminated_key: "the environment",
        }
        if self.relabel != "none":
            keys[self.hindsight_goal_key] = f"the social partner, through {tokenizer},"
            keys[self.hindsight_kind_key] = "the environment's social partner"
        if self.step_count_key is not None:
            keys[self.step_count_key] = "a StepCounter transform in the environment"
        return keys
