"""Sampling a given number of rows from each of several groups of a replay buffer's rows."""

import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage, TensorStorage

from torchrl_glam.replay._row_groups import RowGroups


class GroupSampler(Sampler):
    """Draws batches group by group; subclasses name the groups and how many rows to take of each.

    Rows are drawn uniformly and with replacement within a group, and a batch is in random order. If
    rows were written that the sampler was not told of (``buffer[index] = rows``, or while another
    sampler was in use), it reads them all once, O(M). The generator is the replay buffer's.
    """

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._empty()

    @abstractmethod
    def _groups_of(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        """Group of the rows given, int64 [k]: integers [k] from 0 to G - 1."""

    @abstractmethod
    def _counts(self, batch_size: int, sizes: list[int]) -> list[int]:
        """Rows of each group in a batch, from the stored rows of each, G numbers, not all 0."""

    def _sides(self, batch_size: int, ratio: float, stored: list[int]) -> list[int]:
        """Original and hindsight rows of a batch, by their ratio where both are stored."""
        hindsight = round(ratio * batch_size)
        wanted = [batch_size - hindsight, hindsight]
        for side, name in enumerate(("original", "hindsight")):
            if wanted[side] and not stored[side]:
                self._warn(f"no {name} transitions")
                wanted[1 - side], wanted[side] = batch_size, 0
        return wanted

    def _warn(self, what: str) -> None:
        """Says once that batches do not have the shares that were asked for."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"The replay buffer holds {what}, so other rows fill the batches: {self} is not "
                "followed until it does.",
                stacklevel=5,
            )

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict]:
        """Draws rows, int64 [B], with an empty dictionary; RuntimeError if none are stored."""
        if len(storage) == 0:
            raise RuntimeError("Cannot sample from an empty storage: no episode has ended yet.")
        if self._missed(storage, writes=0):
            self._read_all(storage)
        self._revision = storage._mutation_revision
        rows = self._draw(self._counts(batch_size, self._groups.counts.tolist()))
        device = None if self._rng is None else self._rng.device
        order = torch.randperm(batch_size, generator=self._rng, device=device)
        return rows.index_select(0, order.to(rows.device)), {}

    def _draw(self, counts: list[int]) -> torch.Tensor:
        """Rows of a batch, int64 [B], group by group."""
        groups = torch.from_numpy(np.arange(len(counts)).repeat(counts))
        return self._groups.draw(groups, self._rng)

    def mark_update(self, index: int | torch.Tensor, *, storage: Storage | None = None) -> None:
        """Takes note of rows that were written; the replay buffer calls it on every write."""
        if storage is None:
            return
        if self._missed(storage, writes=1):
            self._read_all(storage)
        else:
            rows = torch.as_tensor(index).reshape(-1).cpu()
            rows = rows[rows >= 0]  # -1 where a writer kept a row out
            if rows.shape[0] > storage.max_size:  # some were written twice in one call
                rows = rows.unique()
            self._note(storage, rows)
        self._revision = storage._mutation_revision

    def _missed(self, storage: Storage, writes: int) -> bool:
        """Whether the storage has changed more often than by the writes that are told of now."""
        if self._groups is None or self._groups.capacity != storage.max_size:
            return True
        if self._revision is None:  # just restored: the storage is as it was
            return writes == 0 and int(self._groups.counts.sum()) != len(storage)
        return storage._mutation_revision > self._revision + writes

    def _read_all(self, storage: Storage) -> None:
        self._forget()
        self._note(storage, torch.arange(len(storage)))

    def _note(self, storage: Storage, rows: torch.Tensor) -> torch.Tensor:
        """Puts rows, int64 [k], into their groups, which it returns, int64 [k]."""
        groups = self._groups_of(storage, rows).long().cpu()
        if self._groups is None:
            self._groups = RowGroups(self._num_groups, storage.max_size)
        self._groups.assign(rows, groups)
        return groups

    def _stored(
        self, storage: Storage, rows: torch.Tensor, key: NestedKey, writer: str
    ) -> torch.Tensor:
        """An entry of the rows given, int64 [k]: [k, ...]."""
        if not isinstance(storage, TensorStorage) or storage.ndim != 1:
            raise TypeError(
                f"The storage ({type(storage).__name__}, ndim {storage.ndim}) must be a tensor "
                "storage with one dimension, as LazyTensorStorage is."
            )
        entry = storage[:].get(key, None)
        if entry is None:
            raise KeyError(f"The stored rows have no entry {key!r}: {writer} should write it.")
        return entry[rows.to(entry.device)]

    def _forget(self) -> None:
        self._groups: RowGroups | None = None

    def _empty(self) -> None:
        self._forget()
        self._revision: int | None = None  # of the storage, when its rows were last looked at
        self._warned = False

    def state_dict(self) -> dict[str, Any]:
        """Rows of each group, in the order that draws depend on; {} while nothing is stored."""
        return {} if self._groups is None else self._groups.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned; with other groups, the rows are read anew."""
        self._empty()
        if len(state_dict.get("sizes", ())) == self._num_groups:
            self._groups = RowGroups.from_state_dict(state_dict)

    def dumps(self, path: str | Path) -> None:
        """Writes the state into the folder ``path``; reading it back runs no code from the file."""
        path = Path(path)
        path.mkdir(exist_ok=True)
        torch.save(self.state_dict(), path / "sampler.pt")

    def loads(self, path: str | Path) -> None:
        """Reads the state from the folder ``path``."""
        self.load_state_dict(torch.load(Path(path) / "sampler.pt", weights_only=True))
