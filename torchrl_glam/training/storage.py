"""Room for the replay buffer: asked for before the run begins, and taken as a whole."""

from __future__ import annotations

import math
import os
import shutil
import weakref
from pathlib import Path
from typing import Literal

from tensordict import TensorDictBase
from torchrl.data import LazyMemmapStorage
from torchrl.envs import EnvBase


def transition_bytes(env: EnvBase) -> int:
    """Bytes of a transition as an environment's steps have it, without hindsight's entries.

    What replay transforms add is not counted, so it is a little more in fact.

    Example:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> one, many = (PlaygroundTextEnv(num_envs=n, text=False) for n in (1, 7))
        >>> transition_bytes(one) == transition_bytes(many) > 0
        True
    """
    step = env.fake_tensordict()
    step = step.exclude("hindsight", ("next", "hindsight"))
    return step.bytes() // step.numel()


def check_room(
    storage: Literal["ram", "memmap"], capacity: int, env: EnvBase, folder: Path
) -> None:
    """Refuses a replay buffer that must run out of memory or disk before it is full.

    Args:
        storage: where transitions are kept.
        capacity: how many.
        env: the environment whose steps they are.
        folder: with ``"memmap"``, where their files will be.

    Raises:
        ValueError: naming ``capacity``, what it needs and what there is.
    """
    row = transition_bytes(env)
    if storage == "memmap":
        place, room = "free disk", shutil.disk_usage(_existing(folder)).free
    else:
        place, room = "memory", machine_memory()
    if capacity * row > room:
        raise ValueError(
            f"capacity ({capacity}) must fit into the {place}: at {row} bytes a transition or more "
            f"it needs {capacity * row / 1e9:.1f} GB, and there are {room / 1e9:.1f} GB; take a "
            "smaller one, or another storage"
        )


def machine_memory() -> float:
    """Bytes of memory that this machine has."""
    if not hasattr(os, "sysconf"):  # Windows
        return math.inf
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.absolute().parent)


class DiskStorage(LazyMemmapStorage):
    """Transitions in files of a folder, whose room on the disk is taken when the first ones come.

    TorchRL makes such files without their content, and in shared memory unless told where. If the
    disk fills up later, writing to them kills the process (SIGBUS), where nothing can be saved.

    Args:
        max_size: transitions to keep.
        folder: where the files lie as long as the storage. What it held before is removed.

    Raises:
        OSError: at the first transitions, if the disk has no room for ``max_size`` of them.
    """

    def __init__(self, max_size: int, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        super().__init__(max_size, scratch_dir=folder)
        # Its own cleaning up would take the place of the handlers of signals.
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def _init(self, data: TensorDictBase) -> None:
        super()._init(data)
        for tensor in self._storage.values(True, True):
            _take_room(tensor.filename)


def _take_room(path: str) -> None:
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    with open(path, "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
        except OSError as error:
            raise OSError(
                error.errno,
                f"no room for the replay buffer ({error.strerror}): take a smaller capacity, or "
                "another storage",
                path,
            ) from error
