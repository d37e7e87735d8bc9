"""Collectors that know nothing of one another, and are lost: their rows are the reference's."""

import random

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import Compose

from torchrl_glam.replay import (
    HindsightTransform,
    SegmentMultiStepTransform,
    number_trajectories,
    unfinished_trajectories,
)

from . import toy

N_STEPS, GAMMA, NUM_ENVS = 2, 0.5, 2


def collector(number, draw):
    """The streams of a collector's environments, and its batches; it counts from 0."""
    splits = [draw.randint(1, 4) for _ in range(draw.randint(0, 6))]
    total, streams = sum(splits), []
    for env in range(NUM_ENVS):
        lengths = []
        while sum(lengths) < total:
            lengths.append(min(total - sum(lengths), draw.randint(1, 5)))
        outcomes = [draw.choice(toy.OUTCOMES) for _ in lengths]
        outcomes[-1:] = [draw.choice([toy.RUNNING, toy.SUCCESS])] if lengths else []
        named = [draw.choice([[], [(1, 0)], [(2, 1), (1, 2)], [(0, 3)]]) for _ in range(total)]
        first = 1000 * (NUM_ENVS * number + env)
        streams.append(toy.make_stream(lengths, outcomes, named, first))
    ids, following = [list(range(NUM_ENVS))], NUM_ENVS
    for steps in zip(*streams, strict=True):  # the next number to whichever environment resets
        ids.append(list(ids[-1]))
        for env, step in enumerate(steps):
            if step.done:
                ids[-1][env], following = following, following + 1
    batches, ids, start = [], torch.tensor(ids[:-1] or ids).T, 0
    for batch, size in zip(toy.batches(streams, splits), splits, strict=True):
        own = TensorDict({"traj_ids": ids[:, start : start + size]}, batch.shape)
        batches.append(number_trajectories(batch.set("collector", own), number))
        start += size
    return streams, batches


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_each_collector_alone_and_a_lost_ones_steps_are_nobodys(seed):
    """Three places, in each of which collectors follow one another as they are lost."""
    draw = random.Random(seed)
    places = [[collector(3 * place + life, draw) for life in range(3)] for place in range(3)]
    hindsight, rows = HindsightTransform(), []
    transform = Compose(SegmentMultiStepTransform(N_STEPS, GAMMA), hindsight)
    events = [[] for _ in places]
    for place, lives in zip(events, places, strict=True):
        for life, (_, batches) in enumerate(lives):
            place += batches
            if batches and life < 2:
                place.append(unfinished_trajectories(batches[-1]))  # what a lost one leaves
    while any(events):
        event = draw.choice([place for place in events if place]).pop(0)
        if isinstance(event, torch.Tensor):
            hindsight.forget(event)
        else:
            rows += toy.to_rows(transform.inv(event))
    played = [stream for lives in places for streams, _ in lives for stream in streams]
    expected = [r for s in played for r in toy.reference_rows(s, n_steps=N_STEPS, gamma=GAMMA)]
    assert toy.as_multiset(rows) == toy.as_multiset(expected)
    alive = [stream for lives in places for stream in lives[-1][0]]
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
    batch = TensorDict({"collector": {"traj_ids": torch.zeros(1, 2, dtype=torch.int64)}}, [1, 2])
    with pytest.raises(ValueError, match=r"collector \(-1\) must be at least 0"):
        number_trajectories(batch, -1)
    number_trajectories(batch, 1)
    with pytest.raises(ValueError, match="a batch is numbered once"):
        number_trajectories(batch, 2)
    with pytest.raises(KeyError, match="must number its trajectories"):
        number_trajectories(TensorDict({}, [1, 2]), 0)
    with pytest.raises(KeyError, match="next"):
        unfinished_trajectories(batch)
