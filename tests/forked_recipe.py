"""Runs of recipes that start at once: each is a fork of a process that has imported them.

A run with ``ranks``, further overrides of each of its processes, is what torchrun would start: its
process is torchrun's agent, and "rank <r> is process <id>" stands in the log.
"""

import multiprocessing
import os
import runpy
import sys
import uuid
from contextlib import nullcontext
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from pretend_card import PretendCard
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

TESTS = Path(__file__).parent
RECIPES = TESTS.parent / "recipes"


@cache
def forks():
    """Makes the process that runs are forks of, one for all tests of this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["imported_recipes"])
    paths = filter(None, [str(TESTS), str(RECIPES), os.environ.get("PYTHONPATH")])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


class Recipe:
    """A recipe of the folder ``recipes``, ready to be run, one run at a time."""

    def __init__(self, name: str) -> None:
        self._path, self._folder = str(RECIPES / name), TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"

    @property
    def said(self) -> str:
        """What the newest run wrote, so far."""
        return self._log.read_text()

    def start(self, *overrides, ranks=None, card=False) -> int:
        """Begins a run and returns its process id; see the module."""
        given = (self._path, [*map(str, overrides)], self._log, ranks, card)
        self._process = forks().Process(target=_run, args=given)
        self._process.start()
        return self._process.pid

    def wait(self) -> int:
        """Waits for the run to end; returns its exit status, or minus the signal that ended it."""
        self._process.join()
        return self._process.exitcode

    def run(self, *overrides, **how) -> int:
        """Begins a run and waits for its end; arguments are those of :meth:`start`."""
        self.start(*overrides, **how)
        return self.wait()

    def succeed(self, *overrides, **how) -> None:
        """Runs without an error; arguments are those of :meth:`start`."""
        assert self.run(*overrides, **how) == 0, self.said


def _run(recipe, overrides, log, ranks, card) -> None:
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    multiprocessing.set_start_method("fork", force=True)  # of the processes of environments
    if ranks is not None:
        _launch(recipe, overrides, ranks)
    else:
        with PretendCard() if card else nullcontext():
            _play(recipe, overrides)


def _play(recipe: str, overrides: list[str]) -> None:
    sys.argv = [recipe, *overrides]
    runpy.run_path(recipe, run_name="__main__")


def _launch(recipe: str, overrides: list[str], ranks: list[list[str]]) -> None:
    """Does what torchrun does, but that processes are forks."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(ranks),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
        shutdown_timeout=12,  # a fork whose agent was stopped waits for it in vain
    )
    elastic_launch(config, _play_as_rank)(recipe, overrides, ranks)


def _play_as_rank(recipe: str, overrides: list[str], ranks: list[list[str]]) -> None:
    rank = int(os.environ["RANK"])
    os.write(1, f"rank {rank} is process {os.getpid()}\n".encode())
    _play(recipe, [*overrides, *ranks[rank]])
