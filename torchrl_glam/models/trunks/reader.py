"""How a language model reads a prompt and the token tries of the candidates.

Inputs and outputs are the trunk's (:mod:`torchrl_glam.models.trunks.trunk`). Configurations of
``transformers`` tell limits and windows under many names; this is the one place that knows them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from torchrl_glam.models.trunks.exactness import check_exactness
from torchrl_glam.models.trunks.trie import CandidateTrie, build_trie
from torchrl_glam.text import PromptBuilder, PromptTemplate, check_composition
from torchrl_glam.text.prompt import EXAMPLE_ACTIONS, EXAMPLES

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


# Lengths from which some layers see only a part of the text before, or see it differently.
_WINDOWS = (
    "sliding_window",
    "window_size",
    "local_attention",
    "attention_window_size",
    "attention_chunk_size",
    "attention_window",
    "local_radius",
    "block_size",
)
# Kinds of layers in which a token takes part by attention alone.
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


class ModelReader(TensorDictModuleBase):
    """Base of the families of trunks: how their model reads, and the vocabulary head.

    Arguments and errors are those of :class:`~torchrl_glam.models.CandidateTrunk`.
    """

    # Whether the tokens that the tokenizer puts after a text close the prompt.
    closes_prompt = True
    # Whether candidates stand one after another, or share prefixes.
    packed = False
    # Width D of the embeddings, as the model writes them; configurations may say otherwise.
    embedding_dim: int
    # Most tokens of a text that this trunk reads, and where it begins to read them another way.
    limit: Limit | None
    window: Limit | None = None

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
        self.text_config = text_config(self.base_model)
        self.turning_points = turning_points(self.base_model.config)
        self.limit = positions(self.text_config)
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.prompt = PromptBuilder(tokenizer, template, closed=self.closes_prompt)
        # Without an encoder, actions continue the text of the prompt.
        actions = () if self.closes_prompt else EXAMPLE_ACTIONS
        check_composition(tokenizer, self.prompt.template, EXAMPLES, actions)
        self.register_load_state_dict_post_hook(_check_again)

    @property
    def base_model(self) -> nn.Module:
        """The ``transformers`` model itself, without the ``peft`` wrapper."""
        wrapped = hasattr(self.model, "get_base_model")
        return self.model.get_base_model() if wrapped else self.model

    def check_exactness(self) -> None:
        """Checks, as on construction, that the trunk computes what its model computes.

        ``load_state_dict`` calls it; call it after replacing weights in another way. Raises
        ValueError if it does not.
        """
        self.embedding_dim = check_exactness(self)

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
        config = self.text_config
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

    def _trie(self, actions: Tensor, mask: Tensor, **options: Any) -> CandidateTrie:
        """The tries of candidates ``[B, A, W]``, as the model reads them."""
        start, pad = self._start_id(), self.prompt.pad_id
        return build_trie(actions, mask, start, pad, packed=self.packed, **options)


def _check_again(trunk: ModelReader, keys: Any) -> None:
    trunk.check_exactness()


class Limit(NamedTuple):
    """Most tokens of a text, and what about the model sets it ("has 512 positions")."""

    tokens: int
    why: str


def text_config(base: nn.Module) -> PretrainedConfig:
    """The part of a model's configuration that is about the text it writes."""
    config = base.config
    if getattr(config, "is_encoder_decoder", False):
        decoder = getattr(config, "decoder", None)
        return config if decoder is None or isinstance(decoder, dict) else decoder
    return config.get_text_config()


def text_model(base: nn.Module) -> nn.Module:
    """The part of a decoder-only model that reads tokens, without the vocabulary head."""
    found = base.get_decoder()
    if found is base or found is base.get_output_embeddings():  # which some call their decoder
        return getattr(base, "model", base.base_model)
    return found


