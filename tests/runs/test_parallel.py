"""What the processes of a run agree on, by two that talk, and shares of every size."""

import time
from dataclasses import dataclass

import pytest
import torch
from forked_processes import caught, run_processes
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from torchrl_glam.objectives import GradientReducer, LostProcessError
from torchrl_glam.runs.config import SACGLAMConfig
from torchrl_glam.runs.processes.ranks import OtherProcessError, Ranks
from torchrl_glam.runs.processes.rows import minibatches, standardise
from torchrl_glam.runs.records.statistics import EpisodeStatistics, GoalCoverage


def test_both_hear_the_same():
    def check(ranks):
        rank = ranks.rank
        assert [ranks.any(rank == 1), ranks.any(False)] == [True, False]
        assert [ranks.all(rank == 1), ranks.all(True)] == [False, True]
        terms = TensorDict({"loss": torch.tensor(1.0 + rank), "alpha": torch.tensor([0.5])})
        total = {key: value.item() for key, value in ranks.sum(terms).items()}
        assert total == {"loss": 3.0, "alpha": 1.0}
        means = ranks.mean({"share": float(rank), "lag/max": 3.0 + rank})
        assert means == {"share": 0.5, "lag/max": 4.0}
        assert ranks.gather(f"of {rank}") == ["of 0", "of 1"]

    run_processes(check)


def test_values_of_all_are_standardised_together():
    values = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[8.0], [16.0]])
    whole = torch.cat(values)
    expected = (whole - whole.mean()) / whole.std()
    found = run_processes(lambda ranks: standardise(values[ranks.rank], ranks))
    torch.testing.assert_close(torch.cat(found), expected)
    torch.testing.assert_close(standardise(whole, Ranks()), expected)


def test_records_are_handed_over_to_the_first():
    """Two environments' episodes end on each process, with success on the first."""

    def hand_over(ranks):
        done, kind = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1, dtype=torch.long)
        named = {"goal_tokens": torch.tensor([[[5]], [[6 + ranks.rank]]]), "kind": kind}
        after = {"done": done, "reward": done * (1.0 - ranks.rank), "hindsight": named}
        records = EpisodeStatistics(["grasp"]), GoalCoverage()
        for record in records:
            record.add(TensorDict({"goal_kind": kind.squeeze(1), "next": after}, [2]))
        ranks.hand_over(*records)
        return records[0].summary() | records[1].summary()

    first, second = run_processes(hand_over)
    assert first["episodes"] == 4 and first["success"] == 0.5
    assert first["goals/named"] == 3  # 5 and 6 of one, 5 and 7 of the other
    assert first["goals/new_per_1000_steps"] == 750.0
    assert second["episodes"] == 0 and second["goals/named"] == 0


def test_what_fails_on_one_process_fails_on_both():
    def fail(ranks):
        with ranks.together():
            if ranks.rank == 1:
                raise PermissionError("no such luck")

    first, second = run_processes(lambda ranks: caught(lambda: fail(ranks)))
    assert first == (OtherProcessError.__name__, "process 1 of 2: PermissionError: no such luck")
    assert second == ("PermissionError", "no such luck")


class Model(nn.Module):
    """A trunk with a frozen weight, and a head, drawn differently on each process."""

    def __init__(self, rank):
        super().__init__()
        self.trunk = nn.Linear(2, 1)
        self.trunk.bias.requires_grad_(False).fill_(1.0)
        self.trunk.weight.data.fill_(rank + 1.0)
        self.register_buffer("log_alpha", torch.tensor(float(rank)))


def test_all_start_from_the_first_ones_weights_with_random_numbers_of_their_own():
    def align(ranks):
        model = Model(ranks.rank)
        drifted = r"trunk.weight on process 1 \(\[1, 2\] with"
        with pytest.raises(ValueError, match=drifted):
            ranks.require_alike(model)
        ranks.align(model, seed=ranks.rank)
        aligned = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
        assert aligned == {"trunk.weight": [1, 1], "trunk.bias": [1], "log_alpha": [0]}
        drawn = torch.rand(()).item()
        model.trunk.bias.data.fill_(float(ranks.rank))
        with pytest.raises(ValueError, match=r"bias on process 1 \(\[1\] with checksum"):
            ranks.align(model, 0)
        return drawn

    first, second = run_processes(align)
    assert first != second


