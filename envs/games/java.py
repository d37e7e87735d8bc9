"""What the simulators that run on Java have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, TypeVar

Simulator = TypeVar("Simulator")
Fold = Literal["train", "dev", "test"]


def side_by_side(first: Simulator, interface: Callable[[], Any], number: int) -> list[Simulator]:
    """Simulators that share one Java process, which holds a game for each of them.

    Args:
        first: a simulator, which started the process.
        interface: makes the process's end of another one, what a simulator has as ``server``.
        number: of simulators, the first included.
    """
    simulators = [first, *(copy.copy(first) for _ in range(number - 1))]
    for other in simulators[1:]:
        other.server = interface()
    return simulators


def check_fold(fold: str) -> None:
    """Refuses what is no part of the games.

    Examples:
        >>> check_fold("valid")
        Traceback (most recent call last):
            ...
        ValueError: fold ('valid') must be "train", "dev" or "test"
    """
    if fold not in ("train", "dev", "test"):
        raise ValueError(f'fold ({fold!r}) must be "train", "dev" or "test"')
