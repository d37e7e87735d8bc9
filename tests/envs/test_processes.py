"""Instances divided among processes: the same environment, and no worse when something fails."""

import multiprocessing
import os
import random
import signal

import pytest
import stairs
import torch
from torchrl.envs import TransformedEnv, check_env_specs

from torchrl_glam.envs import CandidateMask
from torchrl_glam.text import describe_env
from torchrl_glam.training.processes import EnvProcesses


@pytest.fixture(autouse=True)
def _forks():
    """Processes are forks, which import nothing again; tests/training/test_environments.py has a
    case with those that start anew, as they do in the recipes."""
    earlier = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(earlier, force=True)


def play(env, state, number):
    """Goes down: some reach their floor after one step or two, some are out of time after eight."""
    seen = []
    for _ in range(number):
        down = torch.ones(env.batch_size, dtype=torch.int64)
        step, state = env.step_and_maybe_reset(state.set("action", down))
        seen.append(step)
    return torch.stack(seen), state


def test_they_are_one_environment_that_goes_on_where_it_stood():
    whole, apart = stairs.make(4), EnvProcesses(stairs.make, 4, 2, 3)
    assert describe_env(apart) == describe_env(whole)
    check_env_specs(TransformedEnv(apart, CandidateMask()))
    whole.set_seed(3), apart.set_seed(3)
    (steps, state), (expected, _) = (play(env, env.reset(), 11) for env in (apart, whole))
    assert (steps == expected).all() and expected["next", "done"].any()
    assert expected["next", "done"].any(0).any() and not expected["next", "done"].all(1).any()

    saved = apart.state_dict()
    expected, _ = play(whole, state.clone(), 20)
    resumed = EnvProcesses(stairs.make, 4, 2, 9)
    resumed.load_state_dict(saved)
    assert (play(resumed, state.clone(), 20)[0] == expected).all()

    resumed.load_state_dict(saved)
    one = torch.tensor([[False], [True], [False], [False]])
    begun = resumed.reset(state.clone().set("_reset", one))
    assert (begun[[0, 2, 3]] == state.exclude("_reset")[[0, 2, 3]]).all()
    assert begun["action_mask"].any(-1).all()

    workers = multiprocessing.active_children()
    assert len(workers) == 4
    assert not any(os.getpgid(worker.pid) == os.getpgid(0) for worker in workers)
    apart.close(), resumed.close()
    assert not multiprocessing.active_children()


class Rotten(stairs.Stairs):
    def step(self, action):
        if self.steps == 1:
            raise ArithmeticError("the third step is rotten")
        return super().step(action)


def rotten(num_envs):
    """In a process of two, not where it is tried out."""
    return stairs.wrap([stairs.Stairs(), Rotten()][:num_envs])


def refused(num_envs):
    if num_envs > 1:
        raise ValueError("there is room for one")
    return stairs.make(num_envs)


def test_an_error_in_a_process_is_told_and_ends_all():
    env = EnvProcesses(rotten, 4, 2, 0)
    state = env.reset()
    with pytest.raises(
        ChildProcessError,
        match=r"process 0 of the 2 of the environment, which has "
        r"instances 0 to 1: ArithmeticError: the third step is rotten",
    ):
        play(env, state, 2)
    assert not multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="have ended: make it anew"):
        env.state_dict()
    with pytest.raises(ChildProcessError, match=r"instances 0 to 1: ValueError: there is room for"):
        EnvProcesses(refused, 4, 2, 0)
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_missed():
    env = EnvProcesses(stairs.make, 4, 2, 0)
    state = env.reset()
    worker = multiprocessing.active_children()[0]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with pytest.raises(ChildProcessError, match="2 processes of the environment have failed: "):
        play(env, state, 1)
    assert not multiprocessing.active_children()


class Drawn(stairs.Stairs):
    """Draws from the global generator, whatever its seed."""

    def reset(self, **_):
        return super().reset(seed=random.random())


def test_games_that_follow_no_seed_differ_all_the_same():
    def goals():
        env = EnvProcesses(lambda number: stairs.wrap([Drawn() for _ in range(number)]), 16, 2, 0)
        goals = env.reset()["goal"]
        env.close()
        return goals

    first = goals()
    assert not first[:8].equal(first[8:]) and first.equal(goals())
