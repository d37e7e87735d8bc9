"""Collectors at work beside the learner, in simulated time: order, lag, losses."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from torchrl_glam.runs.processes import async_collection
from torchrl_glam.runs.processes.async_collection import AsyncCollectors
from torchrl_glam.runs.processes.ray_pool import WorkerLost

UPDATES, LEARNING = 4, 1.0  # a round of the learner, and the seconds it takes


class Simulation:
    """A pool whose collectors take given times, and the clock that goes by.

    Args:
        num_collectors: how many work at a time.
        seconds: of each task in the order in which they are asked for, then again from the first;
            None for one that is lost at once, ``inf`` for one that never answers.
    """

    def __init__(self, num_collectors, seconds):
        self.num_collectors, self.seconds = num_collectors, seconds
        self.now, self.asked, self.tasks = 0.0, 0, {}
        self.alive, self.forgotten = {}, []

    def ask(self, result):
        seconds = self.seconds[self.asked % len(self.seconds)]
        self.asked += 1
        task = object()
        self.tasks[task] = (self.now + (seconds or 0.0), None if seconds is None else result)
        return task

    def start(self, number):
        self.alive[number] = 0
        return number, self.ask(f"thread {number}")

    def share(self, weights):
        return weights.clone()

    def collect(self, worker, weights):
        self.alive[worker] += 1
        batch = {"serial": self.alive[worker], "worker": worker, "made_with": weights["version"]}
        batch = {key: torch.full((1, 2), int(value)) for key, value in batch.items()}
        batch["collector"] = {"traj_ids": torch.tensor([[0, 1]])}
        batch["next"] = {"done": torch.tensor([[[True], [False]]])}
        return self.ask(TensorDict(batch, [1, 2]))

    def wait(self, tasks, seconds):
        assert tasks and seconds >= 0
        first = min(self.tasks[task][0] for task in tasks)
        self.now = max(self.now, min(first, self.now + seconds))
        return [task for task in tasks if self.tasks[task][0] <= self.now]

    def result(self, task):
        due, result = self.tasks.pop(task)
        assert due <= self.now
        if result is None:
            raise WorkerLost("killed")
        return result

    def kill(self, worker):
        self.alive.pop(worker)

    def shutdown(self):
        self.alive.clear()

    def forget(self, trajectories):
        self.forgotten += trajectories.tolist()
        return len(trajectories)

    def collectors(self, max_policy_lag=None):
        lag = 2 * UPDATES * self.num_collectors if max_policy_lag is None else max_policy_lag
        options = {"updates_per_batch": UPDATES, "max_policy_lag": lag, "timeout": 100.0}
        return AsyncCollectors(self, **options, forget=self.forget)

    def learn(self, collectors, rounds):
        with mock.patch.object(async_collection.time, "monotonic", lambda: self.now), collectors:
            for updates in range(0, rounds * UPDATES, UPDATES):
                collectors.publish(TensorDict({"version": torch.tensor(updates)}), updates)
                before = self.now
                yield collectors.next(), updates, self.now - before
                self.now += LEARNING


@settings(max_examples=150, deadline=None)
@given(
    num_collectors=st.integers(1, 4),
    slack=st.integers(0, 9),
    seconds=st.lists(st.sampled_from([0.0, 0.1, 0.9, 3.0, 30.0, None]), min_size=1, max_size=12),
)
def test_no_batch_is_older_than_it_may_be_or_missing_or_out_of_order(
    num_collectors, slack, seconds
):
    if set(seconds) == {None}:
        seconds = [1.0]
    world, most = Simulation(num_collectors, seconds), UPDATES * num_collectors + slack
    collectors, came, lags = world.collectors(most), {}, []
    try:
        for batch, updates, _ in world.learn(collectors, rounds=40):
            [made_with] = batch["made_with"].unique().tolist()
            assert batch["recorded_at"].tolist() == [[made_with, made_with]]
            assert batch["recorded_at"].dtype == torch.int32
            assert 0 <= updates - made_with <= most
            lags.append(updates - made_with)
            worker = int(batch["worker"][0, 0])
            assert batch["collector", "traj_ids"].tolist() == [[2**32 * worker, 2**32 * worker + 1]]
            came.setdefault(worker, []).append(int(batch["serial"][0, 0]))
    except ConnectionError:
        assert None in seconds
    assert all(serials == [*range(1, len(serials) + 1)] for serials in came.values())
    if lags:
        summary = collectors.summary()
        assert summary["policy_lag/collected/max"] == max(lags)
        assert summary["policy_lag/collected/mean"] == pytest.approx(sum(lags) / len(lags))
    # every lost collector's unfinished trajectory, its second, was dropped if it had given any
    assert set(world.forgotten) <= {2**32 * worker + 1 for worker in came}


@pytest.mark.parametrize("num_collectors", [1, 2, 4])
def test_a_learner_that_is_slower_than_its_collectors_never_waits(num_collectors):
    world = Simulation(num_collectors, [0.9 * LEARNING])
    waits = [wait for _, _, wait in world.learn(world.collectors(), rounds=20)]
    assert waits[0] == pytest.approx(1.8 * LEARNING)  # to start, and for the first batch
    assert waits[1:] == [0.0] * 19


def test_a_slow_collector_is_waited_for_before_others_make_its_batch_too_old():
    """At most 8 updates: with a third batch of the fast one before it, it would lag by 12."""
    world = Simulation(2, [0.0, 0.0, 50.0, *[0.1] * 9])  # two starts, then one slow batch
    order = [
        (int(batch["worker"][0, 0]), updates, wait)
        for batch, updates, wait in world.learn(world.collectors(max_policy_lag=8), rounds=4)
    ]
    assert [worker for worker, _, _ in order[:3]] == [1, 1, 0]
    assert order[2][1:] == (8, pytest.approx(50.0 - 2 * LEARNING - 0.1))


@pytest.mark.parametrize(
    ("seconds", "why"), [(None, "killed"), (float("inf"), "it did not give a batch in 100 seconds")]
)
def test_a_lost_collector_is_replaced_and_its_unfinished_episodes_are_dropped(seconds, why, caplog):
    caplog.set_level("INFO")
    world = Simulation(2, [0.0, 0.0, 0.5, 0.5, seconds, *[0.5] * 200])
    collectors = world.collectors()
    rounds = list(world.learn(collectors, rounds=30))
    assert max(wait for _, _, wait in rounds) <= 100.0
    workers = [int(batch["worker"][0, 0]) for batch, _, _ in rounds]
    assert workers[0] == 0 and 0 not in workers[1:]  # its second batch never came
    assert {1, 2} <= set(workers)
    assert world.forgotten == [1]
    assert "Collector 2 works in thread 2" in caplog.text
    assert (
        f"Collector 0 (thread 0) is lost: {why}. 1 steps of its unfinished episodes are dropped; "
        "collector 2 takes its place"
    ) in caplog.text
    summary = collectors.summary()
    assert (summary["collectors"], summary["collectors_lost"]) == (2, 1)
    later = Simulation(2, [0.5])
    resumed = later.collectors()
    resumed.load_state_dict(collectors.state_dict())
    seen = {int(batch["worker"][0, 0]) for batch, _, _ in later.learn(resumed, rounds=4)}
    assert seen == {3, 4} and resumed.summary()["collectors_lost"] == 1


@pytest.mark.parametrize(
    ("seconds", "why", "waited"),
    [(None, "killed", 0.0), (float("inf"), "it did not start in 100 seconds", 300.0)],
)
def test_when_one_after_another_is_lost_the_run_ends(seconds, why, waited, caplog):
    world = Simulation(2, [seconds])
    with pytest.raises(ConnectionError, match="all collectors are lost, 6 of them"):
        list(world.learn(world.collectors(), rounds=1))
    assert world.now == waited and not world.alive
    told = caplog.text
    assert told.count(why) == 6
    assert "Collector 4 (which did not start) is lost" in told
    assert "1 of 2 are left" in told and "0 of 2 are left" in told


def test_what_a_collector_raises_ends_the_run_as_it_is():
    world = Simulation(1, [0.5])
    world.result = mock.Mock(side_effect=FloatingPointError("log-likelihoods are not finite"))
    with pytest.raises(FloatingPointError, match="log-likelihoods"):
        list(world.learn(world.collectors(), rounds=1))
    assert not world.alive
