"""The language model and the environments of a run, as its configuration and device want them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.environments import make_env, make_eval_envs
from torchrl_glam.runs.language_model import load_agent_model, scoring
from torchrl_glam.text import EnvDescription, describe_env

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Setting:
    """What a :class:`~torchrl_glam.runs.run.Run` gives its algorithm to begin with.

    Attributes:
        config: the run's configuration.
        mine: the same for this process: its share of environments, batch and replay buffer.
        device: of the language model. Environments and replay buffer are in main memory.
        game: what the environment says of itself, after :meth:`make_envs`.
    """

    config: RecipeConfig
    mine: RecipeConfig
    device: torch.device
    game: EnvDescription
    _autocast: torch.dtype | None

    def load_model(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The language model of the configuration, on the run's device, and its tokenizer."""
        return load_agent_model(self.config, self.device, self._autocast)

    def scoring(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Keyword arguments of :func:`~torchrl_glam.models.make_trunk`."""
        return scoring(self.config, tokenizer, self.device, self._autocast)

    def make_envs(
        self, tokenizer: PreTrainedTokenizerBase, keep: Sequence[NestedKey] = ()
    ) -> TransformedEnv:
        """Makes the environments of training, which are returned, and of evaluations.

        Args:
            tokenizer: of the language model.
            keep: entries to keep besides those that every recipe reads. Default: none.

        Raises:
            ValueError: if the configuration does not fit the environment.
        """
        env = make_env(self.mine, tokenizer, keep=keep)
        self.game = describe_env(env)
        self.config.check_game(self.game)
        self._tokenizer = tokenizer
        self._eval_envs = make_eval_envs(self.config, tokenizer)
        return env

    def collect(self, env: EnvBase, policy: Callable[[TensorDictBase], Any]) -> Collector:
        """TorchRL's collector of this process's share of ``update_every`` steps a round.

        It has no end, at which it would close what is still to be saved.
        """
        return Collector(
            env,
            policy,
            frames_per_batch=self.mine.update_every,
            total_frames=-1,
            auto_register_policy_transforms=False,
        )
