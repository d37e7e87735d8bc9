"""Rules for the values of configurations; each names the key, its value and what was expected."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

# A truth value. OmegaConf would make True of 2 for a key of type bool, so switches() looks instead.
Switch = Any


def require(holds: bool, key: str, value: Any, expected: str) -> None:
    """Raises ValueError about a key unless the condition holds."""
    if not holds:
        raise ValueError(f"{key} ({value}) must {expected}")


def switches(config: Any) -> None:
    """Requires a truth value of every key that is a ``Switch``."""
    for switch in (key.name for key in fields(config) if key.type == "Switch"):
        value = getattr(config, switch)
        require(isinstance(value, bool), switch, value, "be true or false")


def at_least(config: Any, low: int, *keys: str) -> None:
    """Requires finite numbers of a smallest value, or null."""
    for key in keys:
        value = getattr(config, key)
        finite = " and finite" if value == math.inf else ""
        require(value is None or low <= value < math.inf, key, value, f"be at least {low}{finite}")


def above(config: Any, low: float, *keys: str) -> None:
    """Requires finite numbers that are larger than another."""
    for key in keys:
        value = getattr(config, key)
        require(low < value < math.inf, key, value, f"be above {low} and finite")


def within(config: Any, low: float, high: float, *keys: str) -> None:
    """Requires numbers of a closed range, or null."""
    for key in keys:
        value = getattr(config, key)
        fits = value is None or low <= value <= high
        require(fits, key, value, f"be in [{low:g}, {high:g}]")


def choice(config: Any, key: str, choices: tuple[str, ...]) -> None:
    """Requires one of several words."""
    require(getattr(config, key) in choices, key, getattr(config, key), f"be one of {choices}")


def multiple(config: Any, of: str, *keys: str) -> None:
    """Requires multiples of another key's value."""
    unit = getattr(config, of)
    for key in keys:
        value = getattr(config, key)
        require(value % unit == 0, key, value, f"be a multiple of {of} ({unit})")
