"""Types and ranges of the configuration of SAC-GLAM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from torchrl_glam.models.critic import CriticInput
from torchrl_glam.runs.config.base import RecipeConfig, names_goals
from torchrl_glam.runs.config.rules import Switch
from torchrl_glam.text import EnvDescription

SAMPLING = (
    *("uniform", "ratio", "prior", "ratio+prior", "prior+goals", "ratio+prior+goals"),
    "ratio+kinds+goals",
)


@dataclass
class SACGLAMConfig(RecipeConfig):
    """Configuration of ``recipes/sac_glam.py``; ``recipes/config`` explains each key.

    A new key is a field here, a rule in :meth:`check`, and a line under a comment in
    ``recipes/config/algorithm/sac.yaml``. :meth:`check` fills in ``alpha_init`` where it is None,
    and ``target_entropy`` where its weight is too: 0.05 and 0.01 with hindsight, 0.005 and 0
    without (Gaven et al., 2024, Appendix C).

    Examples:
        >>> config = SACGLAMConfig(hindsight=False)
        >>> config.check()
        >>> config.alpha_init, config.target_entropy
        (0.005, 0.0)
        >>> SACGLAMConfig(hindsight_ratio=1.5).check()
        Traceback (most recent call last):
            ...
        ValueError: hindsight_ratio (1.5) must be in [0, 1]
    """

    output: str = "runs/sac_glam"

    critic_input: str = "observation-action"
    critic_backprop: Switch = True

    n_step: int = 3
    tau: float = 0.1
    alpha_init: float | None = None
    alpha_end: float | None = None
    target_entropy: float | None = None
    target_entropy_weight: float | None = None
    munchausen: float = 0.0
    exploration: float = 0.0
    num_updates: int = 8
    warmup_updates: int = 50
    separate_optimizers: Switch = False

    hindsight: Switch = True
    sampling: str = "ratio"
    hindsight_ratio: float = 0.5
    hindsight_ratio_end: float | None = None
    token_noise: float = 0.0
    capacity: int = 100_000

    def check(self) -> None:
        """Fills in what depends on other keys; see ``RecipeConfig.check``."""
        super().check()
        if self.alpha_init is None:
            self.alpha_init = 0.05 if self.hindsight else 0.005
        if self.target_entropy is None and self.target_entropy_weight is None:
            self.target_entropy = 0.01 if self.hindsight else 0.0
        self.at_least(1, "n_step", "num_updates")
        self.within(1, 1_000_000_000, "capacity")
        self.at_least(0, "warmup_updates", "target_entropy")
        shares = ("hindsight_ratio", "hindsight_ratio_end", "exploration", "token_noise")
        self.within(0, 1, *shares, "target_entropy_weight")
        self.require("munchausen", 0 <= self.munchausen < 1, "be in [0, 1)")
        self.above(0, "alpha_init", "alpha_end")
        self.require("tau", 0 < self.tau <= 1, "be in (0, 1]")
        self.choice("critic_input", get_args(CriticInput))
        self.choice("sampling", SAMPLING)
        most = self.total_steps // self.update_every * self.num_updates
        expected = f"be at most the {most} updates that total_steps ({self.total_steps}) allows"
        self.require("warmup_updates", self.warmup_updates <= most, expected)
        expected = f"be at least batch_size ({self.batch_size})"
        self.require("capacity", self.capacity >= self.batch_size, expected)
        expected = f"be at most total_steps ({self.total_steps}) without hindsight"
        self.require("batch_size", self.hindsight or self.batch_size <= self.total_steps, expected)

    def check_game(self, game: EnvDescription) -> None:
        """See ``RecipeConfig.check_game``."""
        self.within(0, math.log(game.num_actions), "target_entropy")
        if self.hindsight and self.hindsight_by == "partner":
            names_goals(game, "true")
        # All instances begin together, so the episodes that no goal ends end together too.
        rows = self.num_envs * (game.max_steps or 1) * (2 if self.hindsight else 1)
        expected = (
            f"be at least {rows}: {self.num_envs} instances (num_envs) end episodes of "
            f"{game.max_steps} steps at a time, and hindsight adds as much again"
        )
        self.require("capacity", self.capacity >= rows, expected)
