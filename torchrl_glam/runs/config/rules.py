"""Rules for the values of configurations; each names the key, its value and what was expected."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

# A truth value. OmegaConf would make True of 2 for a key of type bool, so switches() looks instead.
Switch = Any


def require(config: Any, key: str, holds: bool, expected: str) -> None:
    """Raises ValueError about a key unless the condition holds."""
    if not holds:
        raise ValueError(f"{key} ({getattr(config, key)}) must {expected}")


def switches(config: Any) -> None:
    """Requires a truth value of every key that is a ``Switch``."""
    for key in (field.name for field in fields(config) if field.type == "Switch"):
        require(config, key, isinstance(getattr(config, key), bool), "be true or false")


def filled(config: Any, *keys: str) -> None:
    """Requires texts that are not empty, or null."""
    for key in keys:
        value = getattr(config, key)
        require(config, key, value is None or bool(str(value).strip()), "not be empty")


def at_least(config: Any, low: int, *keys: str) -> None:
    """Requires finite numbers of a smallest value, or null."""
    for key in keys:
        value = getattr(config, key)
        finite = " and finite" if value == math.inf else ""
        require(config, key, value is None or low <= value < math.inf, f"be at least {low}{finite}")


def above(config: Any, low: float, *keys: str) -> None:
    """Requires finite numbers that are larger than another, or null."""
    for key in keys:
        value = getattr(config, key)
        fits = value is None or low < value < math.inf
        require(config, key, fits, f"be above {low} and finite")


def within(config: Any, low: float, high: float, *keys: str) -> None:
    """Requires numbers of a closed range, or null."""
    for key in keys:
        value = getattr(config, key)
        require(config, key, value is None or low <= value <= high, f"be in [{low:g}, {high:g}]")


def choice(config: Any, key: str, choices: tuple[str, ...]) -> None:
    """Requires one of several words."""
    require(config, key, getattr(config, key) in choices, f"be one of {choices}")


def multiple(config: Any, of: str, *keys: str) -> None:
    """Requires multiples of another key's value."""
    unit = getattr(config, of)
    for key in keys:
        require(config, key, getattr(config, key) % unit == 0, f"be a multiple of {of} ({unit})")
