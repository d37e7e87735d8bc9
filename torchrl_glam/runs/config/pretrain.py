"""Types and ranges of the configuration of pre-training."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl_glam.pretraining import GAME_EXERCISES
from torchrl_glam.runs.config.base import ENVIRONMENT, EnvironmentConfig, RecipeConfig
from torchrl_glam.runs.config.rules import Switch

# Most of what is held at once, most steps of a loop, and most weights of a model.
_MANY, _STEPS, _WEIGHTS = 1_000_000, 100_000_000, 1_000_000_000
_BATCH = 128  # steps in a batch of imitation


@dataclass
class PretrainConfig(EnvironmentConfig):
    """Configuration of ``recipes/pretrain.py``; ``recipes/config/pretrain`` explains each key.

    Examples:
        >>> PretrainConfig(d_model=100, num_heads=8).check()
        Traceback (most recent call last):
            ...
        ValueError: d_model (100) must be a multiple of num_heads (8)
    """

    seed: int = 0
    output: str = "runs/pretrain"
    results: str = "runs/pretrain"
    overwrite: Switch = True

    exercises: str = "game"
    num_steps: int = 4_096
    vocabulary: int = 4_096
    num_batches: int = 400
    batch_size: int = 32
    questions: int = 3

    lr: float = 5e-3
    lr_embeddings: float = 2e-2
    decay: float = 0.7
    max_grad_norm: float = 1.0
    autocast: str = "auto"
    d_model: int = 64
    d_ff: int = 128
    num_heads: int = 4
    num_layers: int = 3
    num_decoder_layers: int = 1
    log_every: int = 50

    entropy_states: int = 512
    episodes: int = 200
    imitate_steps: int = 0

    def check(self) -> None:
        """See ``RecipeConfig.check``."""
        self.switches()
        self.autocasts()
        self.choice("exercises", ("game", "playground"))
        self.filled("output", "results")
        game = self.exercises == "game"
        if self.env_class != RecipeConfig.env_class:
            expected = f"be game for {self.env_class}: those of Playground-Text know its words"
            self.require("exercises", game, expected)
        self.within(1, _MANY, "batch_size", "vocabulary", "entropy_states", "episodes")
        self.within(1, _MANY, "questions", "num_heads")
        self.within(1, _STEPS, "num_batches", "log_every")
        self.within(int(game), _STEPS, "num_steps")
        self.within(0, _STEPS, "imitate_steps")
        if game:
            self.within(1, len(GAME_EXERCISES), "questions")  # those about a state differ
        whole = self.imitate_steps == 0 or self.imitate_steps >= _BATCH
        self.require("imitate_steps", whole, f"be 0, or at least a batch ({_BATCH})")
        self.above(0, "lr", "lr_embeddings")
        self.require("max_grad_norm", self.max_grad_norm > 0, "be above 0; inf for no clipping")
        self.require("decay", 0 < self.decay <= 1, "be in (0, 1]")
        self.within(1, 1_000, "num_layers", "num_decoder_layers")
        self.at_least(1, "d_model", "d_ff")
        self.multiple("num_heads", "d_model")
        sizes = ("d_model", "d_ff", "num_layers", "num_decoder_layers")
        layers = self.num_layers + self.num_decoder_layers
        weights = 4 * self.d_model * (self.d_model + self.d_ff) * layers
        if weights > _WEIGHTS:
            given = ", ".join(f"{key} ({getattr(self, key)})" for key in sizes)
            raise ValueError(f"{given} make about {weights:,} weights, expected {_WEIGHTS:,}")
        self.tasks().check()

    def tasks(self) -> RecipeConfig:
        """The environment as other recipes have it in their configuration."""
        return RecipeConfig(**self.pick("seed", *ENVIRONMENT), loggers=[])
