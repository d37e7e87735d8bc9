"""What the simulators that run on Java have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, TypeVar

Simulator = TypeVar("Simulator")
Fold = Literal["train", "dev", "test"]


def side_by_side(first: Simulator, interface: Callable[[], Any], number: int) -> list[Simulator]:
    """Simulators, ``first`` among them, that share its Java process, which holds a game for each.

    ``interface`` makes the process's end of another one, what a simulator has as ``server``.
    """
    simulators = [first, *(copy.copy(first) for _ in range(number - 1))]
    for other in simulators[1:]:
        other.server = interface()
    return simulators


def check_fold(fold: str) -> None:
    """Refuses what is no part of the games."""
    if fold not in ("train", "dev", "test"):
        raise ValueError(f'fold ({fold!r}) must be "train", "dev" or "test"')
