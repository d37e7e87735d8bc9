"""How the parts of a training run are saved.

Nothing here is pickled, so loading runs no code that came with the file.
"""

import errno
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, from_consolidated
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves
from torchrl.checkpoint import (
    Checkpoint,
    CheckpointAdapter,
    GlobalRNGState,
    JSONCheckpointAdapter,
    StateDictCheckpointAdapter,
)
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import ReplayBuffer
from torchrl.envs import TransformedEnv

from torchrl_glam._files import read_json

# The files of a state, and of a replay buffer's rows.
_ROWS = "rows.tdc"
_STATE_FILES = ("state.tdc", "state.json", _ROWS)


class StateDictAdapter(StateDictCheckpointAdapter):
    """Saves what ``state_dict()`` returns: one file of tensors, one of JSON.

    TorchRL's own adapter in its *consolidated* format, which it reads without unpickling. A state
    may hold tensors, numpy arrays, numbers, strings, None, and dicts, lists and tuples of these.

    Raises:
        TypeError: on saving, if a state holds anything else.
        OSError: on saving, if the disk has no room for it.
    """

    def __init__(self) -> None:
        super().__init__(payload_format="consolidated")

    def save(self, component: Any, path: Path, **options: Any) -> Any:
        """Writes the state of ``component`` to the folder ``path``."""
        path.mkdir(parents=True, exist_ok=True)
        tensors = [x for x in tree_leaves(component.state_dict()) if isinstance(x, torch.Tensor)]
        _require_room(path, sum(tensor.nbytes for tensor in tensors))
        try:
            return super().save(component, path, **options)
        except TypeError as error:
            raise TypeError(
                f"the state_dict of {type(component).__name__} holds something other than tensors, "
                "numpy arrays, numbers, strings, None, and dicts, lists and tuples of these "
                f"({error})"
            ) from error

    def load(self, component: Any, path: Path, **options: Any) -> Any:
        """Restores ``component`` from the folder ``path``.

        Raises:
            ValueError: if it holds other files, such as a state that TorchRL might unpickle.
        """
        for file in path.iterdir():
            if file.name not in _STATE_FILES:
                raise ValueError(f"{file.name} is never loaded, expected {', '.join(_STATE_FILES)}")
        read_json(path / self.schema_filename)  # of a reasonable size
        return super().load(component, path, **options)


class ReplayBufferAdapter(CheckpointAdapter):
    """Saves a replay buffer: rows in use, writer, sampler, transforms and generator.

    Rows go straight to a memory-mapped file, and from it into the storage, so that memory never
    holds them twice. ``ReplayBuffer.dumps`` and ``loads`` unpickle, and write unused rows as well.

    Raises:
        TypeError: on saving, if the storage holds anything but tensordicts.
        ValueError: on saving, if batches are waiting in the buffer's prefetch queue.
        OSError: on saving, if the disk has no room for it.
    """

    adapter_id = "torchrl_glam.replay_buffer"

    def save(self, component: ReplayBuffer, path: Path, **options: Any) -> None:
        """Writes ``component`` to the folder ``path``."""
        path.mkdir(parents=True)
        if len(component):
            rows = component.storage.get(slice(0, component.storage.shape[0]))
            if not isinstance(rows, TensorDictBase):
                raise TypeError(
                    f"the replay buffer's storage holds {type(rows).__name__}, expected a "
                    "tensordict: give LazyTensorStorage or LazyMemmapStorage tensordicts"
                )
            _require_room(path, rows.bytes())
            rows.consolidate(path / _ROWS)
        StateDictAdapter().save(_BufferState(component), path, **options)

    def load(self, component: ReplayBuffer, path: Path, **options: Any) -> None:
        """Fills ``component`` from the folder ``path``; what it held before is dropped."""
        component.empty()
        if (path / _ROWS).exists():
            rows = from_consolidated(path / _ROWS)
            component.storage.set(slice(0, rows.shape[0]), rows)
        StateDictAdapter().load(_BufferState(component), path, **options)


