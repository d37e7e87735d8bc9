"""Batches that follow a prior over goal kinds, and goals of a kind that are drawn alike."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import RandomSampler

from torchrl_glam.replay import GoalBalancedSampler, GoalKindSampler

from .test_samplers import make_buffer

PRIOR = [0.1, 0.2, 0.3, 0.4]


def rows(kinds, is_hindsight, first=0):
    """Rows whose goal has the kind's number, and a second token."""
    kinds = torch.as_tensor(kinds, dtype=torch.int8)
    content = {
        "goal_kind": kinds,
        "goal_tokens": torch.stack([kinds, kinds // 3], -1).int(),
        "is_hindsight": torch.as_tensor(is_hindsight).bool().expand_as(kinds).unsqueeze(-1),
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


def kinds_of(batch):
    return batch["goal_kind"].long().bincount(minlength=3).tolist()


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.5, 0.77])
def test_counts_are_next_to_the_prior_also_after_wrap_around(ratio, prefetch):
    buffer = make_buffer(GoalKindSampler(PRIOR, ratio), batch_size=64, prefetch=prefetch)
    for call in range(30):
        buffer.extend(skewed(40, first=40 * call, seed=call))
        batch = buffer.sample()
        # a prefetched batch may have been drawn before the newest rows came
        assert (batch["number"] >= 40 * (call + 1 - (prefetch or 0)) - 100).all()
        is_hindsight = batch["is_hindsight"].squeeze(-1)
        sides = [batch] if ratio is None else [batch[is_hindsight == side] for side in (0, 1)]
        if ratio is not None:
            assert int(is_hindsight.sum()) == round(ratio * 64)
        for side in sides:
            count = torch.bincount(side["goal_kind"].long(), minlength=4)
            assert ((count - len(side) * torch.tensor(PRIOR)).abs() < 1).all()
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


def test_a_kind_without_rows_is_shared_among_the_others_with_one_warning(recwarn):
    buffer = make_buffer(GoalKindSampler([0.2, 0.6, 0.2]), batch_size=10)
    buffer.extend(rows([0, 2, 2, 2], [False, True, True, False]))
    with pytest.warns(UserWarning, match=r"no transitions with goals of kind \[1\]"):
        assert kinds_of(buffer.sample()) == [5, 0, 5]
    recwarn.clear()
    buffer.sample()
    assert not recwarn.list
    buffer.extend(rows([1], [True]))
    assert kinds_of(buffer.sample()) == [2, 6, 2]


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
@pytest.mark.parametrize("written", ["later", "before the sampler came", "by index"])
def test_kinds_without_a_weight_are_refused_until_they_are_overwritten(written, kind):
    late = written == "before the sampler came"
    buffer = make_buffer(RandomSampler() if late else GoalKindSampler(PRIOR), capacity=5)
    refused = pytest.raises(ValueError, match="'goal_kind' of the rows stored is from .* 0 to 3")
    buffer.extend(rows([0, 1, 2, 3, kind if late else 0], False))
    if late:
        buffer.set_sampler(GoalKindSampler(PRIOR))
    elif written == "by index":
        buffer[torch.tensor([4])] = rows([kind], False).set("index", torch.tensor([4]))
    else:
        with refused:
            buffer.extend(rows([0, 1, 2, 3, kind], False))
    for _ in range(2):
        with refused:
            buffer.sample()
    buffer.extend(rows([0, 1, 2, 3, 3], False))
    assert set(buffer.sample()["goal_kind"].tolist()) == {0, 1, 2, 3}


def test_more_kinds_than_a_byte_counts():
    """100 kinds alike, two rows of each, half of them hindsight: all are drawn as often."""
    buffer = make_buffer(GoalKindSampler([1] * 100, ratio=0.5), capacity=500, batch_size=400)
    buffer.extend(rows(torch.arange(100).repeat(2), torch.arange(200) < 100))
    batch = buffer.sample()
    for is_hindsight in (False, True):
        drawn = batch["goal_kind"][batch["is_hindsight"].squeeze(-1) == is_hindsight]
        assert drawn.long().bincount(minlength=100).tolist() == [2] * 100


def chances(stored, hindsight_share, prior):
    """Chance of each stored row (goal, hindsight) in a draw, by the definition, row by row."""
    result = []
    for goal, is_hindsight in stored:
        side = [g for g, h in stored if h == is_hindsight]
        kind = [g for g in side if g % 2 == goal % 2]
        chance = hindsight_share if is_hindsight else 1 - hindsight_share
        chance *= prior[goal % 2] / sum(prior[k] for k in {g % 2 for g in side})
        chance /= len(set(kind)) * kind.count(goal) if is_hindsight else len(kind)
        result.append(chance)
    return torch.tensor(result)


@settings(deadline=None, max_examples=25)
@given(
    calls=st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12),
        min_size=1,
        max_size=6,
    )
)
@pytest.mark.filterwarnings("ignore:The replay buffer holds no")
def test_chances_are_those_of_the_definition(calls):
    """Also where rows were overwritten, and goals have lost all of theirs."""
    prior = [1.0, 3.0]
    buffer = make_buffer(GoalBalancedSampler(prior, ratio=0.5), capacity=16, batch_size=8000)
    stored, cursor = {}, 0
    for call in calls:
        goals, hindsight = zip(*call, strict=True)
        added = rows(goals, hindsight, first=cursor)  # of one kind or another, odd goals or even
        buffer.extend(added.set("goal_kind", added["goal_kind"] % 2))
        for row in call:
            stored[cursor % 16] = row
            cursor += 1
    now = [stored[place] for place in sorted(stored)]
    sides = {is_hindsight for _, is_hindsight in now}
    share = 0.5 if len(sides) == 2 else float(sides == {True})
    expected = chances(now, share, prior) * 8000
    counts = torch.bincount(buffer.sample()["index"], minlength=len(now))
    assert ((counts - expected).abs() < 6 * expected.sqrt() + 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_goals_of_any_numbers_are_told_apart(dtype):
    """0 in 90 rows and 0.5 in 10 are drawn as often as one another; -0 is no goal beside 0."""
    buffer = make_buffer(GoalBalancedSampler([1], 1.0), batch_size=1000)
    goals = torch.tensor([0.0, -0.0] * 45 + [0.5] * 10).to(dtype).unsqueeze(-1)
    buffer.extend(rows([0] * 100, True).set("goal_tokens", goals))
    assert 400 < int((buffer.sample()["goal_tokens"] != 0).sum()) < 600


@pytest.mark.parametrize("kind", [GoalKindSampler, GoalBalancedSampler])
def test_the_prior_may_hold_for_hindsight_alone(kind):
    """Of 60 original rows of kind 0 and 20 of kind 3, 24 and 8 are among 32."""
    buffer = make_buffer(kind([1, 1, 1, 1], 0.5, hindsight_only=True), batch_size=64)
    buffer.extend(torch.cat([rows([0] * 60 + [3] * 20, False), rows([0, 1, 2, 3] * 5, True)]))
    batch = buffer.sample()
    is_hindsight = batch["is_hindsight"].squeeze(-1)
    assert batch["goal_kind"][~is_hindsight].long().bincount(minlength=4).tolist() == [24, 0, 0, 8]
    assert batch["goal_kind"][is_hindsight].long().bincount().tolist() == [8, 8, 8, 8]
    with pytest.raises(ValueError, match=r"hindsight_only \(True\) needs a ratio"):
        kind([1, 1], hindsight_only=True)
