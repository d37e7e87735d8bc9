"""Runs that are killed or run out of disk, and resume.

``pytest tests/recipes/test_faults.py --kills 100`` kills more often than the default 8.
"""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from forked_recipe import Recipe
from run_metrics import metrics

pytestmark = pytest.mark.slow

STEPS_PER_KILL = 40
SMALL = (
    "num_envs=8 batch_size=16 num_updates=2 update_every=8 warmup_updates=2 log_every=40 "
    "eval_every=160 eval_episodes=4 critic_hidden_sizes=[16] loggers=[] capacity=600 "
    "checkpoint_every=16 device=cpu"
).split()


@pytest.fixture(scope="module")
def recipe():
    with Recipe() as recipe:
        yield recipe


@pytest.fixture(scope="module")
def arguments(request):
    """A short run: long enough to be killed as often as asked for before it ends."""
    return [*SMALL, f"total_steps={STEPS_PER_KILL * request.config.getoption('kills')}"]


@pytest.fixture(scope="module")
def unbroken(recipe, arguments, tmp_path_factory):
    """The metrics of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("unbroken")
    recipe.succeed(*arguments, f"output={folder / 'run'}", log=folder / "log")
    return metrics(folder / "run")


def checkpoints(run):
    return sorted((run / "checkpoints").glob("step-*"))


def beginning(run):
    """How a run is started or resumed, be it killed before its first checkpoint."""
    return f"resume={run}" if (run / "config.yaml").exists() else f"output={run}"


def newest_step(run):
    found = checkpoints(run)
    return int(found[-1].name.removeprefix("step-")) if found else 0


def wait_until_saved(run, step):
    """Waits until the run has saved a checkpoint of this step; it is given a minute."""
    deadline = time.monotonic() + 60
    while newest_step(run) < step and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_run_killed_at_random_moments_ends_with_the_same_metrics(
    recipe, arguments, unbroken, tmp_path, request
):
    wanted, moments = request.config.getoption("kills"), random.Random(0)
    run, log = tmp_path / "run", tmp_path / "log"
    for _ in range(wanted):
        process = recipe.start(*arguments, beginning(run), log=log)
        # while it starts, or some steps later, in the middle of one or of a checkpoint
        if moments.random() > 0.2:
            wait_until_saved(run, newest_step(run) + moments.uniform(1, STEPS_PER_KILL / 3))
        time.sleep(moments.uniform(0, 0.3))
        os.kill(process, signal.SIGKILL)
        assert recipe.wait() == -signal.SIGKILL, log.read_text()
    recipe.succeed(*arguments, beginning(run), log=log)
    assert metrics(run) == unbroken


class SmallDisk:
    """A file system of its own where that is allowed, else a limit on the size of files.

    Both end a run's checkpoint with an OSError of the system; the file system is more like the
    accident, as the first checkpoint still fits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.mounted = self._mount("-t", "tmpfs", "-o", "size=32m", "tmpfs")

    def _mount(self, *arguments) -> bool:
        command = ["mount", *arguments, str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0

    @property
    def file_size(self) -> int | None:
        return None if self.mounted else 2**20

    def enlarge(self) -> None:
        if self.mounted:
            assert self._mount("-o", "remount,size=256m")

    def remove(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path):
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.remove()


def test_a_full_disk_costs_nothing_that_was_saved(recipe, arguments, unbroken, disk, tmp_path):
    run, log = disk.path / "run", tmp_path / "log"
    ended = recipe.run(*arguments, f"output={run}", log=log, file_size=disk.file_size)
    assert ended == 1
    message = log.read_text()
    assert "cannot write" in message and "is untouched" in message
    assert bool(checkpoints(run)) == disk.mounted
    disk.enlarge()
    recipe.succeed(*arguments, beginning(run), log=log)
    assert metrics(run) == unbroken
