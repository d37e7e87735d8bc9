"""Exact shares of hindsight in a batch, and the row lists behind them against plain sets."""

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


@settings(deadline=None, max_examples=60)
@given(
    writes=st.lists(
        st.dictionaries(st.integers(0, 19), st.integers(-1, 9), min_size=1), min_size=1, max_size=12
    )
)
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
        assert len(groups) == sum(group >= 0 for group in reference.values())
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


def rows(kinds, first=0):
    """Rows that every sampler can read; the goal is the row's number."""
    kinds = torch.as_tensor(kinds).bool()
    number = torch.arange(first, first + len(kinds))
    content = {"is_hindsight": kinds, "number": number, "goal_tokens": number.unsqueeze(-1)}
    return TensorDict({**content, "goal_kind": torch.zeros_like(number)}, [len(kinds)])


SAMPLERS = [
    lambda: HindsightRatioSampler(0.5),
    lambda: GoalKindSampler([1], 0.5),
    lambda: GoalBalancedSampler([1], 0.5),
]
OTHERS = [*SAMPLERS, lambda: GoalKindSampler([1, 0], 0.5)]
each_sampler = pytest.mark.parametrize("make_sampler", SAMPLERS, ids=["ratio", "kinds", "goals"])


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_share_is_exact_also_after_wrap_around(ratio, batch_size):
    buffer = make_buffer(HindsightRatioSampler(ratio), batch_size=batch_size)
    generator = torch.Generator().manual_seed(1)
    for call in range(12):
        kinds = torch.rand(23, generator=generator) < 0.9 - 0.07 * call
        kinds[:2] = torch.tensor([True, False])
        buffer.extend(rows(kinds, first=23 * call))
        sample = buffer.sample()
        assert int(sample["is_hindsight"].sum()) == round(ratio * batch_size)
        assert (sample["number"] > 23 * (call + 1) - 1 - 100).all()  # only rows still stored


def test_batches_are_in_random_order():
    buffer = make_buffer(HindsightRatioSampler(0.5), batch_size=20_000)
    buffer.extend(rows([True] * 30 + [False] * 5))
    first_half = int(buffer.sample()["is_hindsight"][:10_000].sum())
    assert abs(first_half - 5000) < 250


@pytest.mark.parametrize("kind", [False, True])
def test_a_kind_without_rows_is_replaced_with_one_warning(kind, recwarn):
    absent = "original" if kind else "hindsight"
    buffer = make_buffer(HindsightRatioSampler(0.5))
    buffer.extend(rows([kind] * 10))
    with pytest.warns(UserWarning, match=f"holds no {absent} transitions"):
        assert (buffer.sample()["is_hindsight"] == kind).all()
    recwarn.clear()
    buffer.sample()
    assert not recwarn.list
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


def test_more_rows_than_the_capacity_in_one_call_and_a_single_one():
    buffer = make_buffer(HindsightRatioSampler(0.5), capacity=10)
    buffer.extend(rows([True, False] * 12 + [True] * 3))
    buffer.add(rows([True], first=27)[0])
    stored = buffer[:]["is_hindsight"]
    assert buffer.sampler._groups.counts.tolist() == [10 - int(stored.sum()), int(stored.sum())]


@each_sampler
def test_a_restored_buffer_draws_as_the_unbroken_one(make_sampler, tmp_path):
    buffer, other = (make_buffer(make_sampler(), capacity=60) for _ in range(2))
    kinds = torch.rand(8, 25, generator=torch.Generator().manual_seed(0)) < 0.7
    for call in kinds[:4]:
        buffer.extend(rows(call))
        buffer.sample()
    torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
    other.load_state_dict(torch.load(tmp_path / "buffer.pt", weights_only=True))
    for call in kinds[4:]:
        for each in (buffer, other):
            each.extend(rows(call))
        assert (buffer.sample() == other.sample()).all()


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


@pytest.mark.parametrize("ratio", [-0.01, 1.01, 50, float("nan")])
def test_ratio_out_of_range(ratio):
    for make in (HindsightRatioSampler, lambda ratio: GoalKindSampler([1], ratio)):
        with pytest.raises(ValueError, match=f"ratio \\({ratio}\\) must be in \\[0, 1\\]"):
            make(ratio)


@pytest.mark.parametrize("shape", [[], [1], [2, 2]], ids=str)
def test_a_state_from_before_the_first_hindsight_row_is_read_back(shape):
    """And goals of any shape are told apart, a single number among them."""

    def goal_rows(kinds):
        number = torch.arange(len(kinds)).view(-1, *[1] * len(shape)).expand(-1, *shape)
        return rows(kinds).set("goal_tokens", number)

    buffer, other = (make_buffer(GoalBalancedSampler([1], 0.5)) for _ in range(2))
    buffer.extend(goal_rows([0, 0]))
    other.load_state_dict(buffer.state_dict())
    for each in (buffer, other):
        each.extend(goal_rows([1, 1, 1, 0]))
    assert torch.equal(buffer.sample()["number"], other.sample()["number"])


def test_rows_that_a_writer_leaves_out_are_not_counted():
    buffer = make_buffer(
        HindsightRatioSampler(0.5), capacity=5, writer=TensorDictMaxValueWriter(rank_key="number")
    )
    buffer.extend(rows([1, 0, 1, 0], first=10))
    buffer.extend(rows([1, 0, 1, 0]))  # of lesser rank: one of them still finds room
    held = buffer.storage[:]["is_hindsight"]
    assert buffer.sampler._groups.counts.tolist() == [int((~held).sum()), int(held.sum())]