def check_kind(base: nn.Module) -> None:
    """Refuses models whose reading of a text depends on more than its own tokens."""
    config, name = text_config(base), base.__class__.__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - set(_ATTENTION)
    convolves = any(isinstance(module, nn.Conv1d) for module in text_model(base).modules())
    if kinds or getattr(base, "_is_stateful", False) or convolves:
        layers = f" ({', '.join(sorted(kinds))})" if kinds else ""
        raise ValueError(
            f"model ({name}) has state-space, recurrent, convolutional or other layers{layers} "
            "that read tokens in one line, so candidate actions cannot share a prompt: choose a "
            "model with attention layers only"
        )
    if hasattr(config, "moe_eval_capacity_token_fraction"):
        raise ValueError(
            f"model ({name}) has experts with room for a share of a batch's tokens, so the score "
            "of an action would hang on the other states of the batch: choose another model"
        )


def check_ids(base: nn.Module, tokens: Mapping[NestedKey, Tensor], error: IndexError) -> None:
    """Raises ValueError, caused by ``error``, if a token is not one of the model's."""
    size = base.get_input_embeddings().weight.shape[0]
    for key, ids in tokens.items():
        if ids.numel() and (ids.max() >= size or ids.min() < 0):
            worst = ids.max() if ids.max() >= size else ids.min()
            raise ValueError(
                f"{key!r} holds the token {int(worst)}, and the model has the tokens 0 to "
                f"{size - 1}: tokenise with the model's own tokenizer, or "
                "model.resize_token_embeddings for tokens that were added"
            ) from error


def check_positions(what: str, tokens: int, limit: Limit | None) -> None:
    """Raises ValueError if a text has more tokens than the model can read."""
    if limit is not None and tokens > limit.tokens:
        raise ValueError(
            f"{what} have {tokens} tokens, and the model {limit.why}: shorten goal, observation or "
            "actions, or choose a model with a longer context"
        )


def positions(config: PretrainedConfig) -> Limit | None:
    """Tokens of the longest text that a model can read at all, and in one way.

    Where a rotary embedding changes with the longest text of a batch (LongRoPE), texts must stay
    below that length: the score of one would hang on the others.
    """
    limits = []
    for name in ("max_position_embeddings", "max_seq_len"):
        tokens = getattr(config, name, None)
        if isinstance(tokens, int) and tokens > 0:  # XLNet says -1
            limits.append(Limit(tokens, f"has {tokens} positions"))
    for rope in _ropes(config):
        if rope.get("rope_type") == "longrope":
            own = getattr(config, "original_max_position_embeddings", None)
            tokens = rope.get("original_max_position_embeddings", own)
            if tokens is not None:
                why = f"reads batches with longer texts by another rotary embedding ({tokens})"
                limits.append(Limit(int(tokens), why))
    return min(limits, default=None)


def window(config: PretrainedConfig) -> Limit | None:
    """The window of layers that only their mask restricts, and that our mask would not."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention", "chunked_attention"]
    limits = []
    for name, kind in (
        ("sliding_window", "sliding_attention"),
        ("local_attention", "sliding_attention"),
        ("attention_chunk_size", "chunked_attention"),
    ):
        tokens = getattr(config, name, None)
        if tokens is not None and kind in kinds:
            why = f"has layers that see {tokens} tokens only ({name}), which a token trie is not"
            limits.append(Limit(tokens, why))
    return min(limits, default=None)


def turning_points(config: PretrainedConfig) -> list[int]:
    """Lengths from which some part of the model reads differently, the smallest first."""
    found, text = set(), config.get_text_config()
    for part in (config, text, getattr(config, "encoder", None), getattr(config, "decoder", None)):
        for name in _WINDOWS:
            value = getattr(part, name, None)
            for tokens in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0:
                    found.add(tokens)
    return sorted(found)


def _ropes(config: PretrainedConfig) -> list[dict]:
    """Settings of rotary embeddings: one for the model, or one for each kind of layer."""
    settings = getattr(config, "rope_parameters", None) or {}
    return [settings, *(value for value in settings.values() if isinstance(value, dict))]
