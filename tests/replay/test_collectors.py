"""What collectors give, put together by trajectory, against the reference.

Those of TorchRL, and several that know nothing of one another and are lost.
"""

import multiprocessing
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import Compose

from torchrl_glam.replay import (
    HindsightTransform,
    SegmentMultiStepTransform,
    number_trajectories,
    unfinished_trajectories,
)

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


def rows_of(data, **keys):
    transform = Compose(SegmentMultiStepTransform(N_STEPS, GAMMA), HindsightTransform(**keys))
    return toy.rows_of(transform, data)


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


def with_ids(batch, ids):
    """The batch [N, T] as of a collector that numbers its steps' trajectories so, [N, T] or [T]."""
    ids = torch.as_tensor(ids).expand(batch.shape).clone()
    return batch.set("collector", TensorDict({"traj_ids": ids}, batch.shape))


def test_numbers_of_several_collectors_are_not_mistaken_for_one_another():
    """Two workers that count alike, and a row of two trajectories without numbers."""
    line = toy.make_stream([4, 4], ["timeout"] * 2, [[]] * 8, 0)
    mixed = [line[:2] + line[4:6] + line[2:4] + line[6:]]
    for data in (toy.batches(mixed, [2] * 4), [with_ids(toy.to_batch(mixed), 0)]):
        with pytest.raises(ValueError, match="two steps of one trajectory without an end"):
            rows_of(data)


def test_a_trajectory_may_go_on_after_an_end_and_in_any_shape():
    """Numbers of environments instead of episodes, one step a row, and another key."""
    line = toy.make_stream([2, 3, 2], ["success", "timeout", "success"], [[(1, 0)]] * 7, 0)
    batch = toy.to_batch([line])
    batch["env"] = torch.full(batch.shape, 5)
    expected = toy.as_multiset(toy.reference_rows([line], n_steps=N_STEPS, gamma=GAMMA))
    for shape in ((7,), (7, 1), (1, 7, 1)):
        shaped = batch.reshape(shape)
        for data in ([shaped], shaped.split(1)):
            assert toy.as_multiset(rows_of(data, trajectory_key="env")) == expected


def test_steps_that_a_collector_did_not_make_are_left_out():
    """Number -1 of a preempted worker, with or without an end."""
    line = toy.make_stream([4], ["timeout"], [[(1, 0)]] * 4, first_observation=0)
    whole = with_ids(toy.to_batch([line]), 3)
    broken = with_ids(toy.to_batch([line[:3] + line[2:] + line[3:]]), [3, 3, -1, 3, -1, 3])
    assert toy.as_multiset(rows_of([broken])) == toy.as_multiset(rows_of([whole]))


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
    goes_on = toy.make_stream([600], ["running"], [[]] * 600, first_observation=0)
    with pytest.warns(UserWarning, match="1 steps of 1 trajectories that never ended"):
        transform.inv(with_ids(toy.to_batch([goes_on[:1]]), 9))
        for step in toy.to_batch([goes_on]).split(1, 1):
            transform.inv(with_ids(step, 1))
    assert transform.pending == 600


def numbered(streams, splits, collector):
    """A collector's batches; it counts trajectories from 0, whichever environment resets."""
    ids, following = [list(range(len(streams)))], len(streams)
    for steps in zip(*streams, strict=True):
        ids.append(list(ids[-1]))
        for env, step in enumerate(steps):
            if step.done:
                ids[-1][env], following = following, following + 1
    own = torch.tensor(ids[:-1]).T.split(splits, 1)
    for batch, traj_ids in zip(toy.batches(streams, splits), own, strict=True):
        yield number_trajectories(with_ids(batch, traj_ids), collector)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), draw=st.randoms())
def test_rows_are_those_of_each_collector_alone_and_a_lost_ones_steps_are_nobodys(data, draw):
    """Three places, in each of which collectors follow one another as they are lost."""
    hindsight, rows, played, alive = HindsightTransform(), [], [], []
    transform = Compose(SegmentMultiStepTransform(N_STEPS, GAMMA), hindsight)
    events = [[] for _ in range(3)]
    for number in range(9):
        streams, splits = data.draw(toy.streams(2, 8, first_observation=2000 * number))
        batches = list(numbered(streams, splits, number))
        events[number % 3] += batches
        played += streams
        if number < 6:  # what a lost one leaves
            events[number % 3].append(unfinished_trajectories(batches[-1]))
        else:
            alive += streams
    while any(events):
        event = draw.choice([place for place in events if place]).pop(0)
        if isinstance(event, torch.Tensor):
            hindsight.forget(event)
        else:
            rows += toy.to_rows(transform.inv(event))
    expected = toy.reference_rows(played, n_steps=N_STEPS, gamma=GAMMA)
    assert toy.as_multiset(rows) == toy.as_multiset(expected)
    last = [max((t for t, s in enumerate(stream, 1) if s.done), default=0) for stream in alive]
    assert hindsight.pending == sum(map(len, alive)) - sum(last), "the steps after the last end"


def test_steps_that_were_not_made_keep_their_number_and_short_numbers_have_room():
    ids, done = torch.tensor([[0, -1, 1]], dtype=torch.int32), torch.tensor([[[0], [0], [1]]])
    batch = TensorDict({"env": ids, "next": {"over": done.bool()}}, [1, 3])
    left = unfinished_trajectories(batch, trajectory_key="env", done_key="over")
    assert left.tolist() == [0]
    numbered = number_trajectories(batch, 1, trajectory_key="env")["env"]
    assert numbered.tolist() == [[2**32, -1, 2**32 + 1]]


def test_what_cannot_be_numbered_is_refused():
    batch = with_ids(TensorDict({}, [1, 2]), 0)
    with pytest.raises(ValueError, match=r"collector \(-1\) must be at least 0"):
        number_trajectories(batch, -1)
    number_trajectories(batch, 1)
    with pytest.raises(ValueError, match="a batch is numbered once"):
        number_trajectories(batch, 2)
    with pytest.raises(KeyError, match="must number its trajectories"):
        number_trajectories(TensorDict({}, [1, 2]), 0)
    with pytest.raises(KeyError, match="next"):
        unfinished_trajectories(batch)
