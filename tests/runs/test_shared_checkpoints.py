"""One checkpoint of two processes: what it holds, who loads it, and that all save it or none."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from forked_processes import caught, run_processes
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
    run = objects()
    fill(run, ranks.rank)
    torch.manual_seed(ranks.rank)
    for step in (8, 16):
        manager.save(step, run, CONFIG)
    drawn = torch.rand(()).item()
    other = objects()
    step = manager.load(other, CONFIG)
    again = torch.rand(()).item()
    ended = other["statistics"].summary()["episodes"]
    same = other["model"].weight.equal(run["model"].weight)
    return step, other["buffer"][:]["number"].tolist(), ended, drawn == again, same


def test_as_many_processes_take_back_each_its_own_and_another_number_is_refused(tmp_path):
    first, second = run_processes(partial(save_and_go_on, tmp_path))
    assert first == (16, [0, 1, 2], 2, True, True)
    assert second == (16, [10, 11, 12], 0, True, True)
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


def save_in_vain(folder, ranks):
    """With an object that passes the look at its numbers and fails as it is written, on one."""
    torch.manual_seed(0)
    manager = CheckpointManager(folder, ranks=ranks)
    run, told = objects(), []
    fill(run, ranks.rank)
    manager.save(8, run, CONFIG)
    full = OSError(28, "No space left on device") if ranks.first else {}
    more = SimpleNamespace(state_dict=mock.Mock(side_effect=[{}, full]), load_state_dict=None)
    told.append(caught(lambda: manager.save(16, run | {"more": more}, CONFIG)))
    run["model"].weight.data += ranks.rank
    told.append(caught(lambda: manager.save(16, run, CONFIG)))
    return told


def test_a_checkpoint_is_saved_by_all_or_none(tmp_path):
    (disk, drift), (other_disk, other_drift) = run_processes(partial(save_in_vain, tmp_path))
    assert disk[0] == "OSError" and "cannot write" in disk[1]
    assert other_disk[0] == OtherProcessError.__name__ and "No space left" in other_disk[1]
    for kind, words in (drift, other_drift):
        assert kind == "ValueError" and "weight on process 1" in words
    assert CheckpointManager(tmp_path).latest().name == "step-000000000008"
