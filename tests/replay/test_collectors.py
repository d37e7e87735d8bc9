"""What every collector of TorchRL gives, put together by trajectory, against the reference."""

import multiprocessing
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import Compose

from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform

from . import toy
from .toy_env import NUM_ENVS, ToyEnv, expected_rows

N_STEPS, GAMMA, WORKERS, STEPS, CALLS = 2, 0.5, 2, 4, 7


def collect(kind, **kwargs):
    """Batches of a collector whose environments' observations tell trajectories apart."""
    frames = NUM_ENVS * STEPS
    if kind is Collector:
        env = ToyEnv()
    else:
        env = [partial(ToyEnv, first=NUM_ENVS * worker) for worker in range(WORKERS)]
        frames *= WORKERS if kind is MultiSyncCollector else 1
    kwargs = {"frames_per_batch": frames, "total_frames": CALLS * frames} | kwargs
    collector = kind(env, None, **kwargs)
    data = [batch.clone() for batch in collector]
    collector.shutdown()
    return data


@pytest.fixture
def forks():
    """Workers of collectors are forks, which import nothing again."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def rows_of(data, transform=None):
    default = Compose(SegmentMultiStepTransform(N_STEPS, GAMMA), HindsightTransform())
    transform = transform or default
    return [row for batch in data for row in toy.to_rows(transform.inv(batch))]


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        (Collector, {}),
        (Collector, {"reset_at_each_iter": True}),
        (Collector, {"reset_at_each_iter": True, "set_truncated": True}),
        (Collector, {"trajs_per_batch": 5, "traj_format": "cat"}),
        (MultiSyncCollector, {"cat_results": "stack"}),
        (MultiSyncCollector, {"cat_results": 0}),
        (MultiSyncCollector, {"cat_results": -1}),
        (MultiAsyncCollector, {}),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "-".join(f"{k}={v}" for k, v in x.items()),
)
def test_rows_are_those_of_whole_trajectories(kind, kwargs, forks):
    data = collect(kind, **kwargs)
    expected = expected_rows(data, n_steps=N_STEPS, gamma=GAMMA)
    assert len(expected) > 40
    assert toy.as_multiset(rows_of(data)) == toy.as_multiset(expected)


def test_numbers_of_several_collectors_are_not_mistaken_for_one_another():
    """Two workers that count alike, and a row of two trajectories without numbers."""
    first, second = (
        toy.to_batch([toy.make_stream([4], ["timeout"], [[]] * 4, 10 * worker)])
        for worker in range(2)
    )
    for td in (second, second["next"]):
        td["goal_tokens"] = td["goal_tokens"] + 1
    mixed = [first[:, :2], second[:, :2], first[:, 2:], second[:, 2:]]
    for ids in (None, (0, 0)):
        data = mixed if ids is None else with_ids(mixed, ids)
        for batches in (data, [torch.cat(data, 1)]):
            with pytest.raises(ValueError, match="two steps of one trajectory without an end"):
                rows_of(batches)
    rows = rows_of(with_ids(mixed, (0, 1)))
    assert sorted(row.observation for row in rows) == [0, 1, 2, 3, 10, 11, 12, 13]


def with_ids(batches, ids):
    """The batches as of collectors that number their trajectories so, in turn."""
    out = [batch.clone(False) for batch in batches]
    for index, batch in enumerate(out):
        numbers = torch.full(batch.shape, ids[index % len(ids)])
        batch["collector"] = TensorDict({"traj_ids": numbers}, batch.shape)
    return out


def test_a_trajectory_may_go_on_after_an_end_and_in_any_shape():
    """Numbers of environments instead of episodes, one step a row, and another key."""
    line = toy.make_stream([2, 3, 2], ["success", "timeout", "success"], [[(1, 0)]] * 7, 0)
    batch = toy.to_batch([line])
    batch["env"] = torch.full(batch.shape, 5)
    expected = toy.as_multiset(toy.reference_rows(line))
    for shape in ((7,), (7, 1), (1, 7, 1)):
        transform = HindsightTransform(trajectory_key="env")
        transform = Compose(SegmentMultiStepTransform(1, 1.0), transform)
        assert toy.as_multiset(rows_of([batch.reshape(shape)], transform)) == expected
        transform[1].clear()
        steps = batch.reshape(shape).split(1)
        assert toy.as_multiset(rows_of(steps, transform)) == expected


def test_steps_that_a_collector_did_not_make_are_left_out():
    """Number -1 of a preempted worker."""
    line = toy.make_stream([4], ["timeout"], [[(1, 0)]] * 4, first_observation=0)
    [batch] = with_ids([toy.to_batch([line])], (3,) * 2)
    broken = torch.cat([batch[:, :2], batch[:, :2], batch[:, 2:]], 1)
    broken["collector", "traj_ids"][:, 2:4] = -1
    assert toy.as_multiset(rows_of([broken])) == toy.as_multiset(rows_of([batch]))


def test_padded_trajectories_and_other_numbers_are_refused():
    for kwargs in ({"split_trajs": True}, {"trajs_per_batch": 5, "traj_format": "padded"}):
        with pytest.raises(ValueError, match='traj_format="cat" .* no split_trajs=True'):
            rows_of(collect(Collector, **kwargs))
    line = toy.make_stream([4], ["timeout"], [[]] * 4, first_observation=0)
    for ids in (torch.zeros(1, 4), torch.zeros(1, 4, 2, dtype=torch.int64)):
        batch = toy.to_batch([line]).set("collector", TensorDict({"traj_ids": ids}, [1, 4]))
        with pytest.raises(ValueError, match="must be integers of shape"):
            rows_of([batch])


def test_trajectories_that_never_end_are_forgotten_with_a_warning():
    transform = HindsightTransform()
    goes_on = toy.make_stream([1000], ["running"], [[]] * 1000, first_observation=0)
    [step] = toy.to_batch([goes_on[:1]]).unsqueeze(0)
    steps = toy.to_batch([goes_on])
    with pytest.warns(UserWarning, match="1 steps of 1 trajectories that never ended"):
        transform.inv(with_ids([step], (9,))[0])
        for t in range(600):
            transform.inv(with_ids([steps[:, t : t + 1]], (1,))[0])
    assert transform.pending == 600