def test_a_process_that_ends_is_noticed_at_the_next_message():
    def leave(ranks):
        ranks.any(True)  # both have found each other
        if ranks.rank == 1:
            return
        weight = nn.Parameter(torch.ones(2))
        reducer = GradientReducer(ranks.group)
        for message in (
            lambda: ranks.any(True),
            lambda: reducer.sum({"all": [weight]}, {"all": {}}),
            lambda: ranks.gather(1),
        ):
            with pytest.raises(LostProcessError, match="(?s)process of this run has ended.*resume"):
                message()

    run_processes(leave)


def test_a_process_that_hangs_is_given_up_in_time():
    def hang(ranks):
        if ranks.rank == 1:
            time.sleep(4)
        else:
            with pytest.raises(LostProcessError):
                ranks.all(True)

    run_processes(hang, timeout=1)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 1.0])
def test_shares_add_up(size, ratio):
    config = SACGLAMConfig(hindsight_ratio=ratio, num_envs=32, batch_size=128)
    shares = [Ranks(rank, size).share(config) for rank in range(size)]
    for key in ("num_envs", "batch_size", "update_every", "capacity", "total_steps"):
        assert {getattr(share, key) * size for share in shares} == {getattr(config, key)}
    relabelled = [round(share.hindsight_ratio * share.batch_size) for share in shares]
    assert sum(relabelled) == round(ratio * 128) and max(relabelled) - min(relabelled) <= 1
    assert all(share.total_steps % share.update_every == 0 for share in shares)


def test_seeds_differ_and_one_process_has_the_given_one():
    """Between numbers of processes, too."""
    sizes = ("num_envs", "batch_size", "update_every", "capacity", "total_steps")
    config = SACGLAMConfig(seed=3, **dict.fromkeys(sizes, 12))
    shares = [Ranks(rank, size).share(config) for size in (1, 2, 3, 4) for rank in range(size)]
    seeds = [share.seed for share in shares]
    assert len(set(seeds)) == len(seeds) and seeds[0] == 3


@pytest.mark.parametrize("key", ["num_envs", "batch_size", "capacity"])
def test_what_does_not_divide_is_refused(key):
    values = {"num_envs": 30, "batch_size": 30, "capacity": 30, "update_every": 30, key: 31}
    values["total_steps"] = values["update_every"] = 30 if key != "num_envs" else 31
    with pytest.raises(ValueError, match=rf"{key} \(31\) must be a multiple of the 3 processes"):
        Ranks(0, 3).share(SACGLAMConfig(**values))


def test_goals_that_are_chosen_or_judged_are_refused_with_several_processes():
    for key, value, only in (
        ("goals", "progress", "uniform"),
        ("hindsight_by", "judge", "partner"),
    ):
        config = SACGLAMConfig(**{key: value})
        assert Ranks().share(config) is config
        with pytest.raises(ValueError, match=rf"{key} \({value}\) must be {only} with 2 processes"):
            Ranks(0, 2).share(config)


@dataclass(frozen=True)
class Told(Ranks):
    """A process that knows what the others would say."""

    said: tuple = ()

    def gather(self, value):
        return list(self.said)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 40))
def test_an_epoch_takes_rows_once_and_all_processes_agree_how_many(counts, batch_size):
    batch_size = min(batch_size, sum(counts))
    size = len(counts)
    epochs = [
        minibatches(count, batch_size, Told(rank, size, said=tuple(counts)))
        for rank, count in enumerate(counts)
    ]
    updates = min(sum(counts) // batch_size, *counts)
    assert {len(epoch) for epoch in epochs} == {updates}
    for count, epoch in zip(counts, epochs, strict=True):
        taken = torch.cat([rows for rows, _ in epoch])
        assert len(taken.unique()) == len(taken) and 0 <= taken.min() <= taken.max() < count
        assert all(len(rows) for rows, _ in epoch)
    for update in zip(*epochs, strict=True):
        totals = {total for _, total in update}
        assert totals == {sum(len(rows) for rows, _ in update)}
        assert totals.pop() > batch_size - size
    if len(set(counts)) == 1 and batch_size % size == 0:
        assert {total for epoch in epochs for _, total in epoch} == {batch_size}


def test_alone_an_epoch_is_a_permutation_cut_into_batches():
    torch.manual_seed(3)
    order = torch.randperm(10)
    torch.manual_seed(3)
    batches = minibatches(10, 4, Ranks())
    assert torch.cat([rows for rows, _ in batches]).equal(order[:8])
    assert [total for _, total in batches] == [4, 4]
