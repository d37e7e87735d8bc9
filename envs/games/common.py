"""What the games have in common: how they are read, and simulators that run on Java."""

import copy
import shutil
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, TypeVar

Simulator = TypeVar("Simulator")
Fold = Literal["train", "dev", "test"]

SOURCES: dict[str, Any] = {
    "actions": "actions",
    "goal": "goal",
    "success": "won",
    "hindsight": lambda steps: steps[-1].info["reached"],
}
"""Where a wrapper finds what the games write into ``info``."""

ROOMS = {
    **SOURCES,
    "max_actions": 64,
    "overflow": "sample",
    "observation_bytes": 1536,
    "keep": "head",
    "max_hindsight": 2,
}
"""The same, and sizes, of games that are played in rooms."""


def tidy(lines: Iterable[str]) -> list[str]:
    """Lines of a game's text with single spaces, and none that is empty."""
    return [" ".join(line.split()) for line in lines if line.strip()]


def side_by_side(
    start: Callable[[], Simulator], interface: Callable[[Simulator], Any], number: int
) -> list[Simulator]:
    """Simulators that share the Java process of the first, which holds a game for each.

    ``start`` makes the first, and ``interface`` an object in its process that each further
    simulator has as ``server``.
    """
    if number < 1:
        raise ValueError(f"num_envs ({number}) must be at least 1")
    if shutil.which("java") is None:
        raise FileNotFoundError(
            "there is no command java, on which the simulator of this game runs: install Java, "
            "such as Debian's default-jre-headless, and put it on the PATH"
        )
    first = start()
    simulators = [first, *(copy.copy(first) for _ in range(number - 1))]
    for other in simulators[1:]:
        other.server = interface(first)
    return simulators


def check_known(name: str, value: str, known: Collection[str]) -> None:
    """Refuses an argument that is none of the known values."""
    if value not in known:
        raise ValueError(f"{name} ({value!r}) must be one of {[*known]}")
