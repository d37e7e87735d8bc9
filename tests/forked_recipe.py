"""Runs of recipes that start at once: a process imports them, and every run is a fork of it.

Started by :class:`Recipe`; as a program it reads one run a line, {"recipe": path, "overrides":
[...], "log": path, "file_size": bytes or null, "ranks": [...] or null, "card": bool}, from its
input, and answers with the run's process id. The line after it, which is empty, asks it to wait,
and it answers how the run ended, in the numbers of ``os.waitstatus_to_exitcode``. Until then the
process id is the run's, even when that has ended.

A run with "ranks", further overrides of each of its processes, is what torchrun would start: the
process id is that of torchrun's agent, and "rank <r> is process <id>" stands in the log.
"""

import atexit
import copy
import importlib
import json
import multiprocessing
import os
import resource
import runpy
import subprocess
import sys
import uuid
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from hydra.core.config_store import ConfigStore
from pretend_card import PretendCard
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from torchrl_glam.models import load_language_model

RECIPES = Path(__file__).parents[1] / "recipes"
IMPORTED = ("sac_glam.py", "ppo_glam.py")


@cache
def server() -> subprocess.Popen:
    """The process that runs are forks of, one for all tests of this process."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    atexit.register(process.communicate)  # which ends its input, and so the process
    return process


class Recipe:
    """A recipe of the folder ``recipes``, ready to be run, one run at a time."""

    def __init__(self, name: str) -> None:
        self._path, self._process = str(RECIPES / name), server()

    def start(self, *overrides, log, file_size=None, ranks=None, card=False) -> int:
        """Begins a run and returns its process id; see the module."""
        run = {"recipe": self._path, "overrides": [str(o) for o in overrides], "log": str(log)}
        run |= {"file_size": file_size, "ranks": ranks, "card": card}
        self._process.stdin.write(json.dumps(run) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        """Waits for the run to end; returns its exit status, or minus the signal that ended it."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def run(self, *overrides, **how) -> int:
        """Begins a run and waits for its end; arguments are those of :meth:`start`."""
        self.start(*overrides, **how)
        return self.wait()

    def succeed(self, *overrides, log, **how) -> None:
        """Runs without an error; arguments are those of :meth:`start`."""
        assert self.run(*overrides, log=log, **how) == 0, Path(log).read_text()


def serve() -> None:
    """Forks a run for every line of the input."""
    sys.path.insert(0, str(RECIPES))  # where a script finds its neighbours
    store = ConfigStore.instance()
    known = copy.deepcopy(store.repo)
    for recipe in IMPORTED:
        runpy.run_path(str(RECIPES / recipe))  # for what it imports
    store.repo = known  # a run knows the keys of its own recipe
    load_language_model("tiny")  # and for what transformers imports then
    importlib.import_module("scipy.stats")  # as the first interval does
    multiprocessing.set_start_method("fork", force=True)  # of the processes of environments
    while line := sys.stdin.readline():
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            with open(run["log"], "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            if run["file_size"] is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (run["file_size"],) * 2)
            if run["ranks"] is not None:
                launch(run["recipe"], run["overrides"], run["ranks"])
            else:
                with PretendCard() if run["card"] else nullcontext():
                    play(run["recipe"], run["overrides"])
            sys.exit()
        print(child, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def play(recipe: str, overrides: list[str]) -> None:
    sys.argv = [recipe, *overrides]
    runpy.run_path(recipe, run_name="__main__")


def launch(recipe: str, overrides: list[str], ranks: list[list[str]]) -> None:
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
    elastic_launch(config, play_as_rank)(recipe, overrides, ranks)


def play_as_rank(recipe: str, overrides: list[str], ranks: list[list[str]]) -> None:
    rank = int(os.environ["RANK"])
    os.write(1, f"rank {rank} is process {os.getpid()}\n".encode())
    play(recipe, [*overrides, *ranks[rank]])


if __name__ == "__main__":
    serve()
