"""Samplers: exact shares of hindsight, a prior over goal kinds, goals of a kind drawn alike.

And the row lists behind them, against plain sets.
"""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)

from torchrl_glam.replay import GoalBalancedSampler, GoalKindSampler, HindsightRatioSampler
from torchrl_glam.replay._row_groups import RowGroups

group_of_rows = st.dictionaries(st.integers(0, 19), st.integers(-1, 9), min_size=1)


@settings(deadline=None, max_examples=60)
@given(writes=st.lists(group_of_rows, min_size=1, max_size=12))
def test_row_groups_equal_plain_sets(writes):
    """Of three groups at first; others are met on the way, and -1 is none."""
    groups, reference = RowGroups(3, capacity=20), {}
    for write in writes:
        groups.assign(torch.tensor(list(write)), torch.tensor(list(write.values())))
        reference |= write
        state = groups.state_dict()
        for group, line in enumerate(state["lines"].split(groups.counts.tolist())):
            expected = [row for row, g in reference.items() if g == group]
            assert sorted(line.tolist()) == sorted(expected)
            if expected:
                drawn = groups.draw(torch.full((200,), group), None)
                assert set(drawn.tolist()) <= set(expected)
        assert len(state["lines"]) == sum(group >= 0 for group in reference.values())
    restored = RowGroups.from_state_dict(state).state_dict()
    assert restored["lines"].equal(state["lines"]) and restored["sizes"].equal(state["sizes"])


def make_buffer(sampler, capacity=100, batch_size=16, **kwargs):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


def rows(is_hindsight, kinds=0, first=0):
    """Rows that every sampler can read; the goal is the row's number."""
    is_hindsight = torch.as_tensor(is_hindsight).bool()
    number = torch.arange(first, first + len(is_hindsight))
    kinds = torch.as_tensor(kinds, dtype=torch.int8).expand(len(number))
    content = {"is_hindsight": is_hindsight, "goal_kind": kinds, "number": number}
    return TensorDict({**content, "goal_tokens": number.unsqueeze(-1)}, [len(number)])


SAMPLERS = [
    lambda: HindsightRatioSampler(0.5),
    lambda: GoalKindSampler([1], 0.5),
    lambda: GoalBalancedSampler([1], 0.5),
]
OTHERS = [*SAMPLERS, lambda: GoalKindSampler([1, 0], 0.5)]
each_sampler = pytest.mark.parametrize("make_sampler", SAMPLERS, ids=["ratio", "kinds", "goals"])


def test_batches_are_in_random_order():
    buffer = make_buffer(HindsightRatioSampler(0.5), batch_size=20_000)
    buffer.extend(rows([True] * 30 + [False] * 5))
    first_half = int(buffer.sample()["is_hindsight"][:10_000].sum())
    assert abs(first_half - 5000) < 250


@pytest.mark.parametrize("kind", [False, True])
def test_a_kind_without_rows_is_replaced_with_a_warning(kind):
    absent = "original" if kind else "hindsight"
    buffer = make_buffer(HindsightRatioSampler(0.5))
    buffer.extend(rows([kind] * 10))
    with pytest.warns(UserWarning, match=f"holds no {absent} transitions"):
        assert (buffer.sample()["is_hindsight"] == kind).all()
    buffer.extend(rows([not kind]))
    assert int(buffer.sample()["is_hindsight"].sum()) == 8


def test_unusable_storages_are_refused():
    with pytest.raises(RuntimeError, match="no episode has ended"):
        make_buffer(HindsightRatioSampler()).sample()
    with pytest.raises(KeyError, match="HindsightTransform"):
        make_buffer(HindsightRatioSampler()).extend(rows([True]).exclude("is_hindsight"))
    with pytest.raises(KeyError, match="goal_tokens"):
        make_buffer(GoalBalancedSampler([1])).extend(rows([True]).exclude("goal_tokens"))
    buffer = TensorDictReplayBuffer(storage=ListStorage(9), sampler=HindsightRatioSampler())
    with pytest.raises(TypeError, match="ListStorage"):
        buffer.extend(rows([True]))


