"""What the configurations of all recipes share: run, environment, language model, evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from omegaconf import DictConfig, OmegaConf
from tensordict import NestedKey

from torchrl_glam.models.export import ExportKind
from torchrl_glam.models.hub import check_repo_id, require_token
from torchrl_glam.models.trunks.likelihood import Normalisation
from torchrl_glam.text import EnvDescription, PromptTemplate

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerBase

# A resumed run may train longer and report otherwise; the rest decides what is learnt.
MAY_CHANGE_ON_RESUME = (
    *("total_steps", "output", "push", "resume", "device", "loggers"),
    *("checkpoint_every", "eval_episodes", "export"),
)

# Keys that say which environment it is, and how much of its texts is kept.
ENVIRONMENT = (
    *("env_class", "env", "eval_splits"),
    *("goal_length", "observation_length", "action_length"),
)

# A truth value. OmegaConf would make True of 2 for a key of type bool, so check() looks instead.
Switch = Any

# TorchRL's loggers, each named after the module that it needs.
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")

Config = TypeVar("Config", bound="RecipeConfig")


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
    total_steps: int = 6_400

    num_envs: int = 32
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
    long_texts: str = "error"

    language_model: str = "tiny"
    lora_rank: int | None = None
    lora_alpha: int = 32
    lora_target_modules: list[str] = field(default_factory=lambda: ["q", "v"])
    load_in_4bit: Switch = False
    autocast: str = "auto"
    compile: Switch = False
    gradient_checkpointing: Switch = False
    chat_template: Switch = False
    normalisation: str = "sum"
    critic_hidden_sizes: list[int] = field(default_factory=lambda: [256, 256])

    gamma: float = 0.7
    update_every: int = 32
    batch_size: int = 128
    max_tokens_per_pass: int | None = None
    lr_heads: float = 1e-3
    lr_end: float = 1.0
    max_grad_norm: float = 0.3

    eval_every: int = 800
    eval_episodes: int = 500
    log_every: int = 800
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])
    checkpoint_every: int = 1_600
    push: str | None = None
    export: str = "auto"

    def check(self) -> None:
        """Refuses values out of range; ``autocast`` becomes lower case.

        Raises:
            ValueError: naming the key, its value and what was expected.
            PermissionError: if ``push`` is given and there is no token of the hub.
        """
        switches(self)
        for key in ("total_steps", "update_every", "batch_size", "log_every"):
            at_least(self, key, 1)
        for key in ("num_envs", "eval_episodes"):
            within(self, key, 1, 1_000_000)
        for key in ("eval_every", "checkpoint_every"):
            at_least(self, key, 0)
        within(self, "seed", 0, 2**32 - 1)
        within(self, "gamma", 0.0, 1.0)
        learning_rate(self, "lr_heads")
        within(self, "lr_end", 0.0, 1.0)
        above(self, "max_grad_norm", 0, "inf for no clipping")
        for key in ("output", "language_model"):
            require(bool(getattr(self, key).strip()), key, getattr(self, key), "not be empty")
        require(self.resume is None or bool(self.resume.strip()), "resume", "", "not be empty")
        self.autocast = self.autocast.lower()  # Hydra reads autocast=true as a truth value: "True"
        choice(self, "autocast", ("auto", "true", "false"))
        choice(self, "normalisation", get_args(Normalisation))
        choice(self, "export", (*get_args(ExportKind), "none"))
        if self.push is not None:
            check_repo_id("push", self.push)
            require(
                self.export != "none", "export", self.export, f"not be none with push={self.push}"
            )
            require_token("push", self.push)
        self._check_adapters()
        sizes = self.critic_hidden_sizes
        fit = len(sizes) <= 64 and all(0 < size <= 2**20 for size in sizes)  # as in an agent card
        require(fit, "critic_hidden_sizes", sizes, "be at most 64 numbers from 1 to 1048576")
        multiple(self, "update_every", "num_envs")
        for key in ("total_steps", "log_every", "eval_every", "checkpoint_every"):
            multiple(self, key, "update_every")
        for key in ("max_tokens_per_pass", "goal_length", "observation_length", "action_length"):
            if getattr(self, key) is not None:
                within(self, key, 1, 1_000_000_000)
        ends = ("error", "head", "tail")
        require(self.long_texts in ends, "long_texts", self.long_texts, f"be one of {ends}")
        require("train" in self.eval_splits, "eval_splits", self.eval_splits, "have a key train")
        for name in self.loggers:
            require(name in LOGGERS, "loggers", self.loggers, f"be some of {LOGGERS}")
            require(
                find_spec(name) is not None,
                "loggers",
                self.loggers,
                f'be installed, and {name} is not: pip install "torchrl_glam[{name}]"',
            )

    @property
    def may_change(self) -> tuple[str, ...]:
        """Keys that may differ where a run is resumed."""
        return MAY_CHANGE_ON_RESUME

    def lora(self) -> LoraConfig | None:
        """The adapters to train, or None.

        Examples:
            >>> RecipeConfig().lora() is None, RecipeConfig(lora_rank=4).lora().r
            (True, 4)
        """
        if self.lora_rank is None:
            return None
        from peft import LoraConfig

        modules = list(self.lora_target_modules)
        return LoraConfig(r=self.lora_rank, lora_alpha=self.lora_alpha, target_modules=modules)

    def template(self, tokenizer: PreTrainedTokenizerBase) -> PromptTemplate:
        """The prompt, as a user's turn with ``chat_template``."""
        template = PromptTemplate()
        return template.as_chat(tokenizer) if self.chat_template else template

    def check_game(self, game: EnvDescription) -> None:
        """Refuses what does not fit the environment; a recipe's own configuration knows what.

        Args:
            game: what :func:`~torchrl_glam.text.describe_env` says of it.

        Raises:
            ValueError: naming the key, its value and what was expected.
        """

    def _check_adapters(self) -> None:
        if self.lora_rank is not None:
            at_least(self, "lora_rank", 1)
        at_least(self, "lora_alpha", 1)
        modules = self.lora_target_modules
        require(bool(modules), "lora_target_modules", modules, "name at least one module")
        require(
            self.export != "adapter" or self.lora_rank is not None,
            "export",
            self.export,
            "be 'auto', 'merged' or 'none' without adapters (lora_rank: null)",
        )


