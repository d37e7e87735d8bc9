"""Gathers the steps of a vectorised environment until their episodes end.

Notation: N environments, T steps of one collector batch, L slots of the ring, E finished episodes.
Times count the steps every environment has made since the ring was created: the environments of a
collector move in lockstep, so one clock serves all, and an episode is (environment, first time,
last time), both ends included.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey

_SMALLEST_RING = 16


class Spans(NamedTuple):
    """Runs of consecutive steps, one per entry; every field has shape [E], int64."""

    env: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """Number of steps of each span, [E]."""
        return self.last - self.first + 1

    def steps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Enumerates the steps of all spans, one span after another.

        Returns:
            The span's index and the time of every step, both of shape [sum of lengths].

        Examples:
            >>> spans = Spans(torch.tensor([0, 3]), torch.tensor([5, 0]), torch.tensor([7, 0]))
            >>> spans.steps()
            (tensor([0, 0, 0, 1]), tensor([5, 6, 7, 0]))
        """
        lengths = self.lengths
        span = torch.repeat_interleave(lengths)
        offset = self.first - (lengths.cumsum(0) - lengths)
        return span, torch.arange(span.shape[0], device=span.device) + offset[span]


def finished_spans(done: torch.Tensor, first: torch.Tensor, clock: int) -> Spans:
    """Finds the episodes that end within a batch of steps.

    Args:
        done: Whether the episode ends with this step, bool [N, T].
        first: Time of the first step of the episode each environment is in, int64 [N].
        clock: Time of the batch's first column.

    Returns:
        The finished episodes, by environment and then by time.

    Examples:
        >>> done = torch.tensor([[False, True, True], [False, False, False]])
        >>> finished_spans(done, first=torch.tensor([7, 2]), clock=10)
        Spans(env=tensor([0, 0]), first=tensor([ 7, 12]), last=tensor([11, 12]))
    """
    env, column = done.nonzero(as_tuple=True)
    last = column + clock
    begin = first[env]
    same_env = env[1:] == env[:-1]
    begin[1:] = torch.where(same_env, last[:-1] + 1, begin[1:])
    return Spans(env, begin, last)


