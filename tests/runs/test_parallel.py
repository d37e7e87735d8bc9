"""What the processes of a run agree on, by two that talk, shares of every size, and checkpoints."""

import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from forked_processes import caught, run_processes
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_glam.objectives import GradientReducer, LostProcessError
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
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


def test_records_are_handed_over_to_the_first_and_count_on():
    """Two episodes end on each process: 5 and 6 are reached on one, 6 but not 7 on the other."""

    def hand_over(ranks):
        done, kind = torch.ones(2, 1, dtype=torch.bool), torch.tensor([[0], [1]])
        tokens = torch.tensor([[5], [6]]) + ranks.rank
        named = {"goal_tokens": tokens.unsqueeze(1), "kind": kind}
        after = {"done": done, "reward": (tokens < 7).float(), "hindsight": named}
        steps = {"goal_tokens": tokens, "goal_kind": kind.squeeze(1), "next": after}
        episodes, coverage = EpisodeStatistics(["a", "b"]), GoalCoverage(["a", "b"])
        for record in (episodes, coverage):
            record.add(TensorDict(steps, [2]))
        ranks.hand_over(episodes, coverage)
        found = [episodes.summary(), coverage.summary()]
        named["goal_tokens"] = tokens.unsqueeze(1) + 2
        coverage.add(TensorDict(steps, [2]))
        restored = GoalCoverage(["a", "b"])
        restored.load_state_dict(coverage.state_dict())
        return [*found, episodes.summary(), restored.summary()]

    (episodes, coverage, *later), other = run_processes(hand_over)
    pursued = {"success/a": 1.0, "success/b": 0.5, "kinds/pursued/a": 0.5, "kinds/pursued/b": 0.5}
    assert episodes == {"episodes": 4, "success": 0.75, "goals/reached": 2, **pursued}
    named = {"kinds/named/a": 0.5, "kinds/named/b": 0.5}
    assert coverage == {"goals/named": 3, "goals/new_per_1000_steps": 750.0, **named}
    assert later[0] == {"episodes": 0, "goals/reached": 2}
    assert later[1] == {"goals/named": 4, "goals/new_per_1000_steps": 500.0, **named}
    assert other[0]["episodes"] == 0 and other[1]["goals/named"] == 0


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


DIVIDED = ("num_envs", "batch_size", "update_every", "capacity", "total_steps")


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 1.0])
def test_shares_add_up(size, ratio):
    ratios = {"hindsight_ratio": ratio, "hindsight_ratio_end": ratio}
    config = SACGLAMConfig(**ratios, num_envs=32, batch_size=128)
    shares = [Ranks(rank, size).share(config) for rank in range(size)]
    for key in DIVIDED:
        assert {getattr(share, key) * size for share in shares} == {getattr(config, key)}
    relabelled = [round(share.hindsight_ratio * share.batch_size) for share in shares]
    assert sum(relabelled) == round(ratio * 128) and max(relabelled) - min(relabelled) <= 1
    assert all(share.hindsight_ratio_end == share.hindsight_ratio for share in shares)
    assert all(share.total_steps % share.update_every == 0 for share in shares)


def test_seeds_differ_and_one_process_has_the_given_one():
    """Between numbers of processes, too."""
    config = SACGLAMConfig(seed=3, **dict.fromkeys(DIVIDED, 12))
    shares = [Ranks(rank, size).share(config) for size in (1, 2, 3, 4) for rank in range(size)]
    seeds = [share.seed for share in shares]
    assert len(set(seeds)) == len(seeds) and seeds[0] == 3


def test_what_does_not_divide_is_refused():
    config = SACGLAMConfig(**dict.fromkeys(DIVIDED, 30) | {"batch_size": 31})
    with pytest.raises(ValueError, match=r"batch_size \(31\) must be a multiple of the 3 process"):
        Ranks(0, 3).share(config)


