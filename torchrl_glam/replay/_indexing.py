"""Which rows of a storage are meant."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import NestedKey


def as_rows(index: int | Sequence[int] | slice | torch.Tensor, size: int) -> torch.Tensor:
    """Row numbers from whatever can index rows.

    Args:
        index: One row or several, negative ones counted from the end, or a mask.
        size: Number of rows.

    Returns:
        Rows, int64 of any shape.

    Raises:
        IndexError: if there are no such rows.

    Examples:
        >>> as_rows([0, -1], 5), as_rows(slice(1, 3), 5)
        (tensor([0, 4]), tensor([1, 2]))
    """
    if isinstance(index, slice):
        return torch.arange(size)[index]
    index = torch.as_tensor(index).cpu()
    if index.dtype == torch.bool:
        index = index.nonzero().squeeze(-1)
    rows = torch.where(index < 0, index + size, index).long()
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise IndexError(
            f"index (from {int(index.min())} to {int(index.max())}) is out of range for "
            f"{size} stored transitions."
        )
    return rows


def last_of_each(
    rows: torch.Tensor, entries: dict[NestedKey, torch.Tensor]
) -> tuple[torch.Tensor, dict[NestedKey, torch.Tensor]]:
    """Leaves out what a later write to the same row, of the same call, replaces.

    Args:
        rows: Where to write, int64 [k].
        entries: What to write, each [k, ...].

    Returns:
        Different rows, and what to write there.

    Examples:
        >>> last_of_each(torch.tensor([3, 0, 3]), {"x": torch.tensor([7, 8, 9])})
        (tensor([0, 3]), {'x': tensor([8, 9])})
    """
    different, which = rows.unique(return_inverse=True)
    if different.shape == rows.shape:
        return rows, entries
    place = torch.arange(rows.shape[0])
    last = torch.zeros_like(different).scatter_reduce(0, which, place, "amax", include_self=False)
    return different, {key: x[last] for key, x in entries.items()}


def rows_differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Which rows of two entries [k, ...] are not equal, bool [k].

    Examples:
        >>> rows_differ(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]]))
        tensor([False,  True])
    """
    unlike = one != other
    return unlike.flatten(1).any(1) if unlike.ndim > 1 else unlike
