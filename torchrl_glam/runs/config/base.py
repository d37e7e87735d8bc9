"""What the configurations of all recipes share: run, environment, language model, evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from omegaconf import DictConfig, OmegaConf
from tensordict import NestedKey

from torchrl_glam.models.trunks.likelihood import Normalisation
from torchrl_glam.runs.config.rules import Rules, Switch
from torchrl_glam.runs.run_folder import find_unfinished
from torchrl_glam.text import EnvDescription, PromptTemplate

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerBase

_SAMPLERS = ("progress", "kind_progress", "learned_progress")
GOALS = ("uniform", *_SAMPLERS, *(f"{name}+hindsight" for name in _SAMPLERS))
# TorchRL's loggers, each named after the module that it needs.
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")

Config = TypeVar("Config", bound="RecipeConfig")


@dataclass
class EnvironmentConfig(Rules):
    """Keys that say which environment it is, and how much of its texts is kept."""

    env_class: str = "torchrl_glam.envs:PlaygroundTextEnv"
    env: dict[str, Any] = field(
        default_factory=lambda: {"num_objects": 3, "sequential": False, "max_steps": 10}
    )
    eval_splits: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"train": {"split": "train"}, "test": {"split": "test"}}
    )
    goal_length: int | None = None
    observation_length: int | None = None
    action_length: int | None = None
    memory: int = 0
    long_texts: str = "error"


ENVIRONMENT = tuple(key.name for key in fields(EnvironmentConfig))
LENGTHS = ("goal_length", "observation_length", "action_length")


@dataclass
class RecipeConfig(EnvironmentConfig):
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
    total_steps: int = 6_400

    num_envs: int = 32
    goals: str = "uniform"
    goal_words: list[str] = field(default_factory=list)
    imagined: int = 0
    hindsight_by: str = "partner"

    language_model: str = "tiny"
    lora_rank: int | None = None
    load_in_4bit: Switch = False
    autocast: str = "auto"
    gradient_checkpointing: Switch = False
    chat_template: Switch = False
    normalisation: str = "sum"
    critic_hidden_sizes: list[int] = field(default_factory=lambda: [256, 256])

    gamma: float = 0.7
    update_every: int = 32
    batch_size: int = 128
    max_tokens_per_pass: int | None = None
    lr_trunk: float = 3e-4
    lr_heads: float = 1e-3
    lr_end: float = 1.0
    max_grad_norm: float = 0.3

    eval_every: int = 800
    eval_episodes: int = 500
    log_every: int = 800
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])
    checkpoint_every: int = 1_600

    def check(self) -> None:
        """Refuses values out of range; ``autocast`` becomes lower case.

        Raises:
            ValueError: naming the key, its value and what was expected.
        """
        self.switches()
        self.at_least(1, "total_steps", "update_every", "batch_size", "lora_rank")
        self.at_least(1, "log_every", "max_tokens_per_pass")
        self.within(1, 1_000_000, *LENGTHS)
        self.within(0, 1_000_000, "memory", "imagined")
        self.at_least(0, "eval_every", "checkpoint_every", "lr_trunk", "lr_heads")
        self.within(0, 2**32 - 1, "seed")
        self.within(1, 1_000_000, "num_envs", "eval_episodes")
        self.within(0, 1, "gamma", "lr_end")
        self.require("max_grad_norm", self.max_grad_norm > 0, "be above 0; inf for no clipping")
        sizes = self.critic_hidden_sizes
        fit = len(sizes) <= 64 and all(0 < size <= 2**20 for size in sizes)  # as in an agent card
        self.require("critic_hidden_sizes", fit, "be at most 64 numbers from 1 to 1048576")
        self.require("eval_splits", "train" in self.eval_splits, "have a key train")
        plain = not any("/" in split for split in self.eval_splits)  # as in names of metrics
        self.require("eval_splits", plain, "have keys without /")
        self.filled("output", "language_model", "resume")
        self.autocasts()
        self.choice("normalisation", get_args(Normalisation))
        self.choice("goals", GOALS)
        self.choice("hindsight_by", ("partner", "judge"))
        named = self.hindsight_by == "partner" or getattr(self, "hindsight", False)
        self.require("hindsight_by", named not in (False, "none"), "be partner without hindsight")
        judged = not self.imagined or self.hindsight_by == "judge"
        self.require("imagined", judged, "be 0 without hindsight_by=judge")
        self.choice("long_texts", ("error", "head", "tail"))
        self.multiple("num_envs", "update_every")
        self.multiple("update_every", "total_steps", "log_every", "eval_every", "checkpoint_every")
        for name in self.loggers:
            self.require("loggers", name in LOGGERS, f"be some of {LOGGERS}")
            how = f'be installed, and {name} is not: pip install "torchrl_glam[{name}]"'
            self.require("loggers", find_spec(name) is not None, how)

    @property
    def may_change(self) -> tuple[str, ...]:
        """Keys that may differ where a run is resumed; the rest decides what is learned."""
        return ("total_steps", "checkpoint_every", "loggers", "output", "resume", "device")

    def lora(self) -> LoraConfig | None:
        """The adapters to train, or None; their scale is that of the paper's code, 2.

        They are put on the modules that peft chooses for the kind of model: of a T5, q and v.

        Examples:
            >>> RecipeConfig().lora() is None, RecipeConfig(lora_rank=4).lora().lora_alpha
            (True, 8)
        """
        if self.lora_rank is None:
            return None
        from peft import LoraConfig

        return LoraConfig(r=self.lora_rank, lora_alpha=2 * self.lora_rank)

    def template(self, tokenizer: PreTrainedTokenizerBase) -> PromptTemplate:
        """The prompt, as a user's turn with ``chat_template``."""
        template = PromptTemplate()
        return template.as_chat(tokenizer) if self.chat_template else template

    def check_game(self, game: EnvDescription) -> None:
        """Refuses, by ValueError, what does not fit the environment that ``game`` describes."""


def read_config(kind: type[Config], cfg: DictConfig) -> Config:
    """The configuration of a recipe that Hydra composed, checked.

    Raises:
        ValueError: naming a key that is unknown (Hydra takes those written ``+key=value``),
            missing, out of range, or with ``resume=auto`` another than the run's in ``output``.
        RunIsDone: with ``resume=auto``, if ``output`` holds the whole run.

    Examples:
        >>> read_config(RecipeConfig, OmegaConf.structured(RecipeConfig(seed=3))).seed
        3
    """
    known = {key.name for key in fields(kind)}
    given = {str(key) for key in cfg}
    for key in sorted(given - known):
        raise ValueError(f"{key} is no key of this recipe: --help lists them all")
    for key in sorted(known - given):
        raise ValueError(f"{key} is missing: it cannot be taken away")
    config = OmegaConf.to_object(cfg)
    config.check()
    if getattr(config, "resume", None) == "auto":
        config.resume = find_unfinished(config.output, asdict(config), config.may_change)
    return config


def names_goals(game: EnvDescription, hindsight: str, also: Sequence[NestedKey] = ()) -> None:
    """Requires an environment that names the goals reached, by their tokens, kinds and ``also``."""
    keys = (("hindsight", "goal_tokens"), ("hindsight", "kind"), *also)
    missing = [key for key in keys if key not in game.entries]
    if missing:
        raise ValueError(
            f"hindsight ({hindsight}) needs an environment that names the goals reached, and this "
            f"one writes no {missing}: use another environment, or go without hindsight"
        )
