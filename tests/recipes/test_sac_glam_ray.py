"""The recipe with collectors apart from the learner: whole, bereft, resumed, on Ray.

But for the last test, its collectors are in this process, where they can be lost at will.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_metrics import metrics, saved_steps

from torchrl_glam.models import load_agent
from torchrl_glam.runs.config import SACGLAMConfig, register
from torchrl_glam.runs.processes import ray_pool
from torchrl_glam.runs.processes.ray_pool import WorkerLost

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = (
    "num_envs=8 batch_size=32 num_updates=2 update_every=8 warmup_updates=2 log_every=80 "
    "eval_every=160 eval_episodes=4 critic_hidden_sizes=[16] loggers=[] "
    "capacity=1000 checkpoint_every=160 device=cpu"
).split()


class LocalPool:
    """Collectors in this process, that work when their batch is taken.

    Args:
        lost: how many batches a collector gives before it is lost, by its number; others stay.
    """

    lost, started = {}, []

    def __init__(self, make, num_collectors, address, num_cpus, num_gpus):
        self.num_collectors, self._make = num_collectors, make
        self._workers, self._given, self._tasks = {}, {}, []

    def start(self, number):
        self.started.append(number)
        return number, self.collect(number, None)

    def share(self, weights):
        return weights.clone()

    def collect(self, number, weights):
        self._tasks.append((number, weights))
        return len(self._tasks) - 1

    def wait(self, tasks, seconds):
        return tasks

    def result(self, task):
        number, weights = self._tasks[task]
        given = self._given.get(number, 0)
        if given >= self.lost.get(number, 10**9):
            raise WorkerLost("killed")
        if weights is None:
            self._workers[number] = ray_pool.CollectorWorker()
            return self._workers[number].start(self._make, number)
        self._given[number] = given + 1
        return self._workers[number].collect(weights)

    def kill(self, number):
        pass

    def shutdown(self):
        pass


@pytest.fixture
def run(here, monkeypatch):
    def with_plan(*overrides, pool=LocalPool, **plan):
        for name, value in {"lost": {}, "started": [], **plan}.items():
            monkeypatch.setattr(LocalPool, name, value)
        if pool is not None:
            monkeypatch.setattr(ray_pool, "RayPool", pool)
            monkeypatch.setattr(ray_pool, "import_ray", lambda: None)
        status, out, err = here("sac_glam_ray", *SMALL, *overrides)
        return status, out + err

    yield with_plan
    register("sac_glam", SACGLAMConfig, RECIPES / "config")  # which this recipe took the name of


def test_a_run_that_loses_a_collector_leaves_what_every_run_leaves(run, tmp_path):
    status, said = run("output=run", "total_steps=160", lost={1: 3})
    assert status == 0 and "Success after 160 steps" in said
    assert re.search(r"Collector 1 \(process \d+ on .*\) is lost: killed\. \d+ steps", said)
    assert "collector 2 takes its place" in said
    rows = metrics(tmp_path / "run")
    assert [int(row["step"]) for row in rows] == [0, 80, 160]
    last = rows[-1]
    assert (last["collectors"], last["collectors_lost"]) == ("2", "1")
    # Two batches are under way, each begun before the two updates with the other.
    assert float(last["policy_lag/collected/max"]) == 4.0
    assert 0 < float(last["learner_busy"]) <= 1
    assert float(last["hindsight_in_batch"]) == 0.5
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    assert load_agent(tmp_path / "run").card.num_actions == 5


def test_a_run_without_collectors_ends_with_a_checkpoint_that_others_go_on_from(run, tmp_path):
    status, said = run("output=run", "total_steps=320", lost={0: 6, 1: 6, 2: 0, 3: 0, 4: 0, 5: 0})
    assert status == 1
    assert "ConnectionError: all collectors are lost, 6 of them" in said
    assert re.search(r"The run ends by an error; saved as .*step-000000000096", said)
    assert saved_steps(tmp_path / "run") == [96]  # six batches of each, of eight steps

    numbers = []
    status, said = run("resume=run", "total_steps=160", "num_collectors=1", started=numbers)
    assert status == 0 and "Success after 160 steps" in said
    assert numbers == [6]
    rows = metrics(tmp_path / "run")
    assert [int(row["step"]) for row in rows] == [0, 80, 160]
    assert rows[-1]["collectors_lost"] == "6"
    # 17 rounds since the buffer held a batch, of two updates each
    assert float(rows[-1]["policy_lag/buffer/max"]) <= int(rows[-1]["updates"])


def test_without_ray_it_is_said_first_what_to_install(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    status, said = run("output=run", pool=None)
    assert status == 1
    assert "needs ray: pip install 'torchrl_glam[ray]'" in said.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_it_trains_on_ray_and_leaves_no_process_behind(tmp_path):
    pytest.importorskip("ray", reason="ray is an extra, which is not installed")
    small = {"OMP_NUM_THREADS": "1", "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.02"}
    command = [sys.executable, str(RECIPES / "sac_glam_ray.py"), *SMALL, "output=run"]
    result = subprocess.run(
        [*command, "total_steps=160", "lora_rank=2", "eval_every=0"],
        cwd=tmp_path,
        env=os.environ | small,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    last = metrics(tmp_path / "run")[-1]
    assert (last["step"], last["collectors"], last["collectors_lost"]) == ("160", "2", "0")
    assert 0 < float(last["policy_lag/collected/max"]) <= 8
    processes = re.findall(r"Collector \d works in process (\d+)", result.stdout)
    assert len(processes) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
