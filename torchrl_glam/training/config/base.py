"""What the configurations of all recipes share: run, environment, language model, evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

from torchrl_glam.models.export import ExportKind
from torchrl_glam.models.likelihood import Normalisation

# A resumed run may train longer and report otherwise; the rest decides what is learnt.
MAY_CHANGE_ON_RESUME = (
    *("total_steps", "output", "resume", "device", "loggers", "keep_checkpoints"),
    *("checkpoint_every", "eval_episodes", "export"),
)


@dataclass
class RecipeConfig:
    """Keys that every recipe has; a recipe's own configuration is a subclass.

    Examples:
        >>> RecipeConfig(gamma=1.5).check()
        Traceback (most recent call last):
            ...
        ValueError: gamma (1.5) must be in [0, 1]
    """

    seed: int = 0
    device: str = "auto"
    output: str = "runs"
    resume: str | None = None
    total_steps: int = 19_200

    num_envs: int = 32
    num_objects: int = 3
    sequential: bool = False
    max_steps: int = 10

    model: str = "tiny"
    lora_rank: int | None = None
    lora_alpha: int = 32
    lora_target_modules: list[str] = field(default_factory=lambda: ["q", "v"])
    load_in_4bit: bool = False
    compute_dtype: str = "bfloat16"
    dtype: str = "float32"
    autocast: str = "auto"
    compile: bool = False
    gradient_checkpointing: bool = False
    chat_template: bool = False
    normalisation: str = "sum"
    score_eos: bool = False
    critic_hidden_sizes: list[int] = field(default_factory=lambda: [256, 256])
    critic_backprop: bool = True

    gamma: float = 0.7
    update_every: int = 32
    batch_size: int = 128
    max_tokens_per_pass: int | None = None
    lr_heads: float = 1e-3
    max_grad_norm: float = 0.3

    eval_every: int = 1_600
    eval_episodes: int = 500
    log_every: int = 800
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])
    checkpoint_every: int = 3_200
    keep_checkpoints: int = 2
    export: str = "auto"

    def check(self) -> None:
        """Refuses values out of range; ``autocast`` becomes lower case.

        Raises:
            ValueError: naming the key, its value and what was expected.
        """
        for key in ("total_steps", "num_envs", "num_objects", "max_steps", "update_every"):
            at_least(self, key, 1)
        for key in ("batch_size", "log_every", "eval_episodes", "keep_checkpoints"):
            at_least(self, key, 1)
        for key in ("eval_every", "checkpoint_every"):
            at_least(self, key, 0)
        within(self, "gamma", 0.0, 1.0)
        learning_rate(self, "lr_heads")
        self.autocast = self.autocast.lower()  # Hydra reads autocast=true as a truth value: "True"
        for key in ("dtype", "compute_dtype"):
            choice(self, key, ("float32", "bfloat16"))
        choice(self, "autocast", ("auto", "true", "false"))
        choice(self, "normalisation", get_args(Normalisation))
        choice(self, "export", (*get_args(ExportKind), "none"))
        require(
            self.export != "adapter" or self.lora_rank is not None,
            "export",
            self.export,
            "be 'auto', 'merged' or 'none' without adapters (lora_rank: null)",
        )
        multiple(self, "update_every", "num_envs")
        for key in ("log_every", "eval_every", "checkpoint_every"):
            multiple(self, key, "update_every")
        if self.max_tokens_per_pass is not None:
            at_least(self, "max_tokens_per_pass", 1)


def require(holds: bool, key: str, value: Any, expected: str) -> None:
    """Raises ValueError about a key unless the condition holds."""
    if not holds:
        raise ValueError(f"{key} ({value}) must {expected}")


def at_least(config: RecipeConfig, key: str, low: int) -> None:
    """Requires a smallest value."""
    require(getattr(config, key) >= low, key, getattr(config, key), f"be at least {low}")


def within(config: RecipeConfig, key: str, low: float, high: float) -> None:
    """Requires a closed range."""
    value = getattr(config, key)
    require(low <= value <= high, key, value, f"be in [{low:g}, {high:g}]")


def choice(config: RecipeConfig, key: str, choices: tuple[str, ...]) -> None:
    """Requires one of several words."""
    require(getattr(config, key) in choices, key, getattr(config, key), f"be one of {choices}")


def multiple(config: RecipeConfig, key: str, of: str) -> None:
    """Requires a multiple of another key's value."""
    value, unit = getattr(config, key), getattr(config, of)
    require(value % unit == 0, key, value, f"be a multiple of {of} ({unit})")


def learning_rate(config: RecipeConfig, key: str) -> None:
    """Requires a finite number of at least 0."""
    require(0 <= getattr(config, key) < math.inf, key, getattr(config, key), "be at least 0")
