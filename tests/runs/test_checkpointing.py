"""Checkpoints: what comes back, and what a crash, damage or a mix-up does."""

import errno
import os
import random
import resource
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from corridor import Corridor
from tensordict import TensorDict
from torchrl.checkpoint import CheckpointError
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import StepCounter, TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.runs.checkpoints.adapters import CollectorState, Generators, GlobalRNGState
from torchrl_glam.runs.checkpoints.manager import CheckpointManager

CONFIG = {"seed": 3, "hindsight": {"fraction": 0.5, "names": ("a", "b")}, "total_steps": 100}


def model_and_optimizer(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}


def step_once(model, optimizer, **_):
    loss = model(torch.randn(16, 4)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def save_counters(folder, *steps, keep=2):
    manager = CheckpointManager(folder, keep=keep)
    for step in steps:
        manager.save(step, {"counters": {"frames": 10 * step}}, CONFIG)
    return manager


def load_counters(folder, config=CONFIG, **options):
    counters = {"frames": -1}
    step = CheckpointManager(folder).load({"counters": counters}, config, **options)
    return step, counters["frames"]


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_training_goes_on_as_if_unbroken(tmp_path):
    """With the generators of Python and numpy, and from the start where nothing is saved."""

    def go_on(objects):
        losses = [step_once(**objects) for _ in range(3)]
        return *losses, random.random(), np.random.rand(), objects["metrics"]

    objects = model_and_optimizer() | {"metrics": {"loss": [1.5, float("inf")], "best": None}}
    step_once(**objects)
    manager = CheckpointManager(tmp_path)
    assert manager.load(objects, CONFIG) == 0
    manager.save(1, objects, CONFIG)
    unbroken = go_on(objects)

    objects = model_and_optimizer(seed=1) | {"metrics": {"old": True}}
    assert CheckpointManager(tmp_path).load(objects, CONFIG) == 1
    assert go_on(objects) == unbroken


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 0), (0, 1)])
def test_a_run_is_resumed_with_another_number_of_gpus(before, after, monkeypatch):
    """Generators that are gone are left out, and those that are new stay as they are."""
    plain = GlobalRNGState.state_dict

    def with_gpus(count):
        gpus = {"torch_cuda": [torch.zeros(16, dtype=torch.uint8)] * count} if count else {}
        monkeypatch.setattr(GlobalRNGState, "state_dict", lambda self: plain(self) | gpus)

    with_gpus(before)
    saved = Generators().state_dict()
    expected = torch.rand(3)
    with_gpus(after)
    Generators().load_state_dict(saved)
    assert torch.equal(torch.rand(3), expected)


def replay_buffer(capacity=10):
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=2)


def rows(start, count):
    tokens = torch.arange(start, start + count, dtype=torch.int16)[:, None].repeat(1, 3)
    reward = torch.rand(count, 1)
    return TensorDict({"tokens": tokens, "next": {"reward": reward}}, [count])


def test_rows_in_use_are_written_and_loaded_as_the_buffers_own(tmp_path):
    buffer = replay_buffer(100_000)
    buffer.extend(rows(0, 4))
    manager = CheckpointManager(tmp_path)
    [written] = manager.save(1, {"buffer": buffer}, CONFIG).rglob("rows.tdc")
    assert written.stat().st_size < 4 * (3 * 2 + 4 + 8) + 2_000  # tokens, reward, index, names
    for _ in range(2):  # writing into the buffer must not write into the checkpoint
        manager.load({"buffer": buffer}, CONFIG)
        assert buffer[:]["tokens"][:, 0].tolist() == [0, 1, 2, 3]
        buffer.storage.get(slice(0, 4))["tokens"].fill_(-1)


def test_an_environment_that_saves_no_state_is_told_of():
    env = Corridor(2)
    state = CollectorState(Collector(env, None, frames_per_batch=4, total_frames=8))
    with pytest.warns(match="the environment has an empty state_dict: it begins new episodes"):
        state.load_state_dict(state.state_dict())


def test_the_newest_are_kept(tmp_path):
    manager = save_counters(tmp_path, 5, 10, 15, 100_000_000, keep=2)
    assert names(tmp_path) == ["step-000000000015", "step-000100000000"]
    assert manager.latest().name == "step-000100000000"
    assert load_counters(tmp_path) == (100_000_000, 1_000_000_000)
    save_counters(tmp_path, 100_000_001, keep=6)
    assert len(names(tmp_path)) == 3


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", [5, 6], ids=["same step", "new step"])
def test_failing_save_leaves_the_earlier_one(tmp_path, error, step):
    """Once other objects have been written."""
    manager = save_counters(tmp_path, 5, keep=1)
    asked = mock.Mock(side_effect=[{}, error])  # the first time whether it is finite
    breaks = SimpleNamespace(state_dict=asked, load_state_dict=None)
    with pytest.raises(type(error)):
        manager.save(step, {"counters": {"frames": 0}, "zzz": breaks}, CONFIG)
    assert names(tmp_path) == ["step-000000000005"]
    assert load_counters(tmp_path) == (5, 50)


def write_counters(text):
    return lambda step: next(step.rglob("value.json")).write_text(text)


def rows_cut_short(step):
    [rows] = step.rglob("rows.tdc")
    os.truncate(rows, rows.stat().st_size - 8)


DAMAGES = {
    "manifest gone": lambda step: (step / "manifest.json").unlink(),
    "rows cut short": rows_cut_short,
    "counters cut short": write_counters("{"),
    "deeply nested": write_counters("[" * 100_000),
}


