"""What several processes have saved of their own, for another number of processes.

Each process saves its replay buffer, its collector and its random numbers apart. As many processes
as saved them take back each its own and go on as if nothing had happened. For any other number,

- stored transitions are dealt out by age, as evenly as they can be, and none is lost;
- steps of unfinished episodes become transitions too, ended as by a time limit, for environments
  cannot be divided anew: these begin new episodes, from other random numbers;
- the counts of collectors add up to what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.collectors import Collector
from torchrl.data import ReplayBuffer

from torchrl_glam.replay import HindsightTransform
from torchrl_glam.training.build import seed_everything
from torchrl_glam.training.checkpoint_adapters import StateDictAdapter


def begin_anew(seed: int, step: int, objects: Sequence[Any]) -> None:
    """Random numbers that no process of the run has drawn yet, and new episodes.

    Args:
        seed: of this process.
        step: of the run.
        objects: replay buffers and collectors of this process; others are left alone.
    """
    global_seed, buffer_seed, env_seed = np.random.SeedSequence([seed, step]).generate_state(3)
    for value in objects:
        if isinstance(value, ReplayBuffer):
            value.set_rng(torch.Generator().manual_seed(int(buffer_seed)))
        if isinstance(value, Collector):
            value.env.set_seed(int(env_seed) // 2)
            value.reset()
    seed_everything(int(global_seed))


def deal_frames(collector: Collector, saved: Sequence[Path], size: int) -> None:
    """Sets a collector's counts to its share of those that were saved.

    Args:
        collector: that of this process.
        saved: folders of the collectors' states, one a process.
        size: number of processes now.
    """
    counts = [_read_state(path)["counters"] for path in saved]
    total = sum(count["frames"] for count in counts)
    state = {"frames": total // size, "iter": counts[0]["iter"]}
    collector.load_state_dict(state, strict=False)


def deal_rows(buffer: ReplayBuffer, saved: Sequence[Path], rank: int, size: int) -> None:
    """Fills a replay buffer with its share of what several have stored.

    Args:
        buffer: that of this process, with transforms as the saved ones had them.
        saved: folders of the saved buffers, one a process.
        rank: number of this process.
        size: number of processes now.
    """
    buffer.empty()
    states = [_read_state(path) for path in saved]
    shards = [_open_rows(path) for path in saved]
    ages = [(torch.arange(len(shard)) + 0.5) / max(len(shard), 1) for shard in shards]
    shard = torch.cat([torch.full((len(age),), i) for i, age in enumerate(ages)])
    row = torch.cat([_by_age(len(age), state) for age, state in zip(ages, states, strict=True)])
    mine = torch.cat(ages).argsort(stable=True)[rank::size]
    if len(mine):
        parts, places = [], []
        for i, stored in enumerate(shards):
            place = (shard[mine] == i).nonzero().squeeze(1)
            if len(place):
                parts.append(stored[row[mine[place]]])
                places.append(place)
        rows = torch.cat(parts)[torch.cat(places).argsort()]
        buffer.sampler.extend(buffer.writer.extend(rows))
    for state in states[rank::size]:
        rows = _cut_off(buffer, state["transforms"])
        if rows is not None:
            buffer.sampler.extend(buffer.writer.extend(rows))


def _cut_off(buffer: ReplayBuffer, state: dict[str, Any]) -> TensorDictBase | None:
    """Rows of the steps that transforms held back for the ends of their episodes."""
    transforms = list(buffer.transform.transforms)
    for place, transform in enumerate(transforms):
        if isinstance(transform, HindsightTransform):
            fresh = transform.get_extra_state()
            buffer.transform.load_state_dict(state)
            rows = transform.cut_off()
            transform.set_extra_state(fresh)  # its random numbers are this process's
            for earlier in reversed(transforms[:place]):
                rows = earlier.inv(rows) if rows is not None else None
            return rows
    return None


def _by_age(count: int, state: dict[str, Any]) -> torch.Tensor:
    """Rows of a buffer that is written round and round, the oldest first."""
    cursor = state["writer"]["_cursor"]
    return torch.arange(count).roll(-cursor if cursor < count else 0)


def _open_rows(path: Path) -> TensorDictBase:
    if (path / "rows").exists():
        return TensorDict.load_memmap(path / "rows", allow_pickle=False)
    return TensorDict({}, batch_size=[0])


class _Reader:
    """Takes any state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def _read_state(path: Path) -> dict[str, Any]:
    reader = _Reader()
    options = {"map_location": "cpu", "tensor_load_kwargs": {}, "args": (), "kwargs": {}}
    StateDictAdapter().load(reader, path, **options)
    return reader.state
