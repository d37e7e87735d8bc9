"""Collectors that know nothing of one another, and are lost: their rows are the reference's."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.envs import Compose

from torchrl_glam.replay import (
    HindsightTransform,
    SegmentMultiStepTransform,
    number_trajectories,
    unfinished_trajectories,
)

from . import toy

N_STEPS, GAMMA = 2, 0.5


class Collected(NamedTuple):
    """What one collector gave before it was lost, or the run ended."""

    streams: list[list[toy.Step]]  # of its environments
    batches: list[TensorDict]


@st.composite
def collected(draw, number, num_envs):
    """A collector's steps in batches; it numbers its trajectories from 0."""
    splits = draw(st.lists(st.integers(1, 4), max_size=4))
    total = sum(splits)
    streams = [
        draw(streams_of(total, first_observation=1000 * (num_envs * number + i)))
        for i in range(num_envs)
    ]
    batches, ids, start = [], local_ids(streams), 0
    for batch, size in zip(toy.batches(streams, splits), splits, strict=True):
        own = TensorDict({"traj_ids": ids[:, start : start + size]}, batch.shape)
        batches.append(batch.set("collector", own))
        start += size
    return Collected(streams, batches)


@st.composite
def streams_of(draw, total, first_observation):
    lengths, outcomes = [], []
    while sum(lengths) < total:
        left = total - sum(lengths)
        lengths.append(min(left, draw(st.integers(1, 5))))
        whole = lengths[-1] < left or draw(st.booleans())
        outcomes.append(draw(st.sampled_from(toy.OUTCOMES)) if whole else toy.RUNNING)
    names = st.sampled_from([[], [(1, 0)], [(2, 1), (1, 2)], [(0, 3)]])
    named = [draw(names) for _ in range(total)]
    return toy.make_stream(lengths, outcomes, named, first_observation)


def local_ids(streams):
    """Numbers as a TorchRL collector gives them: the next one to whichever environment resets."""
    next_id = len(streams)
    current, rows = list(range(next_id)), [[] for _ in streams]
    for steps in zip(*streams, strict=True):
        for i, step in enumerate(steps):
            rows[i].append(current[i])
            if step.done:
                current[i], next_id = next_id, next_id + 1
    return torch.tensor(rows, dtype=torch.int64).reshape(len(streams), -1)


@st.composite
def runs(draw):
    """Collectors by place, one after another in each, and the order in which batches come."""
    num_envs = draw(st.integers(1, 2))
    lives = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(2, 3)))]
    numbers = iter(range(sum(lives)))
    places = [[(n := next(numbers), draw(collected(n, num_envs))) for _ in range(k)] for k in lives]
    arrivals = [
        place
        for place, ones in enumerate(places)
        for _ in range(sum(len(one.batches) for _, one in ones))
    ]
    return places, draw(st.permutations(arrivals))


@settings(max_examples=60, deadline=None)
@given(runs())
def test_rows_are_those_of_each_collector_alone_and_nothing_of_a_lost_one_is_put_to_anothers(run):
    places, arrivals = run
    hindsight = HindsightTransform()
    transform = Compose(SegmentMultiStepTransform(N_STEPS, GAMMA), hindsight)
    events = [events_of(place) for place in places]
    rows = []
    for place in arrivals:
        for batch in events[place]:
            if isinstance(batch, torch.Tensor):  # what a lost collector left
                hindsight.forget(batch)
                continue
            rows += toy.to_rows(transform.inv(batch))
            break
    for rest in events:
        for left in rest:
            hindsight.forget(left)

    ones = [one for place in places for _, one in place]
    expected = [
        row
        for one in ones
        for stream in one.streams
        for row in toy.reference_rows(stream, n_steps=N_STEPS, gamma=GAMMA)
    ]
    assert toy.as_multiset(rows) == toy.as_multiset(expected)
    alive = [stream for place in places for stream in place[-1][1].streams]
    assert hindsight.pending == sum(len(unfinished(stream)) for stream in alive)


def events_of(place):
    """The batches of a place in order and, after those of a lost collector, what it left."""
    for index, (number, one) in enumerate(place):
        left = torch.empty(0, dtype=torch.int64)
        for batch in one.batches:
            numbered = number_trajectories(batch.clone(), number)
            left = unfinished_trajectories(numbered)
            yield numbered
        if index < len(place) - 1:
            yield left


def unfinished(stream):
    """The steps after the last end."""
    ends = [i for i, step in enumerate(stream) if step.done]
    return stream[ends[-1] + 1 if ends else 0 :]


def test_steps_that_were_not_made_keep_their_number():
    ids = torch.tensor([[0, -1, 1]])
    batch = TensorDict({"env": ids.clone()}, [1, 3])
    numbered = number_trajectories(batch, 1, trajectory_key="env")["env"]
    assert numbered.tolist() == [[2**32, -1, 2**32 + 1]]
    done = torch.tensor([[[False], [False], [True]]])
    batch = TensorDict({"env": ids, "next": {"over": done}}, [1, 3])
    left = unfinished_trajectories(batch, trajectory_key="env", done_key="over")
    assert left.tolist() == [0]


def test_what_cannot_be_numbered_is_refused():
    batch = TensorDict({"collector": {"traj_ids": torch.zeros(1, 2, dtype=torch.int64)}}, [1, 2])
    with pytest.raises(ValueError, match=r"collector \(-1\) must be at least 0"):
        number_trajectories(batch, -1)
    number_trajectories(batch, 1)
    with pytest.raises(ValueError, match="a batch is numbered once"):
        number_trajectories(batch, 2)
    with pytest.raises(KeyError, match="must number its trajectories"):
        number_trajectories(TensorDict({}, [1, 2]), 0)