@pytest.mark.hostile
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_passed_over(tmp_path, damage):
    buffer = replay_buffer()
    objects = {"counters": {"frames": 50}, "buffer": buffer}
    manager = CheckpointManager(tmp_path)
    for step in (5, 10):
        buffer.extend(rows(step, 2))
        manager.save(step, objects, CONFIG)
    DAMAGES[damage](manager.latest())
    (tmp_path / "checkpoints" / "step-000000000010.torchrl").mkdir()  # is none of ours
    other = {"counters": {}, "buffer": replay_buffer()}
    with pytest.warns(UserWarning, match=r"resuming from step-000000000005, as later .*00010"):
        assert CheckpointManager(tmp_path).load(other, CONFIG) == 5
    assert other["counters"] == {"frames": 50} and len(other["buffer"]) == 2
    manager.save(10, objects, CONFIG)
    assert CheckpointManager(tmp_path).load(other, CONFIG) == 10
    for name in ("step-000000000005", "step-000000000010"):
        DAMAGES[damage](tmp_path / "checkpoints" / name)
    with pytest.raises(CheckpointError, match="no checkpoint .* can be read: .*00010: .*00005: "):
        CheckpointManager(tmp_path).load(other, CONFIG)


@pytest.mark.hostile
def test_nothing_is_unpickled(tmp_path, monkeypatch):
    objects = model_and_optimizer()
    step_once(**objects)
    buffer, env = replay_buffer(), TransformedEnv(PlaygroundTextEnv(2, text=False), StepCounter())
    source = Collector(env, None, frames_per_batch=6, total_frames=60)
    buffer.extend(rows(0, 8))
    objects |= {"buffer": buffer, "collector": source}
    CheckpointManager(tmp_path).save(1, objects, CONFIG)
    for name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(name, mock.Mock(side_effect=AssertionError("unpickles")))
    assert CheckpointManager(tmp_path).load(objects, CONFIG) == 1


def test_poisoned_weights_are_not_saved(tmp_path):
    objects, manager = model_and_optimizer(), CheckpointManager(tmp_path)
    step_once(**objects)
    manager.save(1, objects, CONFIG)
    model, optimizer = objects.values()
    moment = optimizer.state[model[0].weight]["exp_avg_sq"]
    for place, tensor, value in (
        ("model .*0.weight", model[0].weight.data, float("inf")),
        ("model .*1.running_mean", model[1].running_mean, float("nan")),
        ("optimizer .*exp_avg_sq", moment, float("nan")),
    ):
        sound = tensor.clone()
        tensor.view(-1)[3] = value
        with pytest.raises(FloatingPointError, match=f"{place}.*: not .*01$"):
            manager.save(2, objects, CONFIG)
        tensor.copy_(sound)
    assert names(tmp_path) == ["step-000000000001"]
    model[1].running_mean[3] = -float("inf")  # as in masks, which are buffers
    manager.save(2, objects, CONFIG)


def test_other_configuration(tmp_path):
    save_counters(tmp_path, 5)
    hindsight = {"fraction": 0.25, "names": ["a", "b"]}  # a list, as JSON has it
    other = CONFIG | {"hindsight": hindsight, "total_steps": 200, "new": True}
    listing = (
        "hindsight.fraction was 0.5, is 0.25; new was not set, is true; "
        "total_steps was 100, is 200. Resume"
    )
    with pytest.raises(ValueError, match=listing):
        load_counters(tmp_path, other)
    listing = r"step-000000000005': hindsight.fraction was 0.5, is 0.25\."
    with pytest.raises(ValueError, match=listing):
        load_counters(tmp_path, other, allow_changed=["total_steps", "new"])
    allowed = ["total_steps", "new", "hindsight"]
    assert load_counters(tmp_path, other, allow_changed=allowed) == (5, 50)
    random.random()
    state = random.getstate()
    assert load_counters(tmp_path, config=None) == (5, 50)  # some objects, and no generator
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"m": torch.nn.Linear(2, 2)}, r"\['model'\], only in the run \['m'\]"),
        ({"model": torch.nn.Linear(3, 2)}, "(?s)component 'model': .*size mismatch for weight"),
    ],
)
def test_other_objects(tmp_path, objects, message):
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"model": torch.nn.Linear(2, 2)}, CONFIG)
    with pytest.raises(CheckpointError, match=message):
        manager.load(objects, CONFIG)


class Odd(torch.nn.Module):
    def get_extra_state(self):
        return object()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"objects\['x'\] is a int, expected something with state_dict"),
        ({"a": object()}, "object is not JSON-compatible"),
        (Odd(), "state_dict of Odd holds something other than tensors"),
    ],
)
def test_object_that_cannot_be_saved(tmp_path, value, message):
    with pytest.raises(TypeError, match=message):
        CheckpointManager(tmp_path).save(1, {"x": value}, CONFIG)


def test_full_disk(tmp_path, monkeypatch):
    manager = save_counters(tmp_path, 5)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000))
    with pytest.raises(OSError, match="no space left: .* bytes needed.*earlier is untouched"):
        manager.save(10, {"model": torch.nn.Linear(100, 100)}, CONFIG)
    assert names(tmp_path) == ["step-000000000005"]


def test_a_limit_on_files_that_the_free_space_does_not_show(tmp_path):
    """A quota, say: PyTorch then says RuntimeError, for want of an OSError."""
    manager = save_counters(tmp_path, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"cannot write \(File too large\)") as error:
            manager.save(10, {"model": torch.nn.Linear(1000, 100)}, CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno == errno.EFBIG
    assert names(tmp_path) == ["step-000000000005"]
    assert load_counters(tmp_path) == (5, 50)
