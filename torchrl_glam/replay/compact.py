"""A replay-buffer storage in which transitions share the states and goals that they have in common.

Notation: M transitions stored, C the most there can be, k rows of one call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torchrl.data.replay_buffers.storages import TensorStorage

from torchrl_glam.replay._checks import check_same_entries
from torchrl_glam.replay._indexing import as_rows, last_of_each
from torchrl_glam.replay._packing import RowLayout, as_key
from torchrl_glam.replay._shared_rows import Link, SharedRows, links_of
from torchrl_glam.replay._state_file import StateFile

_STATE = ("observation_tokens", "action_tokens", "action_mask")
_GOAL = ("goal_tokens", "goal_kind")


class CompactStorage(StateFile, TensorStorage):
    """Keeps transitions in a fraction of the memory of TorchRL's LazyTensorStorage.

    An episode of T steps that is relabelled with G goals gives up to T (G + 1) transitions of two
    states each, and only T + 1 states are different. Here each is kept once, with its candidate
    actions, as long as a transition points at it; goals likewise. Integers, token ids among them,
    are kept in the smallest type that holds all values so far (one byte up to 255, two up to
    65,535) and come back in their own. What is read is bit for bit what was written.

    States are found equal by their content, among the rows of one call of ``extend``:
    :class:`~torchrl_glam.replay.HindsightTransform` lets an episode and all its copies out
    together. Any other stream of transitions is stored correctly too, and shares less.

    Writing k rows costs O(k), amortised over the tables' growth, and reading k rows O(k), whatever
    M and C are. It lives in main memory and its batches are on the CPU. Entries cannot be changed
    in place: what ``storage[index]`` returns is always a copy, and whole rows are written.

    Args:
        max_size: Transitions to keep, C.
        shared: Groups of entries to keep once, each a sequence of keys; they stand at the root, or
            under ``"next"``, or at both. An entry that does not exist is skipped. Default: the
            entries of a state, ``("observation_tokens", "action_tokens", "action_mask")``, and
            those of a goal, ``("goal_tokens", "goal_kind")``.

    Raises:
        KeyError: when rows have other entries than the first ones.
        ValueError: when entries have another shape or type than at first, or differ in it between
            the root and ``"next"``; when a state of another capacity is loaded.
        TypeError: when what is written is no tensordict.

    Examples:
        >>> from torchrl.data import TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(storage=CompactStorage(1000), batch_size=2)
        >>> state = torch.arange(400).view(4, 100)  # three steps, and where the last one leads
        >>> rows = TensorDict(
        ...     {
        ...         "observation_tokens": state[:3],
        ...         "action": torch.tensor([0, 3, 1]),
        ...         "next": {"observation_tokens": state[1:]},
        ...     },
        ...     [3],
        ... )
        >>> _ = buffer.extend(rows)
        >>> buffer[1]["next", "observation_tokens"].equal(state[2])
        True
        >>> len(buffer.storage.tables[0])
        4
    """

    _file = "compact_storage.pt"

    supports_conditional_update = False

    def __init__(
        self, max_size: int, *, shared: Sequence[Sequence[NestedKey]] = (_STATE, _GOAL)
    ) -> None:
        super().__init__(None, max_size)
        self.shared = [[unravel_key(key) for key in group] for group in shared]
        self._forget()

    def _forget(self) -> None:
        """Goes back to how it was before anything was written."""
        self.tables: list[SharedRows] = []
        self._links: list[Link] = []
        # entries of a transition: type and shape
        self._kinds: dict[NestedKey, tuple[torch.dtype, torch.Size]] = {}
        self._layout: RowLayout | None = None  # of what a transition does not share
        self._rows: torch.Tensor | None = None  # [C, W]
        self._held: torch.Tensor | None = None  # which of them were written, [C]
        self.initialized = False
        self._len = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated, for all C transitions and for the states and goals of the M stored."""
        own = 0 if self._rows is None else self._rows.nbytes + self._held.nbytes
        return own + sum(table.nbytes for table in self.tables)

    @property
    def _total_shape(self) -> torch.Size:
        return torch.Size([self.max_size])

    def set(
        self,
        cursor: int | Sequence[int] | slice | torch.Tensor,
        data: TensorDictBase,
        *,
        set_cursor: bool = True,
    ) -> None:
        """Writes transitions [] or [k] to one row or k; of a row named twice, the last holds.

        They count as new ones unless ``set_cursor`` is False.
        """
        if not isinstance(data, TensorDictBase):
            raise TypeError(
                f"data is a {type(data).__name__}, and CompactStorage holds tensordicts only: use "
                "TensorDictReplayBuffer, or another storage."
            )
        if set_cursor:
            self._set_last_cursor(cursor)
        if isinstance(cursor, int):
            cursor, data = [cursor], data.unsqueeze(0)
        rows = as_rows(cursor, self.max_size)
        entries = {key: value.detach().cpu() for key, value in data.items(True, True)}
        if self.initialized:
            check_same_entries(entries, self._kinds)
        else:
            self._lay_out(entries)
        self._write(*last_of_each(rows, entries))
        if set_cursor:
            self._len = min(self._len + rows.shape[0], self.max_size)
        self._bump_mutation_revision()

    def get(self, index: int | Sequence[int] | slice | torch.Tensor) -> TensorDictBase:
        """Reads transitions: batch size [] for one row, else [k]."""
        stored, shape = self._stored(index)
        entries = self._layout.unpack(stored)
        for link in self._links:
            values = self.tables[link.table].read(entries.pop(link.pointer))
            entries |= {link.keys[key]: value for key, value in values.items()}
        out = TensorDict({}, batch_size=stored.shape[:1], device="cpu")
        for key in self._kinds:
            out.set(key, entries[key])
        return out.reshape(shape) if shape else out[0]

    def get_entry(
        self, key: NestedKey, index: int | Sequence[int] | slice | torch.Tensor = slice(None)
    ) -> torch.Tensor:
        """One entry of transitions, [k, ...] or [...]; see :func:`stored_entry`."""
        stored, shape = self._stored(index)
        key = unravel_key(key)
        if key not in self._kinds:
            raise KeyError(f"The stored transitions have no entry {key!r}.")
        if key in self._layout.fields:
            values = self._layout.unpack_one(stored, key)
        else:
            link = next(link for link in self._links if key in link.keys.values())
            inside = next(inner for inner, outer in link.keys.items() if outer == key)
            pointers = self._layout.unpack_one(stored, link.pointer)
            values = self.tables[link.table].read(pointers, only=inside)[inside]
        return values.reshape((*shape, *values.shape[1:]))

    def _stored(
        self, index: int | Sequence[int] | slice | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Size]:
        """Bytes of transitions, [k, W], and the shape of what indexes them."""
        if not self.initialized:
            raise RuntimeError("The storage is empty: no transition has been written to it.")
        if isinstance(index, slice):
            stored = self._rows[: self._len][index]
            return stored, stored.shape[:1]
        rows = as_rows(index, self._len)
        return self._rows.index_select(0, rows.reshape(-1)), rows.shape

    def _write(self, rows: torch.Tensor, entries: dict[NestedKey, torch.Tensor]) -> None:
        """Puts checked entries, [k, ...], into different rows, int64 [k]."""
        own = {key: entries[key] for key in self._layout.fields if key in entries}
        replaced = self._rows.index_select(0, rows[self._held[rows]])
        for link in self._links:
            pointers = self._layout.unpack_one(replaced, link.pointer)
            self.tables[link.table].release(pointers)
        for table, links in zip(self.tables, self._by_table(), strict=True):
            everywhere = {
                key: torch.cat([entries[link.keys[key]] for link in links])
                for key in table.layout.fields
            }
            slots = table.acquire(everywhere).split(rows.shape[0])
            own |= {link.pointer: part for link, part in zip(links, slots, strict=True)}
        layout = self._layout.widened(own)
        self._rows, self._layout = layout.take_over(self._rows, self._layout), layout
        self._rows[rows] = layout.pack(own)
        self._held[rows] = True

    def _lay_out(self, entries: dict[NestedKey, torch.Tensor]) -> None:
        """Decides which entries of transitions like these are shared, and makes room for them."""
        self._links = links_of(entries, self.shared)
        self._kinds = {key: (x.dtype, x.shape[1:]) for key, x in entries.items()}
        for links in self._by_table():
            content = {inner: entries[outer] for inner, outer in links[0].keys.items()}
            self.tables.append(SharedRows(RowLayout.of(content)))
        shared = {outer for link in self._links for outer in link.keys.values()}
        own = {key: value for key, value in entries.items() if key not in shared}
        count = next(iter(entries.values())).shape[0]
        own |= {link.pointer: torch.zeros(count, dtype=torch.int64) for link in self._links}
        self._layout = RowLayout.of(own)
        self._rows = torch.zeros(self.max_size, self._layout.width, dtype=torch.uint8)
        self._held = torch.zeros(self.max_size, dtype=torch.bool)
        self.initialized = True

    def _by_table(self) -> list[list[Link]]:
        """The links of each table."""
        return [[*links] for _, links in groupby(self._links, key=lambda link: link.table)]

    def state_dict(self) -> dict[str, Any]:
        """What is stored, packed as it is; {} before anything was written."""
        if not self.initialized:
            return {}
        used = int(self._held.nonzero().max()) + 1
        structure = {
            "max_size": self.max_size,
            "len": self._len,
            "keys": [*self._kinds],
            "links": [[link.pointer, link.table, list(link.keys.items())] for link in self._links],
            "layouts": [
                layout.state_dict()
                for layout in (self._layout, *(table.layout for table in self.tables))
            ],
        }
        return {
            "structure": json.dumps(structure),
            "rows": self._rows[:used].clone(),
            "held": self._held[:used].clone(),
            "tables": [table.rows.clone() for table in self.tables],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned; what was held before is dropped."""
        self._forget()
        self._bump_mutation_revision()
        if not state_dict:
            return
        structure = json.loads(state_dict["structure"])
        if structure["max_size"] != self.max_size:
            raise ValueError(
                f"max_size ({self.max_size}) differs from that of the storage that was saved "
                f"({structure['max_size']}): build it with the same."
            )
        self._links = [
            Link(pointer, table, {as_key(inner): as_key(outer) for inner, outer in keys})
            for pointer, table, keys in structure["links"]
        ]
        self._layout, *layouts = map(RowLayout.from_state_dict, structure["layouts"])
        self._rows = torch.zeros(self.max_size, self._layout.width, dtype=torch.uint8)
        self._held = torch.zeros(self.max_size, dtype=torch.bool)
        used = state_dict["rows"].shape[0]
        self._rows[:used], self._held[:used] = state_dict["rows"], state_dict["held"]
        pointing = self._rows[self._held]
        stored = zip(layouts, state_dict["tables"], self._by_table(), strict=True)
        for layout, rows, links in stored:
            pointers = [self._layout.unpack_one(pointing, link.pointer) for link in links]
            self.tables.append(SharedRows.from_rows(layout, rows.clone(), torch.cat(pointers)))
        fields = dict(self._layout.fields)
        for link in self._links:
            inside = self.tables[link.table].layout.fields
            fields |= {outer: inside[inner] for inner, outer in link.keys.items()}
        for key in map(as_key, structure["keys"]):
            self._kinds[key] = (fields[key].dtype, torch.Size(fields[key].shape))
        self._len, self.initialized = structure["len"], True

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> CompactStorage:
        """A storage of the capacity and content that :meth:`state_dict` said; not of {}."""
        storage = cls(json.loads(state_dict["structure"])["max_size"])
        storage.load_state_dict(state_dict)
        return storage

    def _empty(self) -> None:
        self._forget()
        self._bump_mutation_revision()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(len={len(self)}, max_size={self.max_size})"


def stored_entry(
    storage: TensorStorage, key: NestedKey, index: slice | torch.Tensor = slice(None)
) -> torch.Tensor:
    """Reads one entry of stored transitions, without a copy of the others.

    Args:
        storage: A :class:`CompactStorage`, or any tensor storage of tensordicts.
        key: The entry.
        index: Rows to read. Default: all.

    Returns:
        Its values, [k, ...]; may share memory with the storage.

    Raises:
        KeyError: if the transitions have no such entry.

    Examples:
        >>> storage = CompactStorage(10)
        >>> storage.set(range(3), TensorDict({"reward": torch.arange(3.0)}, [3]))
        >>> stored_entry(storage, "reward", torch.tensor([2, 0]))
        tensor([2., 0.])
    """
    if isinstance(storage, CompactStorage):
        return storage.get_entry(key, index)
    column = storage[:].get(key, None)
    if column is None:
        raise KeyError(f"The stored transitions have no entry {key!r}.")
    return column[index if isinstance(index, slice) else index.to(column.device)]
