"""Prioritised sampling: probabilities and weights by hand, exact shares, and resuming."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer

from torchrl_glam.replay import (
    CompactStorage,
    GoalKindSampler,
    HindsightRatioSampler,
    PrioritizedGroupSampler,
)
from torchrl_glam.replay.priority_groups import PriorityGroups
from torchrl_glam.training.checkpointing import CheckpointManager

NUM_GROUPS = 3


@settings(deadline=None, max_examples=50)
@given(
    capacity=st.sampled_from([1, 5, 64, 65, 5000]),
    writes=st.lists(
        st.dictionaries(
            st.integers(0, 4999),
            st.tuples(st.integers(0, NUM_GROUPS - 1), st.floats(0.01, 100.0)),
            min_size=1,
            max_size=20,
        ),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
def test_draws_equal_a_search_in_the_cumulative_weights(capacity, writes, seed):
    groups, reference = PriorityGroups(NUM_GROUPS, capacity), {}
    for write in writes:
        write = {row % capacity: value for row, value in write.items()}
        rows = torch.tensor(list(write))
        groups.assign(rows, torch.tensor([group for group, _ in write.values()]))
        groups.reweight(rows, torch.tensor([weight for _, weight in write.values()]).double())
        reference |= write
    groups = PriorityGroups.from_state_dict(groups.state_dict())
    lines = [{r: w for r, (g, w) in reference.items() if g == group} for group in range(NUM_GROUPS)]
    assert groups.sizes == [len(line) for line in lines]
    assert groups.totals().tolist() == pytest.approx([sum(line.values()) for line in lines])
    counts = [9 if line else 0 for line in lines]
    drawn = groups.draw_each(counts, torch.Generator().manual_seed(seed)).split(counts)
    shares = torch.rand(
        sum(counts), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    for line, rows, share in zip(lines, drawn, shares.split(counts), strict=True):
        for row, u in zip(rows.tolist(), share.tolist(), strict=True):
            below = sum(w for r, w in line.items() if r < row)
            tolerance = 1e-9 * sum(line.values())
            assert below - tolerance <= u * sum(line.values()) <= below + line[row] + tolerance


def make_buffer(sampler, capacity=100, batch_size=8, storage=LazyTensorStorage, **kwargs):
    return TensorDictReplayBuffer(
        storage=storage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


def rows(count, first=0):
    number = torch.arange(first, first + count)
    kinds = {"is_hindsight": number % 4 > 0, "goal_kind": (number % 3).to(torch.int8)}
    return TensorDict({"number": number, **kinds}, [count])


def test_probabilities_and_weights_by_hand():
    """Originals 0 and 4 with errors 1 and 3, hindsight 1, 2, 3 with 2, 1 and 1; alpha 2."""
    sampler = PrioritizedGroupSampler(HindsightRatioSampler(0.5), alpha=2.0, beta=1.0, eps=1e-12)
    buffer = make_buffer(sampler, batch_size=200)
    buffer.extend(rows(5))
    buffer.update_priority(torch.arange(5), torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0]))
    groups = sampler.sampler._groups
    chance = torch.tensor([1 / 10, 4 / 6, 1 / 6, 1 / 6, 9 / 10], dtype=torch.float64)
    assert torch.allclose(groups.probabilities(torch.arange(5)), chance)
    batch = buffer.sample()
    assert int(batch["is_hindsight"].sum()) == 100
    # 1 / (n P): 5, 1/2, 2, 2, 5/9; the largest in the batch is 5
    weight = torch.tensor([1, 0.1, 0.4, 0.4, 1 / 9])
    assert set(batch["number"].tolist()) == {0, 1, 2, 3, 4}
    assert torch.allclose(batch["priority_weight"], weight[batch["number"]])


def test_full_weights_undo_the_preference_in_the_mean():
    """Probability times weight is the same for all rows, however they differ in error."""
    sampler = PrioritizedGroupSampler(alpha=0.7, beta=1.0)
    buffer = make_buffer(sampler)
    buffer.extend(rows(6))
    buffer.update_priority(torch.arange(6), torch.tensor([0.1, 0.2, 0.3, 0.4, 5.0, 0.0]))
    chance = sampler.sampler._groups.probabilities(torch.arange(6))
    batch = buffer.sample()
    product = chance[batch["number"]] * batch["priority_weight"]
    assert torch.allclose(product, product[0].expand_as(product))


def test_new_rows_have_the_largest_priority_so_far():
    sampler = PrioritizedGroupSampler(alpha=1.0, beta=0.0, eps=1e-12)
    buffer = make_buffer(sampler, capacity=6)
    buffer.extend(rows(4))
    assert torch.allclose(sampler.sampler._groups.totals(), torch.tensor([4.0]).double())
    buffer.update_priority(torch.tensor([0, 1, 2, 3]), torch.tensor([0.5, 0.25, 0.0, 0.0]))
    buffer.update_priority(torch.tensor([0]), torch.tensor([0.125]))
    buffer.extend(rows(4, first=4))  # two new ones, and rows 0 and 1 written over
    chance = sampler.sampler._groups.probabilities(torch.arange(6))
    assert torch.allclose(chance, torch.tensor([1.0, 1, 0, 0, 1, 1]).double() / 4)
    assert (buffer.sample()["priority_weight"] == 1).all()


@pytest.mark.parametrize("storage", [LazyTensorStorage, CompactStorage])
@pytest.mark.parametrize(
    "inner", [lambda: HindsightRatioSampler(0.25), lambda: GoalKindSampler([1, 1, 2], 0.25)]
)
def test_shares_stay_exact_through_wrap_around_and_updates(inner, storage):
    buffer = make_buffer(PrioritizedGroupSampler(inner()), 50, batch_size=16, storage=storage)
    for call in range(8):
        buffer.extend(rows(20, first=20 * call))
        batch = buffer.sample()
        assert int(batch["is_hindsight"].sum()) == 4
        assert (batch["number"] > 20 * (call + 1) - 51).all()
        buffer.update_tensordict_priority(batch.set("td_error", torch.rand(16) ** 4))


def test_the_errors_that_a_loss_writes_become_the_priorities():
    sampler = PrioritizedGroupSampler(alpha=1.0, beta=0.4, eps=1e-12)
    buffer = make_buffer(sampler)
    buffer.extend(rows(4))
    batch = TensorDict({"index": torch.tensor([2, 0]), "td_error": torch.tensor([8.0, 6.0])}, [2])
    buffer.update_tensordict_priority(batch)
    chance = sampler.sampler._groups.probabilities(torch.arange(4))
    assert torch.allclose(chance, torch.tensor([6.0, 1, 8, 1]).double() / 16)


def test_rows_written_before_the_sampler_was_there():
    buffer = make_buffer(RandomSampler())
    buffer.extend(rows(8))
    buffer.set_sampler(PrioritizedGroupSampler(HindsightRatioSampler(0.5)))
    buffer.update_priority(torch.arange(8), torch.ones(8))
    assert int(buffer.sample()["is_hindsight"].sum()) == 4
    late = PrioritizedGroupSampler(HindsightRatioSampler(0.5))
    assert int(make_late(buffer, late).sample()["is_hindsight"].sum()) == 4


def make_late(buffer, sampler):
    """A buffer that is built around a storage that has rows."""
    return TensorDictReplayBuffer(storage=buffer.storage, sampler=sampler, batch_size=8)


def drive(buffer, calls, draws):
    for call in calls:
        buffer.extend(rows(20, first=20 * call))
        batch = buffer.sample()
        draws.append(batch.clone())
        buffer.update_tensordict_priority(batch.set("td_error", (batch["number"] % 7) / 3.0))
    return draws


@pytest.mark.parametrize("way", ["state_dict", "dumps", "checkpoint"])
def test_resumed_draws_are_those_of_an_unbroken_run(tmp_path, way):
    def fresh():
        return make_buffer(PrioritizedGroupSampler(HindsightRatioSampler(0.5)), capacity=50)

    unbroken = drive(fresh(), range(9), [])
    first, second = fresh(), fresh()
    draws = drive(first, range(5), [])
    if way == "dumps":
        first.dumps(tmp_path / "buffer")
        second.loads(tmp_path / "buffer")
    elif way == "checkpoint":
        CheckpointManager(tmp_path).save(1, {"buffer": first}, {})
        CheckpointManager(tmp_path).load({"buffer": second}, {})
    else:
        torch.save(first.state_dict(), tmp_path / "buffer")
        second.load_state_dict(torch.load(tmp_path / "buffer", weights_only=True))
    drive(second, range(5, 9), draws)
    for one, other in zip(draws, unbroken, strict=True):
        assert (one == other).all()
    second.empty()
    assert second.sampler.default_priority == 1.0
    with pytest.raises(RuntimeError, match="no episode has ended"):
        second.sample()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1}, r"alpha \(-0.1\) must be at least 0"),
        ({"alpha": float("nan")}, r"alpha \(nan\)"),
        ({"beta": 1.5}, r"beta \(1.5\) must be at least 0 and at most 1"),
        ({"eps": 0.0}, r"eps \(0.0\) must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrioritizedGroupSampler(**arguments)


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ([1.0, -2.0], "from -2 to 1.* at least 0"),
        ([1.0, float("nan")], "must be finite"),
        ([1.0, 2.0, 3.0], "3 numbers for 2 rows"),
    ],
)
def test_wrong_priorities_are_refused_and_change_nothing(priority, message):
    sampler = PrioritizedGroupSampler()
    buffer = make_buffer(sampler)
    buffer.extend(rows(4))
    with pytest.raises(ValueError, match=message):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor(priority))
    assert sampler.sampler._groups.totals().tolist() == [4.0]
    assert sampler.default_priority == 1.0