@each_sampler
@pytest.mark.parametrize("way", ["index", "other sampler", "then another write"])
def test_rows_written_past_the_sampler_are_read(make_sampler, way):
    """Half of the 20 hindsight rows become original: batches stay half and half."""
    buffer = make_buffer(make_sampler(), capacity=60, batch_size=20)
    buffer.extend(rows([True] * 20 + [False] * 40))
    buffer.sample()
    changed = rows([True] * 10 + [False] * 50)
    if way == "other sampler":
        own = buffer.set_sampler(RandomSampler())
        buffer.extend(changed)
        buffer.set_sampler(own)
    else:
        buffer[torch.arange(60)] = changed.set("index", torch.arange(60))
    if way == "then another write":
        buffer.extend(rows([True, False]))
    for _ in range(20):
        assert int(buffer.sample()["is_hindsight"].sum()) == 10


def assert_all_rows_are_counted(buffer):
    hindsight = int(buffer[:]["is_hindsight"].sum())
    assert buffer.sampler._groups.counts.tolist() == [len(buffer) - hindsight, hindsight]


def test_more_rows_than_the_capacity_in_one_call_and_a_single_one():
    buffer = make_buffer(HindsightRatioSampler(0.5), capacity=10)
    for first in (0, 27):  # the first write of all has the storage read
        buffer.extend(rows([True, False] * 12 + [True] * 3, first=first))
    buffer.add(rows([True], first=54)[0])
    assert_all_rows_are_counted(buffer)


def test_rows_that_a_writer_leaves_out_are_not_counted():
    best = TensorDictMaxValueWriter(rank_key="number")
    buffer = make_buffer(HindsightRatioSampler(0.5), capacity=5, writer=best)
    buffer.extend(rows([1, 0, 1, 0], first=10))
    buffer.extend(rows([1, 0, 1, 0]))  # of lesser rank: one of them still finds room
    assert_all_rows_are_counted(buffer)


@pytest.mark.parametrize("make_other", OTHERS)
@pytest.mark.parametrize("make_sampler", [*OTHERS, RandomSampler])
def test_with_the_state_of_another_sampler_rows_are_read_anew(make_sampler, make_other):
    buffer, other = make_buffer(make_sampler()), make_buffer(make_other())
    buffer.extend(rows([True] * 10 + [False] * 40))
    other.load_state_dict(buffer.state_dict())
    assert int(other.sample()["is_hindsight"].sum()) == 8


@each_sampler
def test_a_sampler_that_comes_late_reads_the_storage_and_an_emptied_one_starts_again(make_sampler):
    buffer = make_buffer(RandomSampler())
    buffer.extend(rows([True] * 30 + [False] * 6))
    buffer.set_sampler(make_sampler())
    assert int(buffer.sample()["is_hindsight"].sum()) == 8
    buffer.empty()
    buffer.extend(rows([True, True, False]))
    batch = buffer.sample()
    assert (batch["index"] < 3).all() and int(batch["is_hindsight"].sum()) == 8


@pytest.mark.parametrize("ratio", [-0.01, 1.01, float("nan")])
def test_ratio_out_of_range(ratio):
    for make in (HindsightRatioSampler, lambda ratio: GoalKindSampler([1], ratio)):
        with pytest.raises(ValueError, match=f"ratio \\({ratio}\\) must be in \\[0, 1\\]"):
            make(ratio)


def test_a_state_from_before_the_first_hindsight_row_is_read_back():
    buffer, other = (make_buffer(GoalBalancedSampler([1], 0.5)) for _ in range(2))
    buffer.extend(rows([0, 0]))
    other.load_state_dict(buffer.state_dict())
    for each in (buffer, other):
        each.extend(rows([1, 1, 1, 0]))
    assert torch.equal(buffer.sample()["number"], other.sample()["number"])


PRIOR = [0.1, 0.2, 0.3, 0.4]


