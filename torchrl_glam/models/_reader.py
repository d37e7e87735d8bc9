"""How a language model reads a prompt and the token tries of the candidates.

What is read, and where it is written, is up to the trunk (:mod:`torchrl_glam.models.trunk`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from torchrl_glam.models._reach import Limit, check_kind, positions, text_config, turning_points
from torchrl_glam.models.exactness import check_exactness
from torchrl_glam.models.trie import CandidateTrie
from torchrl_glam.text import PromptBuilder, PromptTemplate, check_composition
from torchrl_glam.text.prompt import EXAMPLE_ACTIONS, EXAMPLES


class ModelReader(TensorDictModuleBase):
    """What a family of language models adds: how its model reads, and the vocabulary head.

    Arguments and errors are those of :class:`~torchrl_glam.models.trunk.CandidateTrunk`.
    """

    # Whether the tokens that the tokenizer puts after a text close the prompt.
    closes_prompt = True
    # Whether candidates stand one after another, or share prefixes.
    packed = False
    # Width D of the embeddings; what the model writes, whatever its configuration says.
    embedding_dim: int

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        template: PromptTemplate | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._check_family()
        check_kind(self.base_model)
        self._text_config = text_config(self.base_model)
        self._has_windows = bool(turning_points(self.base_model.config))
        self.limit = self._find_limit()
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.prompt = PromptBuilder(tokenizer, template, closed=self.closes_prompt)
        # Where there is no encoder, actions go on in the text of the prompt.
        actions = () if self.closes_prompt else EXAMPLE_ACTIONS
        check_composition(tokenizer, self.prompt.template, EXAMPLES, actions)
        self.register_load_state_dict_post_hook(_check_again)

    @property
    def base_model(self) -> nn.Module:
        """The ``transformers`` model itself, without the ``peft`` wrapper."""
        wrapped = hasattr(self.model, "get_base_model")
        return self.model.get_base_model() if wrapped else self.model

    def check_exactness(self) -> None:
        """Checks, as on construction, that the model is read as it reads itself.

        To be called when its weights have been replaced; ``load_state_dict`` of the trunk, or of a
        module that holds it, does so by itself.

        Raises:
            ValueError: if it is not.
        """
        check_exactness(self)

    def _find_limit(self) -> Limit | None:
        return positions(self._text_config)

    @abstractmethod
    def _check_family(self) -> None:
        """Raises ValueError if this trunk cannot read the model."""

    @abstractmethod
    def _read(self, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie) -> Tensor:
        """Last hidden states at the nodes, ``[B, N, D]``; at node 0 the one before any action."""

    @abstractmethod
    def _plain_logits(self, prompt: Tensor, candidate: Tensor) -> Tensor:
        """Logits of the model's own forward, before and after every token of the candidates.

        Prompts ``[K, T]`` and candidates ``[K, W]`` without padding give ``[K, W + 1, V]``.
        """

    def _logits(self, hidden: Tensor) -> Tensor:
        """The vocabulary head: ``[K, D]`` to ``[K, V]``."""
        config = self._text_config
        logits = self.base_model.get_output_embeddings()(hidden)
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = cap * torch.tanh(logits / cap)
        if (factor := getattr(config, "logit_scale", None)) is not None:
            logits = logits * factor
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        return logits

    def _start_id(self) -> int:
        """The token at node 0."""
        return self.prompt.pad_id


def _check_again(trunk: ModelReader, keys: Any) -> None:
    trunk.check_exactness()
