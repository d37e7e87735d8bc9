"""Types and ranges of the configuration of SAC-GLAM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from torchrl_glam.models.critic import CriticInput
from torchrl_glam.runs.config.base import (
    RecipeConfig,
    Switch,
    at_least,
    choice,
    learning_rate,
    names_goals,
    require,
    within,
)
from torchrl_glam.text import EnvDescription

SAMPLING = (
    *("uniform", "ratio", "prior", "ratio+prior", "prior+goals", "ratio+prior+goals"),
    "ratio+kinds+goals",
)


@dataclass
class SACGLAMConfig(RecipeConfig):
    """Configuration of ``recipes/sac_glam.py``; ``recipes/config/sac_glam`` explains each key.

    Defaults that depend on other keys are filled in, and values out of range are refused, by
    :meth:`check`. ``alpha_init`` and ``target_entropy`` left None become those of SAC-GLAM (Gaven
    et al., 2024), Appendix C: 0.05 and 0.01 with hindsight, 0.005 and 0 without.

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

    n_step: int = 3
    tau: float = 0.1
    alpha_init: float | None = None
    target_entropy: float | None = None
    target_entropy_end: float | None = None
    target_entropy_steps: int = 20_000
    munchausen: float = 0.0
    exploration: float = 0.0
    num_updates: int = 8
    warmup_updates: int = 50
    lr_trunk: float = 3e-4
    lr_alpha: float = 2e-3
    separate_optimizers: Switch = False

    hindsight: Switch = True
    sampling: str = "ratio"
    hindsight_ratio: float = 0.5
    capacity: int = 100_000

    probe_episodes: int = 64

    def check(self) -> None:
        """Fills in what depends on other keys and refuses values out of range.

        Raises:
            ValueError: naming the key, its value and what was expected.
        """
        super().check()
        if self.alpha_init is None:
            self.alpha_init = 0.05 if self.hindsight else 0.005
        if self.target_entropy is None:
            self.target_entropy = 0.01 if self.hindsight else 0.0
        for key in ("n_step", "num_updates", "target_entropy_steps"):
            at_least(self, key, 1)
        within(self, "capacity", 1, 1_000_000_000)
        at_least(self, "warmup_updates", 0)
        within(self, "probe_episodes", 0, 1_000_000)
        within(self, "hindsight_ratio", 0.0, 1.0)
        require(0 < self.tau <= 1, "tau", self.tau, "be in (0, 1]")
        finite = 0 < self.alpha_init < math.inf
        require(finite, "alpha_init", self.alpha_init, "be above 0 and finite")
        require(0 <= self.munchausen < 1, "munchausen", self.munchausen, "be in [0, 1)")
        within(self, "exploration", 0.0, 1.0)
        if self.target_entropy_end is None:
            self.target_entropy_end = self.target_entropy
        for key in ("target_entropy", "target_entropy_end"):
            at_least(self, key, 0)
        for key in ("lr_trunk", "lr_alpha"):
            learning_rate(self, key)
        choice(self, "critic_input", get_args(CriticInput))
        choice(self, "sampling", SAMPLING)
        rounds = self.total_steps // self.update_every
        require(
            self.warmup_updates <= rounds * self.num_updates,
            "warmup_updates",
            self.warmup_updates,
            f"be at most the {rounds * self.num_updates} updates that total_steps "
            f"({self.total_steps}) allows, or the actor never learns",
        )
        require(
            self.capacity >= self.batch_size,
            "capacity",
            self.capacity,
            f"be at least batch_size ({self.batch_size})",
        )

    def check_game(self, game: EnvDescription) -> None:
        """Refuses what does not fit the environment.

        Args:
            game: what :func:`~torchrl_glam.text.describe_env` says of it.

        Raises:
            ValueError: naming the key, its value and what was expected.
        """
        for key in ("target_entropy", "target_entropy_end"):
            within(self, key, 0.0, math.log(game.num_actions))
        if self.hindsight:
            names_goals(game, "true")
        require(
            not self.hindsight
            or not {"prior", "kinds"} & {*self.sampling.split("+")}
            or game.goal_kind_prior is not None,
            "sampling",
            self.sampling,
            "be uniform or ratio, as the environment does not say how often it pursues each kind "
            "of goals (goal_kind_prior)",
        )
        # All instances begin together, so the episodes that no goal ends end together too.
        rows = self.num_envs * (game.max_steps or 1) * (2 if self.hindsight else 1)
        require(
            self.capacity >= rows,
            "capacity",
            self.capacity,
            f"be at least {rows}: {self.num_envs} instances (num_envs) end episodes of "
            f"{game.max_steps} steps at a time, and hindsight adds as much again",
        )
