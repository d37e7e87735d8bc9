"""Runs of a recipe that start at once: a process imports it, and every run is a fork of it.

Started by :class:`Recipe`; as a program it reads one run a line, {"overrides": [...], "log": path,
"file_size": bytes or null}, from its input, and answers with the run's process id. The line after
it, which is empty, asks it to wait, and it answers how the run ended, in the numbers of
``os.waitstatus_to_exitcode``. Until then the process id is the run's, even when that has ended.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"


class Recipe:
    """A recipe, imported and ready to be run; a context manager.

    Args:
        name: its file in ``recipes``.
    """

    def __init__(self, name: str = "sac_glam.py") -> None:
        self._path = str(RECIPES / name)

    def __enter__(self) -> Recipe:
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *exception) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def start(self, *overrides, log, file_size=None) -> int:
        """Begins a run and returns its process id; ``file_size`` limits the files it can write."""
        run = {"overrides": [str(o) for o in overrides], "log": str(log), "file_size": file_size}
        self._process.stdin.write(json.dumps(run) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        """Waits for the run to end; returns its exit status, or minus the signal that ended it."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def run(self, *overrides, log, file_size=None) -> int:
        """Begins a run and waits for its end."""
        self.start(*overrides, log=log, file_size=file_size)
        return self.wait()


def serve(recipe: str) -> None:
    """Forks a run for every line of the input."""
    runpy.run_path(recipe)  # for what it imports
    while line := sys.stdin.readline():
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            with open(run["log"], "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            if run["file_size"] is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (run["file_size"],) * 2)
            sys.argv = [recipe, *run["overrides"]]
            runpy.run_path(recipe, run_name="__main__")
            sys.exit()
        print(child, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
