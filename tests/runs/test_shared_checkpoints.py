"""One checkpoint of two processes: what it holds, who loads it, and that all save it or none."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from forked_processes import run_processes
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.processes.ranks import OtherProcessError
from torchrl_glam.runs.records.statistics import EpisodeStatistics

CONFIG = {"seed": 0}


def objects():
    return {
        "model": nn.Linear(2, 1),
        "counters": {"steps": 0},
        "buffer": TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2),
        "statistics": EpisodeStatistics(["goal"]),
    }


def fill(run, rank):
    """As if each process had stored rows of its own, and one episode had ended on each."""
    run["counters"]["steps"] = 8
    run["buffer"].extend(TensorDict({"number": torch.arange(3) + 10 * rank}, [3]))
    done = torch.ones(1, 1, dtype=torch.bool)
    following = {"done": done, "reward": done * float(rank)}
    run["statistics"].add(TensorDict({"goal_kind": torch.zeros(1).long(), "next": following}, [1]))


def save_and_go_on(folder, ranks):
    torch.manual_seed(0)  # the same weights
    manager = CheckpointManager(folder, ranks=ranks)
    run, other = objects(), objects()
    fill(run, ranks.rank)
    torch.manual_seed(ranks.rank)
    for step in (8, 16):
        manager.save(step, run, CONFIG)
    drawn = torch.rand(())
    assert manager.load(other, CONFIG) == 16
    assert torch.rand(()) == drawn
    assert other["model"].weight.equal(run["model"].weight)
    assert other["buffer"][:]["number"].tolist() == [10 * ranks.rank + n for n in range(3)]
    assert other["statistics"].summary()["episodes"] == (2 if ranks.first else 0)


def test_as_many_processes_take_back_each_its_own_and_another_number_is_refused(tmp_path):
    run_processes(partial(save_and_go_on, tmp_path))
    with pytest.raises(ValueError, match="saved by 2 processes, and this run has 1: resume it wit"):
        CheckpointManager(tmp_path).load(objects(), CONFIG)


def test_damage_to_the_share_of_one_process_is_found(tmp_path):
    run_processes(partial(save_and_go_on, tmp_path))
    [rows] = (tmp_path / "checkpoints/process_1/step-000000000016").rglob("rows.tdc")
    rows.write_bytes(rows.read_bytes()[:-8])

    def work(ranks):
        with pytest.warns(UserWarning, match="resuming from step-000000000008"):
            return CheckpointManager(tmp_path, ranks=ranks).load(objects(), CONFIG)

    assert run_processes(work) == [8, 8]


def test_a_checkpoint_is_saved_by_all_or_none(tmp_path):
    """An object passes the look at its numbers and fails as it is written, on one of them."""

    def save_in_vain(ranks):
        torch.manual_seed(0)
        manager = CheckpointManager(tmp_path, ranks=ranks)
        run = objects()
        fill(run, ranks.rank)
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
