"""What the games have in common: how they are read, and simulators that run on Java."""

import copy
import shutil
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

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


def check_java() -> None:
    """Refuses a machine on which the simulators that need Java cannot start."""
    if shutil.which("java") is None:
        raise FileNotFoundError(
            "there is no command java, on which the simulator of this game runs: install Java, "
            "such as Debian's default-jre-headless, and put it on the PATH"
        )


def side_by_side(first: Any, interface: Callable[[], Any], number: int) -> list[Any]:
    """Simulators, ``first`` among them, that share its Java process, which holds a game for each.

    ``interface`` makes the object in the Java process that a further simulator has as ``server``.
    """
    if number < 1:
        raise ValueError(f"num_envs ({number}) must be at least 1")
    simulators = [first, *(copy.copy(first) for _ in range(number - 1))]
    for other in simulators[1:]:
        other.server = interface()
    return simulators


def check_known(name: str, value: str, known: Collection[str]) -> None:
    """Refuses an argument that is none of the known values."""
    if value not in known:
        raise ValueError(f"{name} ({value!r}) must be one of {[*known]}")
