"""Collectors in processes of Ray's, one of which is killed: what is stored is the reference's."""

import logging
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import Compose

from torchrl_glam.objectives import trainable_leaves
from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.runs.processes.async_collection import AsyncCollectors
from torchrl_glam.runs.processes.ray_pool import RayPool

from . import toy
from .toy_env import expected_rows, make_policy, make_toy_collector

N_STEPS, GAMMA, BATCHES, KILLED_AFTER = 2, 0.5, 24, 9


@pytest.fixture
def pool(monkeypatch):
    pytest.importorskip("ray", reason="ray is an extra, which is not installed")
    tests = Path(__file__).parents[1]  # where processes find the toys
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION", "0.02")
    pool = RayPool(make_toy_collector, 2)
    yield pool
    pool.shutdown()


@pytest.mark.slow
def test_rows_of_two_processes_and_the_successor_of_a_killed_one(pool, caplog):
    """And each batch is made with the weights that it says, of which only trained ones travel."""
    caplog.set_level(logging.INFO, logger="torchrl_glam")
    hindsight = HindsightTransform()
    transform = Compose(SegmentMultiStepTransform(N_STEPS, GAMMA), hindsight)
    collectors = AsyncCollectors(
        pool, updates_per_batch=1, max_policy_lag=4, timeout=120, forget=hindsight.forget
    )
    policy, data, rows, numbers = make_policy(-1), [], [], set()
    with collectors:
        while len(data) < BATCHES or 2 not in numbers:
            if len(data) >= BATCHES:
                time.sleep(2)  # the successor is still starting
            policy.module.action.data.fill_(len(data) % 5)
            collectors.publish(trainable_leaves(policy).data.cpu(), len(data))
            batch = collectors.next()
            assert (batch["action"] == batch["recorded_at"] % 5).all()
            assert (len(data) - batch["recorded_at"] <= 4).all()
            data.append(batch)
            numbers.add(int(batch["collector", "traj_ids"].max()) // 2**32)
            rows += toy.to_rows(transform.inv(batch.clone()))
            if len(data) == KILLED_AFTER:
                number = int(data[-1]["collector", "traj_ids"].max()) // 2**32
                told = rf"Collector {number} works in process (\d+) on"
                process = re.search(told, caplog.text)[1]
                os.kill(int(process), signal.SIGKILL)

        [warning] = [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
        assert f"Collector {number} (process {process} on " in warning.getMessage()
        summary = collectors.summary()
        assert (summary["collectors"], summary["collectors_lost"]) == (2, 1)
        assert numbers == {0, 1, 2}
        expected = expected_rows(data, n_steps=N_STEPS, gamma=GAMMA)
        assert len(expected) > 40
        assert toy.as_multiset(rows) == toy.as_multiset(expected)

        # what a collector raises is raised here, as it is: nobody is lost
        collectors.publish(TensorDict({"module": {"other": torch.zeros(())}}), len(data))
        with pytest.raises(KeyError, match="other"):
            for _ in range(4):
                collectors.next()
        assert collectors.summary()["collectors_lost"] == 1
    command = ["pgrep", "-P", str(os.getpid()), "raylet"]
    assert not subprocess.run(command, capture_output=True).stdout


def test_a_cluster_that_is_not_there_is_named(monkeypatch):
    pytest.importorskip("ray", reason="ray is an extra, which is not installed")
    with pytest.raises(ConnectionError, match=r"ray_address \(auto\): Ray says:"):
        RayPool(make_toy_collector, 1, "auto")
