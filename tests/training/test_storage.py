"""Room for the replay buffer: on the disk, in memory, and asked for in time."""

import gc
import os
import shutil
from collections import namedtuple

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.training import storage
from torchrl_glam.training.storage import DiskStorage, check_room, transition_bytes


def rows(count):
    return TensorDict({"x": torch.arange(count), "next": {"y": torch.zeros(count, 100)}}, [count])


def test_transitions_lie_in_the_folder_with_their_room_taken(tmp_path):
    buffer = TensorDictReplayBuffer(storage=DiskStorage(1000, tmp_path / "replay"), batch_size=2)
    buffer.extend(rows(3))
    files = {path.name: path.stat() for path in (tmp_path / "replay").rglob("*.memmap")}
    assert {"x.memmap", "y.memmap"} <= files.keys()
    assert files["y.memmap"].st_size == 1000 * 100 * 4
    for name, stat in files.items():
        assert stat.st_blocks * 512 >= stat.st_size, f"{name} has holes: no room was taken"
    assert buffer[:]["x"].tolist() == [0, 1, 2]
    del buffer
    gc.collect()
    assert not (tmp_path / "replay").exists()


def test_what_a_killed_run_left_is_removed(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "x.memmap").write_bytes(b"left")
    buffer = TensorDictReplayBuffer(storage=DiskStorage(10, tmp_path / "replay"), batch_size=2)
    buffer.extend(rows(2))
    assert buffer[:]["x"].tolist() == [0, 1]


def test_a_full_disk_is_an_error_and_no_bus_error(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    buffer = TensorDictReplayBuffer(storage=DiskStorage(1000, tmp_path / "replay"), batch_size=2)
    with pytest.raises(OSError, match=r"no room for the replay buffer \(No space.*capacity"):
        buffer.extend(rows(3))


def test_a_transition_is_as_large_as_its_parts():
    """Counted by hand: state and action, next state, reward and ends; no hindsight."""
    env = PlaygroundTextEnv(num_envs=5, text=False)
    step = env.rollout(2)[:, 0]
    expected = 0
    for key, value in step.items(True, True):
        key = (key,) if isinstance(key, str) else key
        if "hindsight" not in key:
            expected += value[0].numel() * value.element_size()
    assert transition_bytes(env) == expected


def test_capacity_must_fit(tmp_path, monkeypatch):
    env = PlaygroundTextEnv(num_envs=2, text=False)
    row = transition_bytes(env)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 100 * row))
    monkeypatch.setattr(storage, "machine_memory", lambda: 200 * row)
    check_room("memmap", 100, env, tmp_path / "not" / "there")
    check_room("ram", 200, env, tmp_path)
    with pytest.raises(ValueError, match=r"capacity \(101\) must fit into the free disk: at .* GB"):
        check_room("memmap", 101, env, tmp_path)
    with pytest.raises(ValueError, match=r"capacity \(201\) must fit into the memory"):
        check_room("ram", 201, env, tmp_path)
