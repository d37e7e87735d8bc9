"""Collectors in processes that Ray starts, on this machine or on others.

Worker processes import this module, so it imports little.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchrl_glam._extras import needs

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # a run is nobody's business
    "RAY_worker_niceness": "0",  # by default workers get 3 % of a core that another process wants
}


def import_ray() -> Any:
    """The module ``ray``; raises ModuleNotFoundError if there is none, saying how to install it."""
    with needs("ray", "Collecting apart from learning"):
        import ray
    return ray


class WorkerLost(Exception):
    """A collector's process has ended, or cannot be reached; says how."""


class CollectorWorker:
    """A collector in a process of its own."""

    def start(self, make_collector: Callable[[int], Iterable], number: int) -> str:
        """Makes it, and says where it is."""
        self._collector = make_collector(number)
        self._batches = iter(self._collector)
        return f"process {os.getpid()} on {socket.gethostname()}"

    def collect(self, weights: TensorDictBase) -> TensorDictBase:
        """A batch made with these weights; the policy's others stay what they are."""
        self._collector.update_policy_weights_(weights)
        return next(self._batches).cpu()


class RayPool:
    """Starts collectors with Ray, and carries weights and batches.

    What a collector is asked for is a *task*; it works on one at a time. ``start`` returns a
    collector and a task that results in its place, in words; ``collect`` a task that results in
    a batch made with some weights; ``wait`` the tasks that are done, once one is, or none after so
    many seconds; ``result`` what a task gave, or raises :class:`WorkerLost` or the task's error.

    Args:
        make_collector: makes the collector of a number, in its own process. It is pickled, and what
            it imports must be installed where it runs.
        num_collectors: how many work at a time.
        address: of a Ray cluster that runs, ``"auto"`` for this machine's. Default: None, which
            starts Ray on this machine and ends it with the pool.
        num_cpus, num_gpus: that Ray sets aside for each. Defaults: 1 and 0.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if there is no cluster at the address.
    """

    def __init__(
        self,
        make_collector: Callable[[int], Iterable],
        num_collectors: int,
        address: str | None = None,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
    ) -> None:
        self._ray, self.num_collectors = import_ray(), num_collectors
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        # As many CPUs as collectors want, even if there are fewer: then they share those.
        num = math.ceil(num_cpus * num_collectors)
        own = {"address": "local", "num_cpus": num, "include_dashboard": False}
        quiet = {"logging_level": "error", "log_to_driver": False}
        try:
            self._ray.init(**(own if address is None else {"address": address}), **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConnectionError(f"ray_address ({address}): Ray says: {error}") from error
        self._make = self._ray.put(make_collector)
        self._worker = self._ray.remote(num_cpus=num_cpus, num_gpus=num_gpus)(CollectorWorker)

    def start(self, number: int) -> tuple[Any, Any]:
        worker = self._worker.remote()
        return worker, worker.start.remote(self._make, number)

    def share(self, weights: TensorDictBase) -> Any:
        return self._ray.put(weights)

    def collect(self, worker: Any, weights: Any) -> Any:
        return worker.collect.remote(weights)

    def wait(self, tasks: Sequence[Any], seconds: float) -> Sequence[Any]:
        limit = None if seconds == math.inf else seconds
        done, _ = self._ray.wait(list(tasks), timeout=limit)
        if done:
            done, _ = self._ray.wait(list(tasks), num_returns=len(tasks), timeout=0)
        return done

    def result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except errors.RayError as error:
            raise WorkerLost(str(error).splitlines()[0].strip(" .")) from error

    def kill(self, worker: Any) -> None:
        self._ray.kill(worker)

    def shutdown(self) -> None:
        self._ray.shutdown()
