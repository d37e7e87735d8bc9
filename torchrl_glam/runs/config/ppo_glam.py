"""Types and ranges of the configuration of PPO-GLAM."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl_glam.runs.config.base import RecipeConfig, names_goals
from torchrl_glam.runs.config.rules import Switch, above, at_least, choice, require, within
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
        at_least(self, 1, "num_epochs")
        at_least(self, 0, "kl_coeff", "entropy_coeff", "critic_coeff")
        within(self, 0, 1, "lmbda")
        require(self, "clip_epsilon", 0 < self.clip_epsilon < 1, "be in (0, 1)")
        above(self, 0, "kl_target")
        choice(self, "objective", ("clip", "kl"))
        choice(self, "hindsight", ("none", "all", "aligned"))
        choice(self, "clip_center", ("one", "behaviour"))
        if self.hindsight == "none":
            expected = "be one when hindsight is none: it moves the centre of relabelled rows only"
            require(self, "clip_center", self.clip_center == "one", expected)
        aligned = self.imagined and self.hindsight == "aligned"
        require(
            self, "imagined", not aligned, "be 0 with hindsight=aligned: they have no sub-goals"
        )
        expected = f"be at most update_every ({self.update_every}), the transitions of a rollout"
        require(self, "batch_size", self.batch_size <= self.update_every, expected)

    def check_game(self, game: EnvDescription) -> None:
        """See ``RecipeConfig.check_game``."""
        if self.hindsight == "aligned":
            expected = "be none or all, as the environment names no sub-goals (is_subgoal)"
            require(self, "hindsight", game.is_subgoal is not None, expected)
        if self.hindsight != "none" and self.hindsight_by == "partner":
            ids = ("goal_id", ("hindsight", "goal_id")) if self.hindsight == "aligned" else ()
            names_goals(game, self.hindsight, ids)
