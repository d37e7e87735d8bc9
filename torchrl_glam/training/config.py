"""Types and ranges of the recipes' configurations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class SACGLAMConfig:
    """Configuration of ``recipes/sac_glam.py``; the files in ``recipes/config`` explain each key.

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

    seed: int = 0
    device: str = "auto"
    output: str = "runs/sac_glam"
    resume: str | None = None
    total_steps: int = 48_000

    num_envs: int = 32
    num_objects: int = 3
    sequential: bool = False
    max_steps: int = 10

    model: str = "tiny"
    lora_rank: int | None = None
    lora_alpha: int = 32
    lora_target_modules: list[str] = field(default_factory=lambda: ["q", "v"])
    load_in_4bit: bool = False
    dtype: str = "float32"
    autocast: str = "auto"
    critic_hidden_sizes: list[int] = field(default_factory=lambda: [256, 256])
    critic_backprop: bool = True

    gamma: float = 0.7
    n_step: int = 3
    tau: float = 0.01
    alpha_init: float | None = None
    target_entropy: float | None = None
    update_every: int = 32
    num_updates: int = 2
    batch_size: int = 128
    micro_batch_size: int | None = None
    warmup_updates: int = 50
    lr_trunk_actor: float = 3e-4
    lr_trunk_critic: float = 3e-4
    lr_heads: float = 1e-3
    lr_alpha: float = 2e-3
    max_grad_norm: float = 0.3
    separate_optimizers: bool = False

    hindsight: bool = True
    hindsight_relabel: str = "all"
    hindsight_strategy: str = "future"
    hindsight_goals_per_episode: int | None = None
    hindsight_goals_per_transition: int | None = None
    sampling: str = "ratio"
    hindsight_ratio: float = 0.5
    priority_alpha: float = 0.0
    priority_beta: float = 0.4
    capacity: int = 100_000
    storage: str = "ram"

    eval_every: int = 8_000
    eval_episodes: int = 500
    log_every: int = 1_600
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])
    checkpoint_every: int = 16_000
    keep_checkpoints: int = 2

    def check(self) -> None:
        """Fills in what depends on other keys and refuses values out of range.

        Raises:
            ValueError: naming the key, its value and what was expected.
        """
        if self.alpha_init is None:
            self.alpha_init = 0.05 if self.hindsight else 0.005
        if self.target_entropy is None:
            self.target_entropy = 0.01 if self.hindsight else 0.0
        for key in ("total_steps", "num_envs", "num_objects", "max_steps", "n_step"):
            _at_least(self, key, 1)
        for key in ("update_every", "num_updates", "batch_size", "capacity", "log_every"):
            _at_least(self, key, 1)
        for key in ("eval_episodes", "keep_checkpoints"):
            _at_least(self, key, 1)
        for key in ("warmup_updates", "eval_every", "checkpoint_every"):
            _at_least(self, key, 0)
        for key in ("gamma", "hindsight_ratio", "priority_alpha", "priority_beta"):
            _within(self, key, 0.0, 1.0)
        _require(0 < self.tau <= 1, "tau", self.tau, "be in (0, 1]")
        _require(self.alpha_init > 0, "alpha_init", self.alpha_init, "be above 0")
        _within(self, "target_entropy", 0.0, math.log(self.num_objects + 2))
        for key in ("lr_trunk_actor", "lr_trunk_critic", "lr_heads", "lr_alpha"):
            _require(0 <= getattr(self, key) < math.inf, key, getattr(self, key), "be at least 0")
        _choice(self, "dtype", ("float32", "bfloat16"))
        _choice(self, "autocast", ("auto", "true", "false"))
        _choice(self, "hindsight_relabel", ("all", "failed"))
        _choice(self, "hindsight_strategy", ("future", "final", "episode"))
        _choice(self, "sampling", ("uniform", "ratio", "prior", "ratio+prior"))
        _choice(self, "storage", ("ram", "memmap", "compact"))
        limits = ("hindsight_goals_per_episode", "hindsight_goals_per_transition")
        for key in limits:
            if getattr(self, key) is not None:
                _at_least(self, key, 1)
        _require(
            None in (getattr(self, key) for key in limits),
            limits[1],
            self.hindsight_goals_per_transition,
            f"be null when {limits[0]} ({self.hindsight_goals_per_episode}) is given",
        )
        _multiple(self, "update_every", "num_envs")
        for key in ("log_every", "eval_every", "checkpoint_every"):
            _multiple(self, key, "update_every")
        rounds = self.total_steps // self.update_every
        _require(
            self.warmup_updates <= rounds * self.num_updates,
            "warmup_updates",
            self.warmup_updates,
            f"be at most the {rounds * self.num_updates} updates that total_steps "
            f"({self.total_steps}) allows, or the actor never learns",
        )
        if self.micro_batch_size is not None:
            _require(
                0 < self.micro_batch_size and self.batch_size % self.micro_batch_size == 0,
                "micro_batch_size",
                self.micro_batch_size,
                f"divide batch_size ({self.batch_size})",
            )
        _require(
            self.capacity >= self.batch_size,
            "capacity",
            self.capacity,
            f"be at least batch_size ({self.batch_size})",
        )


def _require(holds: bool, key: str, value: Any, expected: str) -> None:
    if not holds:
        raise ValueError(f"{key} ({value}) must {expected}")


def _at_least(config: SACGLAMConfig, key: str, low: int) -> None:
    _require(getattr(config, key) >= low, key, getattr(config, key), f"be at least {low}")


def _within(config: SACGLAMConfig, key: str, low: float, high: float) -> None:
    value = getattr(config, key)
    _require(low <= value <= high, key, value, f"be in [{low:g}, {high:g}]")


def _choice(config: SACGLAMConfig, key: str, choices: tuple[str, ...]) -> None:
    _require(getattr(config, key) in choices, key, getattr(config, key), f"be one of {choices}")


def _multiple(config: SACGLAMConfig, key: str, of: str) -> None:
    value, unit = getattr(config, key), getattr(config, of)
    _require(value % unit == 0, key, value, f"be a multiple of {of} ({unit})")