class _BufferState:
    """A replay buffer's state but for its rows."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def state_dict(self) -> dict[str, Any]:
        whole = self.buffer.state_dict()
        waiting = len(whole["_prefetch_state"]["queue"])
        if waiting:
            raise ValueError(
                f"the replay buffer holds {waiting} prefetched batches, which would be lost: "
                "build it with prefetch=0"
            )
        return {
            "sampler": whole["_sampler"],
            "writer": whole["_writer"],
            "transforms": whole["_transforms"],
            "generator": whole["_rng"],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer.sampler.load_state_dict(state["sampler"])
        self.buffer.writer.load_state_dict(state["writer"])
        self.buffer.transform.load_state_dict(state["transforms"])
        if state["generator"] is not None:
            generator_state, device = state["generator"]
            generator = torch.Generator(device=device)
            generator.set_state(generator_state)
            self.buffer.set_rng(generator)


class CollectorState:
    """Everything that a single-process collector needs to resume as if it had never stopped.

    ``Collector.state_dict`` leaves out where the environments stand. Added here are the tensordict
    that the collector carries from step to step, and the base environment's ``state_dict``, with
    the state of its generator. The policy is left out: it shares its weights with the loss module.

    Raises:
        TypeError: if ``collector`` is of another kind.
    """

    def __init__(self, collector: Collector) -> None:
        if not isinstance(collector, Collector):
            raise TypeError(
                f"collector is a {type(collector).__name__}, expected torchrl.collectors.Collector,"
                " whose environments are in this process"
            )
        self.collector, self._env = collector, collector.env
        while isinstance(self._env, TransformedEnv):
            self._env = self._env.base_env

    def state_dict(self) -> dict[str, Any]:
        """Counters, transform and environment state, and the carried tensordict."""
        counters = dict(self.collector.state_dict())
        counters.pop("policy_state_dict", None)
        return {
            "counters": counters,
            "environment": self._env.state_dict(),
            "carrier": self.collector._carrier.to_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned."""
        # strict=False, as the policy's weights are not part of it. The collector then numbers new
        # trajectories and writes them into its carrier: both are put back.
        self.collector.load_state_dict(state["counters"], strict=False)
        if "traj_pool" in state["counters"]:
            self.collector._traj_pool.load_state_dict(state["counters"]["traj_pool"])
        if not tree_leaves(state["environment"]):
            warnings.warn(
                "the environment has an empty state_dict: it begins new episodes where the run "
                "resumes, while the collector goes on with the old ones. Give it a state_dict and "
                "a load_state_dict that restore its episodes and random numbers",
                stacklevel=2,
            )
        self._env.load_state_dict(state["environment"])
        env = self.collector.env
        carrier = TensorDict(state["carrier"], batch_size=env.batch_size, device=env.device)
        held = self.collector._carrier
        if held.device is None:
            carrier.clear_device_()
        if "collector" in held.keys():  # the numbers of trajectories, which may be elsewhere
            numbers = held["collector", "traj_ids"].device
            carrier["collector"] = carrier["collector"].to(numbers)
        self.collector._carrier = carrier


class Generators(GlobalRNGState):
    """The global generators; those of devices that are not there now are left out."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned, maybe on another machine."""
        here = self.state_dict()
        kept = {name: value for name, value in state.items() if name in here}
        if len(kept.get("torch_cuda", ())) != len(here.get("torch_cuda", ())):
            kept.pop("torch_cuda", None)
        super().load_state_dict(kept)


def as_checkpoint(objects: Mapping[str, Any]) -> Checkpoint:
    """The objects of a run with what saves each, and the global generators.

    Raises:
        TypeError: if an object is of no kind that can be saved.
    """
    checkpoint = Checkpoint()
    checkpoint.register("generators", Generators(), adapter=StateDictAdapter())
    for name, value in objects.items():
        if isinstance(value, ReplayBuffer):
            checkpoint.register(name, value, adapter=ReplayBufferAdapter())
        elif isinstance(value, BaseCollector):
            checkpoint.register(name, CollectorState(value), adapter=StateDictAdapter())
        elif isinstance(value, (dict, list)):
            checkpoint.register(name, value, adapter=JSONCheckpointAdapter())
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            checkpoint.register(name, value, adapter=StateDictAdapter())
        else:
            raise TypeError(
                f"objects[{name!r}] is a {type(value).__name__}, expected something with "
                "state_dict and load_state_dict, a replay buffer, a collector, a dict or a list"
            )
    return checkpoint


def kept_apart(objects: Mapping[str, Any]) -> dict[str, Any]:
    """What every process has of its own."""
    return {k: x for k, x in objects.items() if isinstance(x, (ReplayBuffer, BaseCollector))}


def require_finite(objects: Mapping[str, Any]) -> None:
    """Refuses weights and optimizer states that no training can resume from.

    A module's buffers may be infinite, as masks are, but must be numbers.

    Raises:
        FloatingPointError: naming the first tensor that is not finite.

    Examples:
        >>> layer = torch.nn.Linear(2, 1)
        >>> _ = layer.bias.data.fill_(torch.nan)
        >>> require_finite({"model": layer})
        Traceback (most recent call last):
            ...
        FloatingPointError: model holds values that are not finite, first in ['bias']: not saved
    """
    for name, value in objects.items():
        if isinstance(value, (ReplayBuffer, BaseCollector)) or not hasattr(value, "state_dict"):
            continue
        buffers = {key for key, _ in value.named_buffers()} if isinstance(value, nn.Module) else ()
        for path, leaf in tree_flatten_with_path(dict(value.state_dict()))[0]:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                continue
            bad = leaf.isnan() if getattr(path[0], "key", None) in buffers else ~leaf.isfinite()
            if bad.any():
                raise FloatingPointError(
                    f"{name} holds values that are not finite, first in {keystr(path)}: not saved"
                )


def _require_room(folder: Path, size: int) -> None:
    """Raises the ``OSError`` that writing to a memory map does not: a full disk kills there."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(
            errno.ENOSPC, f"no space left: {size:,} bytes needed, {free:,} free", str(folder)
        )
