"""Rows that are alike: found, so that one is read, or added, so that few numbers of rows occur."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def fingerprint(tokens: Tensor) -> Tensor:
    """A number for each row of integers, ``[*B, K]`` to ``[*B]`` int64: equal rows, equal numbers.

    Rows that differ have equal numbers once in 2^63 pairs or so: look again before relying on it.
    """
    return (tokens * _weights(tokens.shape[-1], tokens.device)).sum(-1)


@lru_cache(maxsize=64)
def _weights(number: int, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(0)  # not the generator that seeds a run
    return torch.randint(-(2**63), 2**63 - 1, (number,), generator=draw).to(device)


def distinct_rows(*parts: Tensor) -> tuple[Tensor, Tensor] | None:
    """Finds rows that are equal in all parts, so that work is done for one of them.

    On a GPU, the host waits for the device once or twice.

    Args:
        *parts: integers or booleans, ``[B, ...]`` each.

    Returns:
        ``rows`` ``[U]``, indices of rows that all differ, and ``back`` ``[B]``, such that
        ``part[rows][back]`` equals ``part``. None if no two rows are equal.

    Examples:
        >>> tokens = torch.tensor([[1, 2], [3, 4], [1, 2], [1, 2]])
        >>> rows, back = distinct_rows(tokens)
        >>> rows.tolist(), back.tolist()
        ([0, 1], [0, 1, 0, 0])
        >>> distinct_rows(tokens[:2]) is None
        True
    """
    whole = torch.cat([part.flatten(1).long() for part in parts], 1)
    codes, back = fingerprint(whole).unique(return_inverse=True)
    if len(codes) == len(whole):
        return None
    # Distinct rows in the order of their first appearance.
    index = torch.arange(len(whole), device=whole.device)
    first = index.new_full((len(codes),), len(whole)).scatter_reduce(0, back, index, "amin")
    rows, place = first.sort()
    back = place.argsort()[back]
    return (rows, back) if torch.equal(whole[rows][back], whole) else None


def repeat_last(rows: Tensor, times: int) -> Tensor:
    """Adds copies of the last row.

    Examples:
        >>> repeat_last(torch.tensor([[1, 2], [3, 4]]), 2).tolist()
        [[1, 2], [3, 4], [3, 4], [3, 4]]
    """
    return torch.cat((rows, rows[-1:].expand(times, *rows.shape[1:]))) if times else rows
