"""Rows of a tensordict as rows of bytes, every integer in the smallest type that holds it.

Notation: k rows, W bytes a row, F numbers in an entry of one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import NestedKey

# Smallest first. The 16-bit unsigned numbers are kept in int16, as PyTorch has few operations on
# its uint16: they wrap around on the way in and are masked on the way out.
_INTEGERS = {
    "uint8": (torch.uint8, 0, 2**8 - 1),
    "int8": (torch.int8, -(2**7), 2**7 - 1),
    "int16": (torch.int16, -(2**15), 2**15 - 1),
    "uint16": (torch.int16, 0, 2**16 - 1),
    "int32": (torch.int32, -(2**31), 2**31 - 1),
    "int64": (torch.int64, -(2**63), 2**63 - 1),
}
_ALIGNMENT = 8  # so that columns of any type can be read in place, and rows as int64


class Field:
    """One entry of a row: what it is outside, and how it is kept.

    Args:
        dtype: Type outside.
        shape: Shape of one row's value.
        low, high: Smallest and largest value so far, for integers.

    Attributes:
        kept_as: Name of the smallest integer type that holds what was seen; "" for other entries.
        kept_dtype: Type of the bytes.
    """

    def __init__(
        self, dtype: torch.dtype, shape: tuple[int, ...], low: int = 0, high: int = 0
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.size = math.prod(shape)
        self.is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        self.low = self.high = 0
        self.kept_as, self.kept_dtype = "", dtype
        self.hold(low, high)

    def hold(self, low: int, high: int) -> None:
        """Makes room for numbers from ``low`` to ``high``."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.is_integer:
            self.kept_as, self.kept_dtype = next(
                (name, dtype)
                for name, (dtype, least, most) in _INTEGERS.items()
                if least <= self.low and self.high <= most
            )

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Bytes of an entry, uint8 [k, bytes], from its values [k, *shape]."""
        values = values.reshape(values.shape[0], self.size)
        return values.to(self.kept_dtype).contiguous().view(torch.uint8)

    def decode(self, stored: torch.Tensor) -> torch.Tensor:
        """Values [k, *shape], of the type outside, from uint8 [k, bytes]; never shares memory."""
        values = stored.view(self.kept_dtype)
        if self.kept_as == "uint16":
            values = values.to(torch.int32) & 0xFFFF
        return values.to(self.dtype, copy=True).reshape(values.shape[0], *self.shape)


class RowLayout:
    """Where each entry stands in a row of bytes.

    Integers are kept in the smallest type that holds all values seen so far. :meth:`widen` must
    be called with values before they are packed; when it says that the layout has changed, rows
    packed before have to be unpacked with a :meth:`copy` of the old one and packed anew, which
    happens a few times at most.

    Args:
        fields: The entries, with shapes and types; in the order of the bytes but for alignment.

    Examples:
        >>> rows = {"token": torch.tensor([[7, 9], [7, 8]]), "end": torch.tensor([False, True])}
        >>> layout = RowLayout.of(rows)
        >>> layout.widen(rows)
        False
        >>> layout.pack(rows)
        tensor([[7, 9, 0, 0, 0, 0, 0, 0],
                [7, 8, 1, 0, 0, 0, 0, 0]], dtype=torch.uint8)
        >>> layout.widen({"token": torch.tensor([[7, 256]]), "end": torch.tensor([False])})
        True
        >>> layout.unpack(layout.pack(rows))["token"]
        tensor([[7, 9],
                [7, 8]])
    """

    def __init__(self, fields: Mapping[NestedKey, Field]) -> None:
        self.fields = dict(fields)
        self._place()

    @classmethod
    def of(cls, rows: Mapping[NestedKey, torch.Tensor]) -> RowLayout:
        """The layout for rows like these, {key: [k, ...]}, whatever their values."""
        return cls({key: Field(x.dtype, tuple(x.shape[1:])) for key, x in rows.items()})

    def copy(self) -> RowLayout:
        """A layout that stays as it is when this one is widened."""
        return RowLayout(
            {k: Field(f.dtype, f.shape, f.low, f.high) for k, f in self.fields.items()}
        )

    def widen(self, rows: Mapping[NestedKey, torch.Tensor]) -> bool:
        """Makes room for the values of these rows.

        Returns:
            Whether the bytes of rows changed their meaning.
        """
        before = [field.kept_as for field in self.fields.values()]
        for key, field in self.fields.items():
            if field.is_integer and rows[key].numel():
                low, high = torch.aminmax(rows[key])
                field.hold(int(low), int(high))
        if before == [field.kept_as for field in self.fields.values()]:
            return False
        self._place()
        return True

    def pack(self, rows: Mapping[NestedKey, torch.Tensor]) -> torch.Tensor:
        """Bytes of rows, uint8 [k, W], from their entries {key: [k, ...]}."""
        count = next(iter(rows.values())).shape[0]
        out = torch.zeros(count, self.width, dtype=torch.uint8)
        for key, (begin, end) in self._columns.items():
            out[:, begin:end] = self.fields[key].encode(rows[key])
        return out

    def unpack(self, stored: torch.Tensor) -> dict[NestedKey, torch.Tensor]:
        """Entries {key: [k, ...]} of rows uint8 [k, W]."""
        return {key: self.unpack_one(stored, key) for key in self.fields}

    def unpack_one(self, stored: torch.Tensor, key: NestedKey) -> torch.Tensor:
        """One entry [k, ...] of rows uint8 [k, W]."""
        begin, end = self._columns[key]
        return self.fields[key].decode(stored[:, begin:end])

    def check(self, rows: Mapping[NestedKey, torch.Tensor]) -> None:
        """Refuses rows in which an entry of the layout has another shape or type.

        Raises:
            ValueError: naming the entry, what it is and what it was.
        """
        for key, field in self.fields.items():
            given = rows.get(key)
            if given is None:
                continue
            if given.dtype != field.dtype or tuple(given.shape[1:]) != field.shape:
                raise ValueError(
                    f"Entry {key!r} is {given.dtype} of shape {list(given.shape[1:])} a row, and "
                    f"was {field.dtype} of shape {list(field.shape)} when the storage was first "
                    "written to: rows must keep their layout."
                )

    def _place(self) -> None:
        """Gives every entry its columns, those of the widest types first."""
        self._columns: dict[NestedKey, tuple[int, int]] = {}
        at = 0
        order = sorted(self.fields.items(), key=lambda item: -item[1].kept_dtype.itemsize)
        for key, field in order:
            size = field.size * field.kept_dtype.itemsize
            self._columns[key] = (at, at + size)
            at += size
        self.width = -(-at // _ALIGNMENT) * _ALIGNMENT

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
