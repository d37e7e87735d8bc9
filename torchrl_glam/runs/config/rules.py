"""Rules for the values of configurations; each names the key, its value and what was expected."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

# A truth value. OmegaConf would make True of 2 for a key of type bool, so switches() looks instead.
Switch = Any


class Rules:
    """What a configuration may require of its keys; each raises ValueError."""

    def pick(self, *keys: str) -> dict[str, Any]:
        """Some keys and their values, as keyword arguments of the same names."""
        return {key: getattr(self, key) for key in keys}

    def require(self, key: str, holds: bool, expected: str) -> None:
        """Requires a condition."""
        if not holds:
            raise ValueError(f"{key} ({getattr(self, key)}) must {expected}")

    def switches(self) -> None:
        """Requires a truth value of every key that is a ``Switch``."""
        for key in (field.name for field in fields(self) if field.type == "Switch"):
            self.require(key, isinstance(getattr(self, key), bool), "be true or false")

    def autocasts(self) -> None:
        """Requires auto, true or false of ``autocast``, which Hydra may read as a truth value."""
        self.autocast = str(self.autocast).lower()
        self.choice("autocast", ("auto", "true", "false"))

    def filled(self, *keys: str) -> None:
        """Requires texts that are not empty, or null."""
        for key, value in self._given(keys):
            self.require(key, bool(str(value).strip()), "not be empty")

    def at_least(self, low: int, *keys: str) -> None:
        """Requires finite numbers of a smallest value, or null."""
        for key, value in self._given(keys):
            finite = " and finite" if value == math.inf else ""
            self.require(key, low <= value < math.inf, f"be at least {low}{finite}")

    def above(self, low: float, *keys: str) -> None:
        """Requires finite numbers that are larger than another, or null."""
        for key, value in self._given(keys):
            self.require(key, low < value < math.inf, f"be above {low} and finite")

    def within(self, low: float, high: float, *keys: str) -> None:
        """Requires numbers of a closed range, or null."""
        for key, value in self._given(keys):
            self.require(key, low <= value <= high, f"be in [{low:g}, {high:g}]")

    def choice(self, key: str, choices: tuple[str, ...]) -> None:
        """Requires one of several words."""
        self.require(key, getattr(self, key) in choices, f"be one of {choices}")

    def multiple(self, of: str, *keys: str) -> None:
        """Requires multiples of another key's value."""
        unit = getattr(self, of)
        for key in keys:
            self.require(key, getattr(self, key) % unit == 0, f"be a multiple of {of} ({unit})")

    def _given(self, keys: tuple[str, ...]) -> list[tuple[str, Any]]:
        """The keys that are not null, with their values."""
        return [(key, getattr(self, key)) for key in keys if getattr(self, key) is not None]