def test_goals_that_are_chosen_or_judged_are_refused_with_several_processes():
    for key, value, only in (
        ("goals", "progress", "uniform"),
        ("hindsight_by", "judge", "partner"),
    ):
        config = SACGLAMConfig(**{key: value})
        assert Ranks().share(config) is config
        with pytest.raises(ValueError, match=rf"{key} \({value}\) must be {only} with 2 processes"):
            Ranks(0, 2).share(config)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 40))
def test_an_epoch_takes_rows_once_and_all_processes_agree_how_many(counts, batch_size):
    batch_size = min(batch_size, sum(counts))
    size = len(counts)
    with mock.patch.object(Ranks, "gather", return_value=counts):
        epochs = [minibatches(n, batch_size, Ranks(rank, size)) for rank, n in enumerate(counts)]
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


# Checkpoints of two processes

CONFIG = {"seed": 0}


def objects():
    return {
        "model": nn.Linear(2, 1),
        "counters": {"steps": 0},
        "buffer": TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2),
        "statistics": EpisodeStatistics(["goal"]),
    }


def filled(rank):
    """As if each process had stored rows of its own, and one episode had ended on each."""
    run = objects()
    run["counters"]["steps"] = 8
    run["buffer"].extend(TensorDict({"number": torch.arange(3) + 10 * rank}, [3]))
    done = torch.ones(1, 1, dtype=torch.bool)
    following = {"done": done, "reward": done * float(rank)}
    run["statistics"].add(TensorDict({"goal_kind": torch.zeros(1).long(), "next": following}, [1]))
    return run


def test_as_many_processes_take_back_each_its_own_and_find_damage_to_the_share_of_one(tmp_path):
    def save_and_go_on(ranks):
        torch.manual_seed(0)  # the same weights
        manager = CheckpointManager(tmp_path, ranks=ranks)
        run, other = filled(ranks.rank), objects()
        torch.manual_seed(ranks.rank)
        for step in (8, 16):
            manager.save(step, run, CONFIG)
        drawn = torch.rand(())
        assert manager.load(other, CONFIG) == 16
        assert torch.rand(()) == drawn
        assert other["model"].weight.equal(run["model"].weight)
        assert other["buffer"][:]["number"].tolist() == [10 * ranks.rank + n for n in range(3)]
        assert other["statistics"].summary()["episodes"] == (2 if ranks.first else 0)

    def load(ranks):
        with pytest.warns(UserWarning, match="resuming from step-000000000008"):
            return CheckpointManager(tmp_path, ranks=ranks).load(objects(), CONFIG)

    run_processes(save_and_go_on)
    with pytest.raises(ValueError, match="saved by 2 processes, and this run has 1: resume it wit"):
        CheckpointManager(tmp_path).load(objects(), CONFIG)
    [rows] = (tmp_path / "checkpoints/process_1/step-000000000016").rglob("rows.tdc")
    rows.write_bytes(rows.read_bytes()[:-8])
    assert run_processes(load) == [8, 8]


def test_a_checkpoint_is_saved_by_all_or_none(tmp_path):
    """An object passes the look at its numbers and fails as it is written, on one of them."""

    def save_in_vain(ranks):
        torch.manual_seed(0)
        manager = CheckpointManager(tmp_path, ranks=ranks)
        run = filled(ranks.rank)
        manager.save(8, run, CONFIG)
        full = OSError(28, "No space left on device") if ranks.first else {}
        more = SimpleNamespace(state_dict=mock.Mock(side_effect=[{}, full]), load_state_dict=None)
        error = (OSError, "cannot write") if ranks.first else (OtherProcessError, "No space left")
        with pytest.raises(error[0], match=error[1]):
            manager.save(16, run | {"more": more}, CONFIG)
        run["model"].weight.data += ranks.rank
        with pytest.raises(ValueError, match="weight on process 1"):
            manager.save(16, run, CONFIG)

    run_processes(save_in_vain)
    assert CheckpointManager(tmp_path).latest().name == "step-000000000008"
