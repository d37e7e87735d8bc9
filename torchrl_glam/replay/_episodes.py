"""Gathers steps until their episodes end, whatever order the trajectories come in.

Notation: K steps of one call, S slots of the log, R steps of finished episodes, E such episodes.
"""

import warnings
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey

from torchrl_glam.replay._checks import check_same_entries
from torchrl_glam.replay.strategies import Spans

_SMALLEST_LOG = 64
_GROWTH = 4  # slots for each pending step: the more, the seldomer pending steps are moved
_PATIENCE = 256  # calls; more than a slow worker of an asynchronous collector may lag behind


class Episodes(NamedTuple):
    """Finished episodes, whose R steps stand in one line, episode by episode."""

    slots: torch.Tensor  # where in the log each step is, int64 [R]
    episode: torch.Tensor  # of each step, int64 [R]
    spans: Spans  # places of each episode's steps in the line, E spans


class StepLog:
    """Steps of unfinished episodes, in the order in which they came.

    An episode is what a trajectory holds up to a ``done``; after it the trajectory begins another.
    New steps are written behind the others; when the log is full, those that are still pending move
    to its front, or into one four times their number, so a call costs what its own steps cost.
    Entries are plain tensors, {key: [S, ...]}: for a few dozen steps a call, most of a tensordict's
    cost is in handling its nesting.

    A trajectory that nothing was added to in 256 calls has been cut by a reset. It is forgotten,
    with a warning.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all steps."""
        self.steps: dict[NestedKey, torch.Tensor] = {}  # each [S, ...]
        self.length = 0  # slots in use
        self._track = torch.empty(0, dtype=torch.int64)  # [S], -1 for steps let out
        self._done = torch.empty(0, dtype=torch.bool)  # [S]
        self._begin = 0  # slot of this call's first step
        self._calls, self._heard = 0, 0  # since trajectories were last looked through; slot then

    def append(
        self, steps: dict[NestedKey, torch.Tensor], track: torch.Tensor, done: torch.Tensor
    ) -> None:
        """Adds the steps of a call, entries [K, ...], in the order of time within a trajectory.

        ``track`` is the trajectory of each step, int64 [K], at least 0, and ``done`` whether its
        episode ends there, bool [K].
        """
        if self.steps:
            check_same_entries(steps, self.steps)
        self._make_room(steps, track)
        self._begin, end = self.length, self.length + track.shape[0]
        for key, value in steps.items():
            self.steps[key][self._begin : end] = value
        self._track[self._begin : end], self._done[self._begin : end] = track, done
        self.length = end

    def finished(self) -> Episodes | None:
        """Finds the episodes that this call's steps ended, in the order of these steps."""
        ends = self._done[self._begin : self.length].nonzero().squeeze(-1) + self._begin
        if not ends.numel():
            return None
        track = self._track[: self.length]
        line = torch.isin(track, track[ends]).nonzero().squeeze(-1)
        line = line[track[line].argsort(stable=True)]  # by trajectory, in order of time
        closes = self._done[line]
        closes[:-1] |= track[line[1:]] != track[line[:-1]]
        closes[-1:] = True
        last = line[closes][closes.cumsum(0) - closes.long()]  # where the episode of a step ends
        ended = self._done[last]  # what trajectories go on with after an end stays
        last, order = last[ended].sort(stable=True)
        _, episode, lengths = last.unique_consecutive(return_inverse=True, return_counts=True)
        after = lengths.cumsum(0)
        return Episodes(line[ended][order], episode, Spans(after - lengths, after - 1))

    def take_back(self) -> None:
        """Removes this call's steps."""
        self.length = self._begin

    def forget(self, slots: torch.Tensor) -> None:
        """Lets steps go, int64 [R]; they can be read until the next call."""
        self._track[slots] = -1

    def drop(self, track: torch.Tensor) -> int:
        """Lets the pending steps of these trajectories go; returns their number."""
        held = self._track[: self.length]
        dropped = torch.isin(held, track.to(held))
        held[dropped] = -1
        return int(dropped.sum())

    def alive(self) -> torch.Tensor:
        """The slots of pending steps, int64."""
        return (self._track[: self.length] >= 0).nonzero().squeeze(-1)

    def _make_room(self, steps: dict[NestedKey, torch.Tensor], track: torch.Tensor) -> None:
        """Moves pending steps into a new log, so that more steps fit."""
        if self._track.device != track.device:  # new, or restored on another device
            self._track, self._done = self._track.to(track.device), self._done.to(track.device)
            self.steps = {key: value.to(track.device) for key, value in self.steps.items()}
        self._calls += 1
        if self._calls > _PATIENCE:
            self._forget_unheard()
        if self.steps and self.length + track.shape[0] <= self._track.shape[0]:
            return
        kept = self.alive()
        size = max(_GROWTH * (kept.shape[0] + track.shape[0]), _SMALLEST_LOG)
        self._heard = int((kept < self._heard).sum())
        self._begin = self.length = kept.shape[0]
        self.steps = {
            key: _moved(self.steps.get(key, x[:0]), kept, size) for key, x in steps.items()
        }
        self._track, self._done = (_moved(x, kept, size) for x in (self._track, self._done))

    def _forget_unheard(self) -> None:
        """Lets trajectories go that nothing was added to since this was last done."""
        track = self._track[: self.length]
        old = (track >= 0) & ~torch.isin(track, track[self._heard :])
        self._calls, self._heard = 0, self.length
        if old.any():
            warnings.warn(
                f"{int(old.sum())} steps of {track[old].unique().numel()} trajectories that never "
                f"ended are left out, as nothing was added to them in {_PATIENCE} calls. To keep "
                "what a reset cuts off: set_truncated=True in TorchRL's collectors.",
                stacklevel=2,
            )
            track[old] = -1

    def state_dict(self) -> dict[str, Any]:
        """Pending steps as dictionaries of tensors, independent of the log's memory."""
        kept = self.alive()
        if not kept.numel():
            return {}
        steps = {key: value.index_select(0, kept) for key, value in self.steps.items()}
        return {"track": self._track[kept], "steps": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned."""
        self.clear()
        if not state:
            return
        self._track = state["track"].clone()
        self._done = torch.zeros_like(self._track, dtype=torch.bool)
        self._begin = self.length = self._track.shape[0]
        self.steps = {key: value.clone() for key, value in state["steps"].items()}


def _moved(x: torch.Tensor, kept: torch.Tensor, size: int) -> torch.Tensor:
    """The rows ``kept`` of an entry, at the front of a new one of ``size`` rows."""
    out = x.new_empty((size, *x.shape[1:]))
    out[: kept.shape[0]] = x.index_select(0, kept)
    return out
