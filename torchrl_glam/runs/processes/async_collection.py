"""Collectors at work while the learner learns: whose batch is next, how old it may be, who is lost.

The *version* of some weights is how many updates they have had, and the *lag* of a batch how many
more the learner has made when it takes it.
"""

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_glam.replay import number_trajectories, unfinished_trajectories
from torchrl_glam.runs.processes.ray_pool import RayPool, WorkerLost
from torchrl_glam.runs.records.statistics import policy_lag

logger = logging.getLogger(__name__)

_MOST_LOST = 3  # collectors in a row


@dataclass
class _Place:
    """A collector that works, and what is known of it."""

    number: int
    worker: Any
    task: Hashable
    since: float
    where: str = "which did not start"
    version: int | None = None  # of the weights it collects with; None while it starts
    unfinished: Tensor | None = None  # trajectories of its last batch that go on
    lost_in_a_row: int = 0  # collectors of this place, since it last gave a batch


class AsyncCollectors:
    """Batches of collectors that work apart from the learner, in the order in which they come.

    A collector begins its next batch, with the newest weights, when its last one is taken. A batch
    is passed over for an older one that would otherwise exceed ``max_policy_lag``.

    A collector that is lost, or does not answer in time, is replaced by another, and its unfinished
    episodes are dropped. A place where three are lost in a row, without a batch, stays empty.

    Args:
        pool: starts them; it, or another with the same methods.
        updates_per_batch: most updates that the learner makes between two batches.
        max_policy_lag: largest lag of a batch; at least ``updates_per_batch`` for each collector.
        timeout: seconds that a collector may take to start, or for a batch. Default: 300.
        forget: drops the steps of trajectories that a lost collector leaves unfinished, as
            :meth:`~torchrl_glam.replay.HindsightTransform.forget` does.
    """

    def __init__(
        self,
        pool: RayPool,
        *,
        updates_per_batch: int,
        max_policy_lag: int,
        forget: Callable[[Tensor], int],
        timeout: float = 300.0,
    ) -> None:
        self._pool = pool
        self._updates_per_batch, self._max_policy_lag = updates_per_batch, max_policy_lag
        self._timeout, self._forget = timeout, forget
        self._places: list[_Place] = []
        self._weights, self._version = None, None
        self._started, self._lost = 0, 0  # collectors, over the whole run
        self._lags: list[int] = []  # of the batches since the last summary

    def __enter__(self) -> "AsyncCollectors":
        """Starts the collectors, without waiting for them."""
        self._places = [self._start() for _ in range(self._pool.num_collectors)]
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()

    def publish(self, weights: TensorDictBase, version: int) -> None:
        """Gives the weights with which collectors begin their next batches."""
        if version != self._version:
            self._weights, self._version = self._pool.share(weights), version

    def next(self) -> TensorDictBase:
        """The next batch, its trajectories numbered, with its version as ``"recorded_at"``.

        Raises:
            ConnectionError: if all collectors are lost.
        """
        while self._places:
            place = self._wait()
            if place is None:
                continue
            try:
                result = self._pool.result(place.task)
            except WorkerLost as error:
                self._replace(place, str(error))
                continue
            version = place.version
            place.task = self._pool.collect(place.worker, self._weights)
            place.version = self._version
            place.since = time.monotonic()
            if version is not None:
                return self._taken(place, result, version)
            place.where = result
            logger.info("Collector %s works in %s", place.number, place.where)
        raise ConnectionError(
            f"all collectors are lost, {self._lost} of them, though others took their places: "
            "nothing more can be collected. What ended them is said above; resume the run once it "
            "is mended"
        )

    def summary(self) -> dict[str, float]:
        """Lag of the batches since the last summary, collectors at work, and how many were lost."""
        out = policy_lag(-torch.tensor(self._lags), 0, "collected") if self._lags else {}
        self._lags.clear()
        return out | {"collectors": len(self._places), "collectors_lost": self._lost}

    def state_dict(self) -> dict[str, int]:
        """What a resumed run must know: whoever starts then has another number."""
        return {"started": self._started, "lost": self._lost}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restores what :meth:`state_dict` returned; before the collectors start."""
        self._started, self._lost = state["started"], state["lost"]

    def _start(self, lost_in_a_row: int = 0) -> _Place:
        number = self._started
        self._started += 1
        worker, task = self._pool.start(number)
        return _Place(number, worker, task, time.monotonic(), lost_in_a_row=lost_in_a_row)

    def _wait(self) -> _Place | None:
        """A place whose task is done, the oldest batch first; None if someone was given up."""
        allowed = [place for place in self._places if self._may_be_next(place)]
        allowed.sort(key=lambda place: -1 if place.version is None else place.version)
        oldest = min(place.since for place in allowed)
        left = max(0.0, oldest + self._timeout - time.monotonic())
        done = set(self._pool.wait([place.task for place in allowed], left))
        for place in allowed:
            if place.task in done:
                return place
        for place in allowed:
            if place.since + self._timeout <= time.monotonic():
                doing = "start" if place.version is None else "give a batch"
                self._replace(place, f"it did not {doing} in {self._timeout:g} seconds")
        return None

    def _may_be_next(self, chosen: _Place) -> bool:
        """Whether the others can wait: none is too old then, if they are taken oldest first."""
        if chosen.version is None:
            return True
        others = (place for place in self._places if place is not chosen)
        versions = sorted(place.version for place in others if place.version is not None)
        return all(
            self._version + turn * self._updates_per_batch - version <= self._max_policy_lag
            for turn, version in enumerate(versions, start=1)
        )

    def _replace(self, place: _Place, why: str) -> None:
        self._pool.kill(place.worker)
        dropped = 0 if place.unfinished is None else self._forget(place.unfinished)
        self._lost += 1
        at, lost = self._places.index(place), place.lost_in_a_row + 1
        if lost < _MOST_LOST:
            self._places[at] = self._start(lost)
            follows = f"collector {self._places[at].number} takes its place"
        else:
            del self._places[at]
            follows = (
                f"its place stays empty, as {lost} were lost there without a batch in between; "
                f"{len(self._places)} of {self._pool.num_collectors} are left"
            )
        logger.warning(
            "Collector %s (%s) is lost: %s. %s steps of its unfinished episodes are dropped; %s",
            *(place.number, place.where, why, dropped, follows),
        )

    def _taken(self, place: _Place, batch: TensorDictBase, version: int) -> TensorDictBase:
        place.lost_in_a_row = 0
        number_trajectories(batch, place.number)
        place.unfinished = unfinished_trajectories(batch)
        self._lags.append(self._version - version)
        versions = torch.full(batch.shape, version, dtype=torch.int32, device=batch.device)
        return batch.set("recorded_at", versions)