def skewed(count, first=0, seed=0):
    """Mostly hindsight, mostly of the kinds that the prior wants least; some of each."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor([8.0, 4, 2, 1])
    kinds = weights.multinomial(count, replacement=True, generator=generator)
    is_hindsight = torch.rand(count, generator=generator) < 0.9
    kinds[:8], is_hindsight[:8] = torch.arange(8) % 4, torch.arange(8) < 4
    return rows(is_hindsight.unsqueeze(-1), kinds, first)


def kinds_of(batch):
    return batch["goal_kind"].long().bincount(minlength=4).tolist()


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize(
    ("prior", "ratio"), [(PRIOR, None), *product([None, PRIOR], [0.0, 0.1, 0.5, 0.77, 1.0])]
)
def test_shares_are_exact_and_counts_next_to_the_prior_after_wrap_around(prior, ratio, prefetch):
    sampler = HindsightRatioSampler(ratio) if prior is None else GoalKindSampler(prior, ratio)
    buffer = make_buffer(sampler, batch_size=63, prefetch=prefetch)
    for call in range(30):
        buffer.extend(skewed(40, first=40 * call, seed=call))
        batch = buffer.sample()
        # a prefetched batch may have been drawn before the newest rows came
        assert (batch["number"] >= 40 * (call + 1 - (prefetch or 0)) - 100).all()
        is_hindsight = batch["is_hindsight"].squeeze(-1)
        sides = [batch] if ratio is None else [batch[is_hindsight == side] for side in (0, 1)]
        if ratio is not None:
            assert int(is_hindsight.sum()) == round(ratio * 63)
        for side in sides if prior else []:
            count = torch.tensor(kinds_of(side))
            assert ((count - len(side) * torch.tensor(PRIOR)).abs() < 1).all()
    if prefetch:
        buffer.shutdown()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_small_batches_have_the_prior_as_their_mean(batch_size):
    buffer = make_buffer(GoalKindSampler(PRIOR), batch_size=batch_size)
    buffer.extend(skewed(100))
    drawn = torch.cat([buffer.sample() for _ in range(2000)])
    share, prior = torch.tensor(kinds_of(drawn)) / len(drawn), torch.tensor(PRIOR)
    spread = (prior * (1 - prior) / len(drawn)).sqrt()
    assert ((share - prior).abs() < 5 * spread).all()


def test_a_kind_without_rows_is_shared_among_the_others_with_one_warning(recwarn):
    """The last one, of no weight, fills in only when nothing else is there."""
    buffer = make_buffer(GoalKindSampler([0.2, 0.6, 0.2, 0]), batch_size=10)
    buffer.extend(rows([0, 1], [3, 3]))
    with pytest.warns(UserWarning, match=r"no transitions with goals of kind \[0, 1, 2\]"):
        assert kinds_of(buffer.sample()) == [0, 0, 0, 10]
    recwarn.clear()
    buffer.extend(rows([0, 1, 1, 0], [0, 2, 2, 2]))
    assert kinds_of(buffer.sample()) == [5, 0, 5, 0]
    assert not recwarn.list
    buffer.extend(rows([1], [1]))
    assert kinds_of(buffer.sample()) == [2, 6, 2, 0]


def test_a_prior_that_is_not_known_is_what_was_pursued():
    """Of 60 original rows of kind 0 and 20 of kind 1; at first hindsight has kind 2 alone."""
    buffer = make_buffer(GoalKindSampler(4, ratio=0.25), capacity=200, batch_size=32)
    buffer.extend(rows([0] * 80 + [1] * 40, [0] * 60 + [1] * 20 + [2] * 40))
    with pytest.warns(UserWarning, match=r"no hindsight transitions.*prior=4, ratio=0.25\)"):
        assert kinds_of(buffer.sample()) == [24, 8, 0, 0]
    buffer.extend(rows([1] * 30, [0] * 5 + [1] * 25))
    batch = buffer.sample()
    for side, expected in ((False, [18, 6, 0, 0]), (True, [6, 2, 0, 0])):
        assert kinds_of(batch[batch["is_hindsight"].squeeze(-1) == side]) == expected


@pytest.mark.parametrize("prior", [[], 0, [0, 0], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_prior_out_of_range(prior):
    with pytest.raises(ValueError, match="must be weights of at least 0"):
        GoalKindSampler(prior)


@pytest.mark.parametrize("kind", [-1, 4])
def test_kinds_without_a_weight_are_refused_until_they_are_overwritten(kind):
    buffer = make_buffer(GoalKindSampler(PRIOR), capacity=5)
    refused = pytest.raises(ValueError, match="'goal_kind' of the rows stored is from .* 0 to 3")
    buffer.extend(rows([0] * 5, [0, 1, 2, 3, 0]))
    with refused:
        buffer.extend(rows([0] * 5, [0, 1, 2, 3, kind]))
    for _ in range(2):
        with refused:
            buffer.sample()
    buffer.extend(rows([0] * 5, [0, 1, 2, 3, 3]))
    assert set(buffer.sample()["goal_kind"].tolist()) == {0, 1, 2, 3}


def test_more_kinds_than_a_byte_counts():
    """100 kinds alike, two rows of each, half of them hindsight: all are drawn as often."""
    buffer = make_buffer(GoalKindSampler([1] * 100, ratio=0.5), capacity=500, batch_size=400)
    buffer.extend(rows(torch.arange(200) < 100, torch.arange(100).repeat(2)))
    batch = buffer.sample()
    for is_hindsight in (False, True):
        drawn = batch["goal_kind"][batch["is_hindsight"] == is_hindsight]
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


row_lists = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12)


@settings(deadline=None, max_examples=25)
@given(calls=st.lists(row_lists, min_size=1, max_size=6))
@pytest.mark.filterwarnings("ignore:The replay buffer holds no")
def test_chances_are_those_of_the_definition(calls):
    """Also where rows were overwritten, and goals have lost all of theirs."""
    prior = [1.0, 3.0]
    buffer = make_buffer(GoalBalancedSampler(prior, ratio=0.5), capacity=16, batch_size=8000)
    stored, cursor = {}, 0
    for call in calls:
        goals, hindsight = zip(*call, strict=True)
        goals = torch.tensor(goals).unsqueeze(-1)
        added = rows(hindsight, goals.squeeze(-1) % 2)  # odd goals are of another kind than even
        buffer.extend(added.set("goal_tokens", goals))
        for row in call:
            stored[cursor % 16] = row
            cursor += 1
    now = [stored[place] for place in sorted(stored)]
    sides = {is_hindsight for _, is_hindsight in now}
    share = 0.5 if len(sides) == 2 else float(sides == {True})
    expected = chances(now, share, prior) * 8000
    counts = torch.bincount(buffer.sample()["index"], minlength=len(now))
    assert ((counts - expected).abs() < 6 * expected.sqrt() + 1).all()


@pytest.mark.parametrize("shape", [[], [1], [2, 2]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_goals_of_any_numbers_and_shape_are_told_apart(dtype, shape):
    """0 in 90 rows and 0.5 in 10 are drawn as often as one another; -0 is no goal beside 0."""
    buffer = make_buffer(GoalBalancedSampler([1], 1.0), batch_size=1000)
    goals = torch.tensor([0.0, -0.0] * 45 + [0.5] * 10).to(dtype)
    goals = goals.view(-1, *[1] * len(shape)).expand(-1, *shape)
    buffer.extend(rows([True] * 100).set("goal_tokens", goals))
    drawn = buffer.sample()["goal_tokens"].reshape(1000, -1)
    assert 400 < int((drawn[:, 0] != 0).sum()) < 600


@pytest.mark.parametrize("kind", [GoalKindSampler, GoalBalancedSampler])
def test_the_prior_may_hold_for_hindsight_alone(kind):
    """Of 60 original rows of kind 0 and 20 of kind 3, 24 and 8 are among 32."""
    buffer = make_buffer(kind([1, 1, 1, 1], 0.5, hindsight_only=True), batch_size=64)
    buffer.extend(rows([0] * 80 + [1] * 20, [0] * 60 + [3] * 20 + [0, 1, 2, 3] * 5))
    batch = buffer.sample()
    is_hindsight = batch["is_hindsight"]
    assert kinds_of(batch[~is_hindsight]) == [24, 0, 0, 8]
    assert kinds_of(batch[is_hindsight]) == [8, 8, 8, 8]
    with pytest.raises(ValueError, match=r"hindsight_only \(True\) needs a ratio"):
        kind([1, 1], hindsight_only=True)