def read_config(kind: type[Config], cfg: DictConfig) -> Config:
    """The configuration that Hydra composed, checked.

    Args:
        kind: the recipe's configuration.
        cfg: what Hydra made of files and command line.

    Raises:
        ValueError: naming a key that is unknown (Hydra takes those written ``+key=value``),
            missing, or out of range.

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
    return config


def names_goals(game: EnvDescription, hindsight: str, also: Sequence[NestedKey] = ()) -> None:
    """Requires an environment that names the goals reached.

    Args:
        game: what :func:`~torchrl_glam.text.describe_env` says of it, in its tokens.
        hindsight: the setting that asks for hindsight, for the message.
        also: entries needed beside the named goals' tokens and kinds. Default: none.
    """
    keys = (("hindsight", "goal_tokens"), ("hindsight", "kind"), *also)
    missing = [key for key in keys if key not in game.entries]
    if missing:
        raise ValueError(
            f"hindsight ({hindsight}) needs an environment that names the goals reached, and this "
            f"one writes no {missing}: use another environment, or go without hindsight"
        )


def require(holds: bool, key: str, value: Any, expected: str) -> None:
    """Raises ValueError about a key unless the condition holds."""
    if not holds:
        raise ValueError(f"{key} ({value}) must {expected}")


def switches(config: Any) -> None:
    """Requires a truth value of every key that is a ``Switch``."""
    for switch in (key.name for key in fields(config) if key.type == "Switch"):
        value = getattr(config, switch)
        require(isinstance(value, bool), switch, value, "be true or false")


def at_least(config: RecipeConfig, key: str, low: int) -> None:
    """Requires a finite number of a smallest value."""
    value = getattr(config, key)
    finite = " and finite" if value == math.inf else ""
    require(low <= value < math.inf, key, value, f"be at least {low}{finite}")


def above(config: RecipeConfig, key: str, low: float, also: str) -> None:
    """Requires a number that is larger than another; the message says what else there is."""
    require(getattr(config, key) > low, key, getattr(config, key), f"be above {low}; {also}")


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
    value = getattr(config, key)
    require(0 <= value < math.inf, key, value, "be finite and at least 0")
