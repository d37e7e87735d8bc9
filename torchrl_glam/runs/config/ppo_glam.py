"""Types and ranges of the configuration of PPO-GLAM."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl_glam.runs.config.base import RecipeConfig, names_goals
from torchrl_glam.runs.config.rules import Switch
from torchrl_glam.text import EnvDescription


@dataclass
class PPOGLAMConfig(RecipeConfig):
    """Configuration of ``recipes/ppo_glam.py``; ``recipes/config`` explains each key.

    Examples:
        >>> PPOGLAMConfig().check()
        >>> PPOGLAMConfig(clip_center="behaviour").check()
        Traceback (most recent call last):
            ...
        ValueError: clip_center (behaviour) must be one when hindsight is none: it moves the centre
        of relabelled rows only
    """

    output: str = "runs/ppo_glam"
    total_steps: int = 16_384

    objective: str = "clip"
    clip_epsilon: float = 0.2
    kl_coeff: float = 1.0
    kl_target: float | None = 0.01
    entropy_coeff: float = 0.01
    critic_coeff: float = 0.5
    lmbda: float = 0.95
    normalize_advantage: Switch = True
    update_every: int = 512
    num_epochs: int = 4
    lr_trunk: float = 4e-4
    max_grad_norm: float = 0.5

    hindsight: str = "none"
    clip_center: str = "one"

    eval_every: int = 2_048
    log_every: int = 1_024
    checkpoint_every: int = 4_096

    def check(self) -> None:
        """See ``RecipeConfig.check``."""
        super().check()
        self.at_least(1, "num_epochs")
        self.at_least(0, "kl_coeff", "entropy_coeff", "critic_coeff")
        self.within(0, 1, "lmbda")
        self.require("clip_epsilon", 0 < self.clip_epsilon < 1, "be in (0, 1)")
        self.above(0, "kl_target")
        self.choice("objective", ("clip", "kl"))
        self.choice("hindsight", ("none", "all", "aligned"))
        self.choice("clip_center", ("one", "behaviour"))
        if self.hindsight == "none":
            expected = "be one when hindsight is none: it moves the centre of relabelled rows only"
            self.require("clip_center", self.clip_center == "one", expected)
        aligned = self.imagined and self.hindsight == "aligned"
        self.require("imagined", not aligned, "be 0 with hindsight=aligned: they have no sub-goals")
        expected = f"be at most update_every ({self.update_every}), the transitions of a rollout"
        self.require("batch_size", self.batch_size <= self.update_every, expected)

    def check_game(self, game: EnvDescription) -> None:
        """See ``RecipeConfig.check_game``."""
        if self.hindsight == "aligned":
            expected = "be none or all, as the environment names no sub-goals (is_subgoal)"
            self.require("hindsight", game.is_subgoal is not None, expected)
        if self.hindsight != "none" and self.hindsight_by == "partner":
            ids = ("goal_id", ("hindsight", "goal_id")) if self.hindsight == "aligned" else ()
            names_goals(game, self.hindsight, ids)
