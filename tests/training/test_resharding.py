"""Replay buffers of some processes, dealt out to others: every transition once, by age."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import (
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)
from torchrl_glam.training.checkpoint_adapters import ReplayBufferAdapter
from torchrl_glam.training.resharding import deal_rows

GAMMA = 0.5


def make_buffer(capacity, seed=0):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=HindsightRatioSampler(0.5),
        transform=Compose(SegmentMultiStepTransform(2, GAMMA), HindsightTransform(seed=seed)),
        batch_size=4,
        generator=torch.Generator().manual_seed(seed),
    )


def steps(first, ends, named):
    """Steps of one environment, numbered from ``first``: which end, and which name goal 7."""
    number = torch.arange(first, first + len(ends)).view(1, -1)
    done = torch.tensor(ends).view(1, -1, 1)
    goals = torch.where(torch.tensor(named).view(1, -1, 1), 7, 0)
    following = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
    following |= {"reward": torch.zeros(done.shape), "number": number + 1}
    following["hindsight"] = {"goal_tokens": goals.unsqueeze(-1), "kind": (goals > 0).long() - 1}
    pursued = {
        "goal_tokens": torch.full((*number.shape, 1), 5),
        "goal_kind": torch.zeros_like(number),
    }
    return TensorDict({"number": number, **pursued, "next": following}, number.shape)


def save(buffers, folder):
    for rank, buffer in enumerate(buffers):
        ReplayBufferAdapter().save(buffer, folder / str(rank), args=(), kwargs={})
    return [folder / str(rank) for rank in range(len(buffers))]


def numbers(buffer):
    return buffer.storage.get(slice(0, len(buffer)))["number"].tolist()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_stored_transition_goes_to_one_process_the_oldest_first(size, tmp_path):
    """The first of two buffers is full and has been written over, the second is not."""
    first, second = make_buffer(6), make_buffer(6)
    for begin in (0, 2, 4, 6):
        first.extend(steps(begin, [False, True], [False, False]))
    second.extend(steps(100, [False, False, True], [False] * 3))
    assert numbers(first) == [6, 7, 2, 3, 4, 5]
    saved = save([first, second], tmp_path)
    dealt = [make_buffer(12) for _ in range(size)]
    for rank, buffer in enumerate(dealt):
        deal_rows(buffer, saved, rank, size)
    # ages of the first are 1/12, 3/12, ..., those of the second 1/6, 3/6, 5/6
    in_order = [2, 100, 3, 4, 101, 5, 6, 102, 7]
    assert [numbers(buffer) for buffer in dealt] == [in_order[rank::size] for rank in range(size)]


def test_steps_of_unfinished_episodes_are_kept_as_if_time_had_run_out(tmp_path):
    """By hand: two steps of 5, after the first of which goal 7 was named."""
    buffers = [make_buffer(8), make_buffer(8)]
    buffers[0].extend(steps(0, [False, True, False], [False] * 3))
    buffers[1].extend(steps(10, [True, False, False], [False, True, False]))
    dealt = make_buffer(16)
    deal_rows(dealt, save(buffers, tmp_path), 0, 1)
    rows = dealt.storage.get(slice(0, len(dealt)))
    assert sorted(rows["number"].tolist()) == [0, 1, 2, 10, 11, 11, 12]
    by = {
        (n, bool(h)): row
        for n, h, row in zip(rows["number"].tolist(), rows["is_hindsight"], rows, strict=True)
    }
    for own in (2, 12):  # the last steps: they bootstrap from where they led
        ends = by[own, False]["next"]
        assert ends["done"] and ends["truncated"] and not ends["terminated"]
    window = by[11, False]
    assert window["steps_to_next_obs"] == 2 and window["next", "number"] == 13
    reached = by[11, True]
    assert reached["goal_tokens"] == 7 and reached["next", "reward"] == 1
    assert reached["next", "terminated"] and reached["next", "done"]
    assert dealt.sample()["is_hindsight"].sum() == 2, "the sampler knows the kinds"


def test_what_comes_next_begins_new_episodes(tmp_path):
    buffer = make_buffer(8)
    buffer.extend(steps(0, [False, False], [False, False]))
    saved = save([buffer], tmp_path)
    other = make_buffer(8, seed=1)
    deal_rows(other, saved, 0, 2)
    hindsight = other.transform.transforms[1]
    assert hindsight.pending == 0
    fresh = torch.Generator().manual_seed(1).get_state()
    assert hindsight.get_extra_state()["generator"].equal(fresh), "random numbers of its own"
    other.extend(steps(20, [False, True], [False, False]))
    assert numbers(other) == [0, 1, 20, 21]


def test_a_process_that_nobody_stored_for_begins_empty(tmp_path):
    saved = save([make_buffer(8)], tmp_path)
    other = make_buffer(8)
    deal_rows(other, saved, 1, 2)
    assert len(other) == 0
