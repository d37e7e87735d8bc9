"""Recipes in several processes, by torchrun's own agent: whole, stopped, killed, refused."""

import os
import re
import shutil
import signal
import time

import pytest
from forked_recipe import Recipe
from run_metrics import metrics, saved_steps
from tensordict import from_consolidated

pytestmark = pytest.mark.slow

TWO = [[], []]
SAC = [
    *("num_envs=8", "update_every=16", "batch_size=16", "num_updates=1", "warmup_updates=1"),
    *("log_every=80", "eval_every=80", "eval_episodes=4", "capacity=1000"),
    *("critic_hidden_sizes=[16]", "loggers=[]", "checkpoint_every=80", "device=cpu"),
]
SELDOM = ["eval_every=0", "eval_episodes=1", "checkpoint_every=16"]
PPO = [
    *("num_envs=8", "update_every=32", "batch_size=16", "num_epochs=1", "log_every=32"),
    *("eval_every=64", "eval_episodes=4", "critic_hidden_sizes=[16]", "loggers=[]"),
    *("checkpoint_every=32", "device=cpu", "hindsight=all"),
]


@pytest.fixture(scope="module")
def sac():
    return Recipe("sac_glam.py")


def stored(run, step):
    folder = run / "checkpoints" / f"step-{step:012d}"
    places = [folder, folder.parent / "process_1" / folder.name]
    return [len(from_consolidated(rows)) for at in places for rows in at.rglob("rows.tdc")]


@pytest.fixture(scope="module")
def unbroken(sac, tmp_path_factory):
    """The folder of a run that nothing happened to, and what it said."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    sac.succeed(*SAC, "total_steps=160", f"output={run}", ranks=TWO)
    return run, sac.said


def test_two_processes_leave_the_results_of_one_run(unbroken):
    run, said = unbroken
    rows = metrics(run)
    assert [int(row["step"]) for row in rows] == [0, 80, 160]
    assert 0 <= float(rows[-1]["eval/test/greedy/success"]) <= 1
    assert float(rows[-1]["hindsight_in_batch"]) == 0.5
    assert float(rows[-1]["buffer_size"]) == sum(stored(run, 160))
    assert sum(float(row["episodes"]) for row in rows[1:]) >= 16, "of 8 environments, not of 4"
    assert saved_steps(run) == [80, 160]
    assert said.count("Success after 160 steps") == 1, "one writer"


def test_two_processes_go_on_as_if_they_had_never_stopped(sac, unbroken, tmp_path):
    """From a copy of that run as if it had been stopped half-way."""
    run = tmp_path / "run"
    shutil.copytree(unbroken[0], run)
    for place in (run / "checkpoints", run / "checkpoints" / "process_1"):
        shutil.rmtree(place / "step-000000000160")
    sac.succeed(*SAC, "total_steps=160", f"resume={run}", ranks=TWO)
    assert metrics(run) == metrics(unbroken[0])


def test_ppo_trains_in_two_processes_and_resumes(tmp_path):
    run = tmp_path / "run"
    for steps, where in ((32, "output"), (64, "resume")):
        options = (f"total_steps={steps}", f"{where}={run}")
        Recipe("ppo_glam.py").succeed(*PPO, *options, ranks=TWO)
    rows = metrics(run)
    assert [int(row["step"]) for row in rows] == [0, 32, 64]
    assert all(int(row["updates"]) > 0 for row in rows[1:])


def begin(sac, run):
    """A run of two processes that has saved a checkpoint, its process ids: the agent's, theirs."""
    options = (*SAC, *SELDOM, "total_steps=80000", f"output={run}")
    agent = sac.start(*options, ranks=TWO)
    deadline = time.monotonic() + 300
    while not saved_steps(run):
        assert time.monotonic() < deadline, sac.said
        time.sleep(0.1)
    found = re.findall(r"rank (\d) is process (\d+)", sac.said)
    return agent, {int(rank): int(process) for rank, process in found}


def test_a_killed_process_ends_the_run_whose_last_checkpoint_resumes(sac, tmp_path):
    run = tmp_path / "run"
    _, processes = begin(sac, run)
    os.kill(processes[0], signal.SIGKILL)  # the one that writes
    assert sac.wait() != 0  # and comes back at all
    for process in processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    last = saved_steps(run)[-1]
    assert "another process of this run has ended" in sac.said
    options = [f"resume={run}", f"total_steps={last + 16}"]
    sac.succeed(*SAC, *SELDOM, *options, ranks=TWO)
    assert saved_steps(run)[-1] == last + 16


def test_a_signal_to_torchrun_stops_all_processes_after_the_same_round(sac, tmp_path):
    run = tmp_path / "run"
    agent, _ = begin(sac, run)
    os.kill(agent, signal.SIGTERM)
    assert sac.wait() != 0, "torchrun says that it was stopped"
    stopped = re.search(r"Stopped at step (\d+); resume with: --config-name", sac.said)
    assert stopped, sac.said
    assert saved_steps(run)[-1] == int(stopped[1])


GAMMA = r"gamma on process 1 \(0.8\) must be what it is on process 0 \(0.9\)"


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([["gamma=0.9"], ["gamma=0.8"]], GAMMA),
        ([["resume=nowhere"]] * 2, "must be the folder of a run"),
    ],
)
def test_what_cannot_be_shared_is_refused_on_every_process(sac, ranks, message, tmp_path):
    run = tmp_path / "run"
    options = [*SAC, "checkpoint_every=0", "total_steps=240", f"output={run}"]
    assert sac.run(*options, ranks=ranks) != 0
    # the first to say it ends the others, who may be cut short
    assert re.search(message, sac.said), sac.said
    assert not run.exists()