class StepRing:
    """Steps of unfinished episodes, for N environments that move in lockstep.

    The ring holds every step since the start of the oldest unfinished episode and doubles when
    that does not fit, so a call costs what its own steps cost, however long the episodes are.
    Entries are kept as plain tensors, {key: [N, L, ...]}: for a few dozen steps a call, most of a
    tensordict's cost is in handling its nesting.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all steps and the number of environments."""
        self.steps: dict[NestedKey, torch.Tensor] = {}  # each [N, L, ...]
        self.length = 0  # L
        self.first: torch.Tensor | None = None  # [N]
        self.clock = 0

    @property
    def pending(self) -> int:
        """Number of steps, over all environments, that belong to unfinished episodes."""
        return 0 if self.first is None else int((self.clock - self.first).sum())

    def append(
        self,
        steps: dict[NestedKey, torch.Tensor],
        done: torch.Tensor,
        step_count: torch.Tensor | None = None,
    ) -> Spans:
        """Adds a batch of steps and says which episodes they end.

        The steps of the episodes returned stay readable until the next call.

        Args:
            steps: Entries, each [N, T, ...], with the same keys in every call.
            done: Whether the episode ends with this step, bool [N, T].
            step_count: Place of each step in its episode, 0 for the first, integers [N, T]; None
                to do without this check.

        Returns:
            The finished episodes.

        Raises:
            ValueError: if the number of environments changed, or ``step_count`` is not what
                follows from the steps before. Nothing is added then.
            KeyError: if the entries changed. Nothing is added then.
        """
        self._check_layout(done.shape[0], steps.keys())
        if step_count is not None:
            self._check_order(step_count, done)
        num_envs, num_steps = done.shape
        if self.first is None:
            self.first = torch.zeros(num_envs, dtype=torch.int64, device=done.device)
        elif self.first.device != done.device:  # restored from a checkpoint on another device
            self.first = self.first.to(done.device)
            self.steps = {key: value.to(done.device) for key, value in self.steps.items()}
        self._make_room(steps, num_steps)
        slot = self.clock % self.length
        head = min(num_steps, self.length - slot)
        for key, value in steps.items():
            self.steps[key][:, slot : slot + head] = value[:, :head]
            self.steps[key][:, : num_steps - head] = value[:, head:]
        spans = finished_spans(done, self.first, self.clock)
        # an environment may end several episodes in one batch: the latest one counts
        self.first = self.first.scatter_reduce(0, spans.env, spans.last + 1, "amax")
        self.clock += num_steps
        return spans

    def rows(self, env: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Index in :meth:`flat` of the steps that environments ``env`` made at ``time``."""
        return env * self.length + time % self.length

    def flat(self, key: NestedKey) -> torch.Tensor:
        """All slots of an entry as one line, [N * L, ...], for :meth:`rows`; shares memory."""
        return self.steps[key].flatten(0, 1)

    def _make_room(self, steps: dict[NestedKey, torch.Tensor], num_steps: int) -> None:
        """Creates the ring, or enlarges it, so that ``num_steps`` more steps fit."""
        oldest = int(self.first.min())
        needed = self.clock - oldest + num_steps
        if needed <= self.length:
            return
        length = max(2 * needed, _SMALLEST_RING)
        ring = {k: x.new_zeros((x.shape[0], length, *x.shape[2:])) for k, x in steps.items()}
        for key, live in self._live(oldest).items():
            ring[key][:, : live.shape[1]] = live
        self.steps, self.length = ring, length
        self.first = self.first - oldest
        self.clock -= oldest

    def _live(self, oldest: int) -> dict[NestedKey, torch.Tensor]:
        """Copies of the steps since ``oldest`` in order of time, each [N, clock - oldest, ...]."""
        if self.clock == oldest:
            return {}
        slots = torch.arange(oldest, self.clock, device=self.first.device) % self.length
        return {key: value[:, slots] for key, value in self.steps.items()}

    def state_dict(self) -> dict[str, Any]:
        """Pending steps as dictionaries of tensors, independent of the ring's memory."""
        if self.first is None:
            return {}
        oldest = int(self.first.min())
        return {
            "first": self.first - oldest,
            "clock": self.clock - oldest,
            "steps": self._live(oldest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned."""
        self.clear()
        if not state:
            return
        self.first = state["first"].clone()
        self.clock = self.length = int(state["clock"])
        self.steps = {key: value.clone() for key, value in state["steps"].items()}

    def _check_layout(self, num_envs: int, given: KeysView[NestedKey]) -> None:
        """Refuses a batch that does not continue the steps gathered so far."""
        if self.first is not None and self.first.shape[0] != num_envs:
            raise ValueError(
                f"The data holds {num_envs} environments and earlier calls held "
                f"{self.first.shape[0]}, so steps cannot be told apart. Use one replay buffer "
                "transform per collector, or clear() it first, which forgets the pending steps."
            )
        held = self.steps.keys()
        if self.steps and held != given:
            raise KeyError(
                f"The data's entries changed between calls: {sorted(map(str, given - held))} are "
                f"new and {sorted(map(str, held - given))} are missing. Every call must bring the "
                "same entries."
            )

    def _check_order(self, step_count: torch.Tensor, done: torch.Tensor) -> None:
        """Refuses steps that are not where the steps before say they should be."""
        time = torch.arange(self.clock, self.clock + done.shape[1], device=done.device)
        first = done.new_zeros(done.shape[0], 1) if self.first is None else self.first[:, None]
        starts = torch.where(done[:, :-1], time[1:], 0)
        expected = time - torch.cat([first.to(time), starts], 1).cummax(1).values
        wrong = (step_count != expected).nonzero()
        if wrong.numel():
            env, column = wrong[0].tolist()
            raise ValueError(
                f"The step count of environment {env} is {step_count[env, column]} in column "
                f"{column}, where {expected[env, column]} was expected: steps are missing, "
                "repeated or out of order, or the environment was reset in mid-episode (then "
                "clear() the transform first)."
            )
