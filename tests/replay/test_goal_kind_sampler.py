"""Batches that follow a prior over goal kinds, alone and with an exact share of hindsight."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer

from torchrl_glam.replay import GoalKindSampler

PRIOR = [0.1, 0.2, 0.3, 0.4]


def make_buffer(sampler, capacity=100, batch_size=64, **kwargs):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


def rows(kinds, is_hindsight, first=0):
    kinds = torch.as_tensor(kinds, dtype=torch.int8)
    content = {
        "goal_kind": kinds,
        "is_hindsight": torch.as_tensor(is_hindsight).bool().expand_as(kinds),
        "number": torch.arange(first, first + len(kinds)),
    }
    return TensorDict(content, [len(kinds)])


def skewed(count, first=0, seed=0):
    """Mostly hindsight, mostly of the kinds that the prior wants least; some of each."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.multinomial(
        torch.tensor([8.0, 4, 2, 1]), count, replacement=True, generator=generator
    )
    is_hindsight = torch.rand(count, generator=generator) < 0.9
    kinds[:8], is_hindsight[:8] = torch.arange(8) % 4, torch.arange(8) < 4
    return rows(kinds, is_hindsight, first)


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.5, 0.77])
def test_counts_are_next_to_the_prior_also_after_wrap_around(ratio, prefetch):
    buffer = make_buffer(GoalKindSampler(PRIOR, ratio), prefetch=prefetch)
    counts = []
    for call in range(30):
        buffer.extend(skewed(40, first=40 * call, seed=call))
        batch = buffer.sample()
        # a prefetched batch may have been drawn before the newest rows came
        assert (batch["number"] >= 40 * (call + 1 - (prefetch or 0)) - 100).all()
        sides = [batch] if ratio is None else [batch[batch["is_hindsight"] == h] for h in (0, 1)]
        if ratio is not None:
            assert int(batch["is_hindsight"].sum()) == round(ratio * 64)
        for side in sides:
            expected = len(side) * torch.tensor(PRIOR)
            counts.append(torch.bincount(side["goal_kind"].long(), minlength=4))
            assert ((counts[-1] - expected).abs() < 1).all()
    if prefetch:
        buffer.shutdown()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_small_batches_have_the_prior_as_their_mean(batch_size):
    buffer = make_buffer(GoalKindSampler(PRIOR), batch_size=batch_size)
    buffer.extend(skewed(100))
    drawn = torch.cat([buffer.sample()["goal_kind"].long() for _ in range(2000)])
    share = torch.bincount(drawn, minlength=4) / len(drawn)
    spread = (torch.tensor(PRIOR) * (1 - torch.tensor(PRIOR)) / len(drawn)).sqrt()
    assert ((share - torch.tensor(PRIOR)).abs() < 5 * spread).all()


def test_draws_are_uniform_within_a_kind():
    buffer = make_buffer(GoalKindSampler([1, 1]), batch_size=20_000)
    buffer.extend(rows([0] * 30 + [1] * 5, [True, False, True, True, False] * 7))
    counts = torch.bincount(buffer.sample()["index"], minlength=35)
    for part in (counts[:30], counts[30:]):
        expected = 10_000 / len(part)
        assert ((part - expected).abs() < 5 * expected**0.5).all()


def test_a_kind_without_rows_is_shared_among_the_others_with_one_warning(recwarn):
    buffer = make_buffer(GoalKindSampler([0.2, 0.6, 0.2]), batch_size=10)
    buffer.extend(rows([0, 2, 2, 2], [False, True, True, False]))
    with pytest.warns(UserWarning, match=r"no transitions with goals of kind \[1\]"):
        assert torch.bincount(buffer.sample()["goal_kind"].long()).tolist() == [5, 0, 5]
    recwarn.clear()
    buffer.sample()
    assert not recwarn.list
    buffer.extend(rows([1], [True]))
    assert torch.bincount(buffer.sample()["goal_kind"].long()).tolist() == [2, 6, 2]


def test_kinds_of_no_weight_fill_in_only_when_nothing_else_is_there():
    buffer = make_buffer(GoalKindSampler([0, 1]), batch_size=8)
    buffer.extend(rows([0, 0], [False, True]))
    with pytest.warns(UserWarning, match="kind \\[1\\]"):
        assert not buffer.sample()["goal_kind"].any()
    buffer.extend(rows([1], [True]))
    assert buffer.sample()["goal_kind"].all()


@pytest.mark.parametrize("prior", [[], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_prior_out_of_range(prior):
    with pytest.raises(ValueError, match="must be weights of at least 0"):
        GoalKindSampler(prior)


@pytest.mark.parametrize("kind", [-1, 4])
def test_kinds_without_a_weight_are_refused_once_and_never_drawn(kind):
    buffer = make_buffer(GoalKindSampler(PRIOR), capacity=12)
    with pytest.raises(ValueError, match=f"'goal_kind' of 1 rows is from {kind} to {kind}, and"):
        buffer.extend(rows([0, 1, 2, 3, kind], False))
    assert set(buffer.sample()["goal_kind"].tolist()) == {0, 1, 2, 3}
    for call in range(3):  # the refused row is overwritten at last
        buffer.extend(rows([0, 1, 2, 3, 3], False, first=5 * call))
        assert set(buffer.sample()["goal_kind"].tolist()) == {0, 1, 2, 3}


def test_a_buffer_of_refused_rows_says_so():
    buffer = make_buffer(GoalKindSampler(PRIOR))
    with pytest.raises(ValueError, match="never drawn"):
        buffer.extend(rows([7, 7], False))
    with pytest.raises(RuntimeError, match="refused when they were stored"):
        buffer.sample()


def test_kinds_stored_before_the_sampler_came_are_refused_once():
    buffer = make_buffer(RandomSampler())
    buffer.extend(rows([0, 1, 2, 3, 9], False))
    buffer.set_sampler(GoalKindSampler(PRIOR))
    with pytest.raises(ValueError, match="'goal_kind' of 1 rows is from 9 to 9"):
        buffer.sample()
    assert set(buffer.sample()["goal_kind"].tolist()) == {0, 1, 2, 3}


def test_more_kinds_than_a_byte_counts():
    """100 kinds alike, two rows of each, half of them hindsight: all are drawn as often."""
    buffer = make_buffer(GoalKindSampler([1] * 100, ratio=0.5), capacity=500, batch_size=400)
    kinds = torch.arange(100).repeat(2)
    buffer.extend(rows(kinds, torch.arange(200) < 100))
    batch = buffer.sample()
    for is_hindsight in (False, True):
        drawn = batch["goal_kind"][batch["is_hindsight"] == is_hindsight]
        assert drawn.long().bincount(minlength=100).tolist() == [2] * 100
