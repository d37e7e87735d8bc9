"""Types and ranges of the configurations of what shows an agent."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torchrl_glam.models.loading import EMBEDDED
from torchrl_glam.runs.config.base import LENGTHS, EnvironmentConfig
from torchrl_glam.runs.config.rules import Switch

MODES = ("sampled", "greedy")


@dataclass
class ViewConfig(EnvironmentConfig):
    """Keys that ``evaluate.py``, ``watch.py`` and ``play.py`` have in common.

    Examples:
        >>> ViewConfig(agent="runs/a", language_model="tiny").check()
        Traceback (most recent call last):
            ...
        ValueError: agent (runs/a) must be null with model (tiny)
    """

    agent: str | None = None
    language_model: str | None = None
    chat_template: Switch = False
    env_class: str | None = None
    env: dict[str, Any] = field(default_factory=dict)
    eval_splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: int | None = None
    long_texts: str | None = None
    seed: int = 10_000
    device: str = "auto"
    max_tokens_per_pass: int = 32_768

    def check(self) -> None:
        """See ``RecipeConfig.check``; with neither agent nor model, takes the embedded agent."""
        if self.language_model is not None:
            expected = f"be null with model ({self.language_model})"
            self.require("agent", self.agent is None, expected)
        elif self.agent is None:
            self.agent = EMBEDDED[0]
        self.switches()
        self.within(0, 2**32 - 1, "seed")
        self.at_least(1, "max_tokens_per_pass")
        self.within(1, 1_000_000, *LENGTHS)
        self.within(0, 1_000_000, "memory")
        self.choice("long_texts", (None, "error", "head", "tail"))
        self.filled("agent", "language_model")


@dataclass
class EvaluateConfig(ViewConfig):
    """Configuration of ``recipes/evaluate.py``; ``recipes/config/evaluate.yaml`` explains each key.

    Its ``agent`` may be a list of folders.

    Examples:
        >>> EvaluateConfig(agent="runs/a", modes=["both"]).check()
        Traceback (most recent call last):
            ...
        ValueError: modes (['both']) must be some of ('sampled', 'greedy')
    """

    agent: Any = None
    objects: list[int] | None = None
    splits: list[str] | None = None
    modes: list[str] = field(default_factory=lambda: list(MODES))
    references: Switch = True
    episodes: int = 300
    output: str = "runs/evaluate"

    @property
    def agents(self) -> list:
        """The folders of ``agent``: one, several, or none where a language model is evaluated."""
        if self.agent is None:
            return []
        return self.agent if isinstance(self.agent, list) else [self.agent]

    def check(self) -> None:
        """See ``ViewConfig.check``."""
        super().check()
        self.within(1, 1_000_000, "episodes")
        self.filled("output")
        whole = all(isinstance(folder, str) and folder for folder in self.agents)
        apart = whole and 0 < len(self.agents) == len({*map(os.path.realpath, self.agents)})
        fits = self.agent is None or apart
        self.require("agent", fits, "be a folder, or a list of folders that differ")
        for key in ("objects", "splits", "modes"):
            given = getattr(self, key)
            listed = given is None or 0 < len(given) == len(set(given))
            self.require(key, listed, "have at least one entry, and none twice")
        self.require("modes", set(self.modes) <= set(MODES), f"be some of {MODES}")


@dataclass
class WatchConfig(ViewConfig):
    """Configuration of ``recipes/watch.py``; ``recipes/config/watch.yaml`` explains each key."""

    beside: str | None = None
    split: str = "train"
    mode: str = "sampled"
    episodes: int = 100
    longest: int | None = None
    output: str | None = None

    def check(self) -> None:
        """See ``ViewConfig.check``."""
        super().check()
        self.within(1, 1_000_000, "episodes", "longest")
        if self.beside is not None:
            another = self.beside not in (self.agent, self.language_model)
            self.require("beside", another, "be another agent than the first")
        self.choice("mode", MODES)
        page = self.output is None or self.output.endswith(".html")
        self.require("output", page, "end in .html")


@dataclass
class PlayConfig(ViewConfig):
    """Configuration of ``recipes/play.py``; ``recipes/config/play.yaml`` explains each key."""

    goal: str | None = None
    split: str = "train"
    seed: int = 0
