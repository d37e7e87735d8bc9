"""What is needed of whoever starts collectors elsewhere and carries what they collect."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class WorkerLost(Exception):
    """A collector's process has ended, or cannot be reached; says how."""


class Pool(Protocol):
    """Starts ``num_collectors`` collectors elsewhere, and carries weights and batches.

    What a collector is asked for is a *task*; it works on one at a time.
    """

    num_collectors: int

    def start(self, number: int) -> tuple[Any, Hashable]:
        """Starts a collector; returns it, and a task that results in its place, in words."""

    def share(self, weights: TensorDictBase) -> Any:
        """A copy of the weights, to be given to any number of collectors."""

    def collect(self, worker: Any, weights: Any) -> Hashable:
        """Asks for a batch made with these weights."""

    def wait(self, tasks: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """The tasks that are done, once one is, or none after so many seconds."""

    def result(self, task: Hashable) -> Any:
        """What a task gave. Raises :class:`WorkerLost`, or what the collector itself raised."""

    def kill(self, worker: Any) -> None:
        """Ends a collector, if it still runs."""

    def shutdown(self) -> None:
        """Ends all of them."""


def check_lag(max_policy_lag: int, num_collectors: int, updates_per_batch: int) -> None:
    """Raises ValueError for a bound that collectors cannot keep, see ``AsyncCollectors``."""
    least = num_collectors * updates_per_batch
    if max_policy_lag < least:
        raise ValueError(
            f"max_policy_lag ({max_policy_lag}) must be at least {least}: while the learner makes "
            f"{updates_per_batch} updates with the batch of each of {num_collectors} collectors, "
            "the others' batches get so much older"
        )
