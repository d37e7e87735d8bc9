"""The language model, environments and collector that a configuration and a device want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_glam.models import load_language_model
from torchrl_glam.models.trunks.reader import longest_text, text_config
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.device import bound_kernel_caches, choose_autocast, keep_freed_memory
from torchrl_glam.runs.environments import make_env, make_eval_envs
from torchrl_glam.runs.goals import PursuedGoals
from torchrl_glam.runs.seeds import seed_everything
from torchrl_glam.text import EnvDescription, describe_env

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Setting:
    """What a :class:`~torchrl_glam.runs.run.Run` gives its algorithm to begin with.

    Attributes:
        config: the configuration.
        mine: the same for this process: its share of environments, batch and replay buffer.
        device: of the language model, after :meth:`settle`. Environments and replay buffer are in
            main memory.
        game: what the environment says of itself, after :meth:`make_envs`.
    """

    device: torch.device
    game: EnvDescription

    def __init__(self, config: RecipeConfig) -> None:
        self.config = self.mine = config
        self._stack = ExitStack()  # what a run closes at its end
        self._pretraining = ""

    def settle(self, device: torch.device, seed: int) -> None:
        """Prepares for the language model's device, and seeds the global generators."""
        self.device, self._autocast = device, choose_autocast(self.config.autocast, device)
        if device.type == "cuda" and device.index:
            torch.cuda.set_device(device)  # whose generator `seeded` puts back
        self._slow = device.type == "cpu" and self._autocast is not None  # bfloat16 on the CPU
        bound_kernel_caches()
        keep_freed_memory()
        seed_everything(seed)

    def load_model(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The language model of the configuration, on the device, and its tokenizer.

        Raises ValueError if ``memory`` is larger than what it reads.
        """
        model, tokenizer = load_language_model(
            self.config.language_model,
            lora=self.config.lora(),
            load_in_4bit=self.config.load_in_4bit,
            device=self.device,
            gradient_checkpointing=self.config.gradient_checkpointing,
            attention="eager" if self._slow else None,  # the fused kernel is slow backward
        )
        limit, memory = longest_text(text_config(model)), self.config.memory
        if memory >= limit.tokens:
            raise ValueError(
                f"memory ({memory}) must be below {limit.tokens}, as the model {limit.why}: give "
                "fewer tokens, or choose a model with a longer context"
            )
        self._pretraining = str(getattr(model.config, "pretraining", ""))
        return model, tokenizer

    def scoring(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Keyword arguments of :func:`~torchrl_glam.models.make_trunk`."""
        return {
            "template": self.config.template(tokenizer),
            "normalisation": self.config.normalisation,
            "max_tokens_per_pass": self.config.max_tokens_per_pass,
            "autocast": self._autocast,
            "pad_to_multiple_of": 2 if self._slow else 1,  # oneDNN makes a kernel for each shape
        }

    def make_envs(
        self,
        tokenizer: PreTrainedTokenizerBase,
        goals: PursuedGoals | None = None,
        keep: Sequence[NestedKey] = (),
    ) -> TransformedEnv:
        """Makes the environments of training, which are returned, and of evaluations.

        Args:
            tokenizer: of the language model.
            goals: chooses the goals of training. Default: None, the environment draws them.
            keep: entries to keep besides those that every recipe reads. Default: none.

        Raises:
            ValueError: if the configuration does not fit the environment.
        """
        sampler, imagined, keys = None, None, ()
        if goals is not None:
            sampler, imagined, keys = goals.sampler, goals.imagined, goals.keys
        env = make_env(
            self.mine, tokenizer, keep=(*keys, *keep), goal_sampler=sampler, imagined=imagined
        )
        self.game = describe_env(env)
        self.config.check_game(self.game)
        self._tokenizer = tokenizer
        self._eval_envs = make_eval_envs(self.config, tokenizer)
        for each in (env, *self._eval_envs.values()):
            self._stack.callback(each.close, raise_if_closed=False)
        return env

    def collect(
        self,
        env: EnvBase,
        policy: Callable[[TensorDictBase], Any],
        name: Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> Collector:
        """TorchRL's collector of this process's share of ``update_every`` steps a round.

        It never ends by itself: TorchRL's would then close the environments, whose state is still
        to be saved. ``name`` may write the goals that its steps reached, in hindsight.
        """
        return Collector(
            env,
            policy,
            frames_per_batch=self.mine.update_every,
            total_frames=-1,
            auto_register_policy_transforms=False,
            postproc=name,
        )
