"""Rows of a tensordict as rows of bytes, every integer in the smallest type that holds it.

Notation: k rows, W bytes a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey

# Smallest first.
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64)
_ALIGNMENT = 8  # so that columns of any type can be read in place, and rows as int64


class Field(NamedTuple):
    """One entry of a row.

    Args:
        dtype: Type outside.
        shape: Shape of one row's value.
        low, high: Smallest and largest value so far, for integers, and 0.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    low: int = 0
    high: int = 0

    @property
    def is_integer(self) -> bool:
        return not (self.dtype.is_floating_point or self.dtype.is_complex) and (
            self.dtype != torch.bool
        )

    @property
    def kept_as(self) -> torch.dtype:
        """Type of the bytes: the smallest that holds what was seen."""
        if not self.is_integer:
            return self.dtype
        ranges = ((dtype, torch.iinfo(dtype)) for dtype in _INTEGERS)
        return next(d for d, held in ranges if held.min <= self.low and self.high <= held.max)


class RowLayout:
    """Where each entry stands in a row of bytes; it never changes.

    Integers are kept in the smallest type that holds all values seen so far: before rows are
    packed, their values are shown to :meth:`widened`, and rows packed before go to the new layout
    by :meth:`take_over`, which has something to do a few times at most.

    Args:
        fields: The entries, with shapes and types; in the order of the bytes but for alignment.

    Examples:
        >>> rows = {"token": torch.tensor([[7, 9], [7, 8]]), "end": torch.tensor([False, True])}
        >>> layout = RowLayout.of(rows)
        >>> stored = layout.pack(rows)
        >>> stored
        tensor([[7, 9, 0, 0, 0, 0, 0, 0],
                [7, 8, 1, 0, 0, 0, 0, 0]], dtype=torch.uint8)
        >>> wider = layout.widened({"token": torch.tensor([[7, 256]])})
        >>> wider.take_over(stored, layout)[1]
        tensor([7, 0, 8, 0, 1, 0, 0, 0], dtype=torch.uint8)
    """

    def __init__(self, fields: Mapping[NestedKey, Field]) -> None:
        self.fields = dict(fields)
        # of every entry, those of the widest types first: type, first byte and end
        self._columns: dict[NestedKey, tuple[torch.dtype, int, int]] = {}
        at = 0
        kept = {key: field.kept_as for key, field in self.fields.items()}
        for key, dtype in sorted(kept.items(), key=lambda item: -item[1].itemsize):
            end = at + math.prod(self.fields[key].shape) * dtype.itemsize
            self._columns[key] = (dtype, at, end)
            at = end
        self.width = -(-at // _ALIGNMENT) * _ALIGNMENT

    @classmethod
    def of(cls, rows: Mapping[NestedKey, torch.Tensor]) -> RowLayout:
        """The layout for rows like these, {key: [k, ...]}, and their values."""
        return cls({k: Field(x.dtype, tuple(x.shape[1:])) for k, x in rows.items()}).widened(rows)

    def widened(self, rows: Mapping[NestedKey, torch.Tensor]) -> RowLayout:
        """A layout with room for the values of these rows too."""
        fields = dict(self.fields)
        for key, field in self.fields.items():
            if field.is_integer and key in rows and rows[key].numel():
                low, high = map(int, torch.aminmax(rows[key]))
                if low < field.low or high > field.high:
                    fields[key] = field._replace(
                        low=min(low, field.low), high=max(high, field.high)
                    )
        return self if fields == self.fields else RowLayout(fields)

    def take_over(self, stored: torch.Tensor, before: RowLayout) -> torch.Tensor:
        """Rows of this layout, uint8 [k, W], from those of another, packed anew if they differ."""
        return stored if self._columns == before._columns else self.pack(before.unpack(stored))

    def pack(self, rows: Mapping[NestedKey, torch.Tensor]) -> torch.Tensor:
        """Bytes of rows, uint8 [k, W], from their entries {key: [k, ...]}."""
        count = next(iter(rows.values())).shape[0]
        out = torch.zeros(count, self.width, dtype=torch.uint8)
        for key, (dtype, begin, end) in self._columns.items():
            values = rows[key].reshape(count, (end - begin) // dtype.itemsize)
            out[:, begin:end] = values.to(dtype).contiguous().view(torch.uint8)
        return out

    def unpack(self, stored: torch.Tensor) -> dict[NestedKey, torch.Tensor]:
        """Entries {key: [k, ...]} of rows uint8 [k, W]."""
        return {key: self.unpack_one(stored, key) for key in self.fields}

    def unpack_one(self, stored: torch.Tensor, key: NestedKey) -> torch.Tensor:
        """One entry [k, ...] of rows uint8 [k, W]; it never shares their memory."""
        field, (dtype, begin, end) = self.fields[key], self._columns[key]
        values = stored[:, begin:end].view(dtype).to(field.dtype, copy=True)
        return values.reshape(stored.shape[0], *field.shape)

    def state_dict(self) -> list[dict[str, Any]]:
        """The entries, as values that JSON can hold."""
        return [
            {
                "key": key,
                "dtype": str(field.dtype).removeprefix("torch."),
                "shape": list(field.shape),
                "low": field.low,
                "high": field.high,
            }
            for key, field in self.fields.items()
        ]

    @classmethod
    def from_state_dict(cls, state: list[dict[str, Any]]) -> RowLayout:
        """Builds what :meth:`state_dict` described."""
        fields = {}
        for entry in state:
            dtype = getattr(torch, entry["dtype"])
            shape = tuple(entry["shape"])
            fields[as_key(entry["key"])] = Field(dtype, shape, entry["low"], entry["high"])
        return cls(fields)


def as_key(key: str | list[str]) -> NestedKey:
    """A key that went through JSON, which knows no tuples."""
    return key if isinstance(key, str) else tuple(key)
