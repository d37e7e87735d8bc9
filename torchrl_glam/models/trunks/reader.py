"""Limits and windows of language models, which configurations tell under many names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tensordict import NestedKey
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Lengths from which some layers see only a part of the text before, or see it differently.
_WINDOWS = (
    *("sliding_window", "window_size", "attention_window", "attention_window_size"),
    *("attention_chunk_size", "local_attention", "local_radius", "block_size"),
)
# Those that a mask alone makes, with the layers that have them.
_MASKED = {
    "sliding_window": "sliding_attention",
    "local_attention": "sliding_attention",
    "attention_chunk_size": "chunked_attention",
}


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
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", *_MASKED.values()}
    convolves = any(isinstance(module, nn.Conv1d) for module in text_model(base).modules())
    if kinds or getattr(base, "_is_stateful", False) or convolves:
        layers = f" ({', '.join(sorted(kinds))})" if kinds else ""
        raise ValueError(
            f"model ({name}) has state-space, recurrent, convolutional or other layers{layers} "
            "that read tokens in one line, so candidate actions cannot share a prompt: choose a "
            "model with attention layers only"
        )
    if hasattr(config, "expert_capacity"):
        raise ValueError(
            f"model ({name}) has experts with room for some of the tokens, so the score of an "
            "action would hang on other actions and states: choose another model"
        )


def check_ids(base: nn.Module, tokens: Mapping[NestedKey, Tensor], error: IndexError) -> None:
    """Raises ValueError, caused by ``error``, if a token is not one of the model's."""
    size = base.get_input_embeddings().weight.shape[0]
    for key, ids in tokens.items():
        foreign = ids[(ids < 0) | (ids >= size)]
        if len(foreign):
            raise ValueError(
                f"{key!r} holds the token {int(foreign[0])}, and the model has the tokens 0 to "
                f"{size - 1}: tokenise with the model's own tokenizer, or "
                "model.resize_token_embeddings for tokens that were added"
            ) from error


def check_positions(what: str, tokens: int, limit: Limit) -> None:
    """Raises ValueError if a text has more tokens than the model can read."""
    if tokens > limit.tokens:
        raise ValueError(
            f"{what} have {tokens} tokens, and the model {limit.why}: shorten goal, observation or "
            "actions, or choose a model with a longer context"
        )


def longest_text(config: PretrainedConfig) -> Limit:
    """Tokens of the longest text that a model can read at all, and in one way.

    Where a rotary embedding changes with the longest text of a batch (LongRoPE), texts must stay
    below that length: the score of one would hang on the others.
    """
    limits = [Limit(sys.maxsize, "reads texts of any length")]
    for name in ("max_position_embeddings", "max_seq_len"):
        tokens = getattr(config, name, None)
        if isinstance(tokens, int) and tokens > 0:  # XLNet says -1
            limits.append(Limit(tokens, f"has {tokens} positions"))
    ropes = getattr(config, "rope_parameters", None) or {}  # some have one for each kind of layer
    for rope in (ropes, *(value for value in ropes.values() if isinstance(value, dict))):
        if rope.get("rope_type") == "longrope":
            own = getattr(config, "original_max_position_embeddings", None)
            tokens = rope.get("original_max_position_embeddings", own)
            if tokens is not None:
                why = f"reads batches with longer texts by another rotary embedding ({tokens})"
                limits.append(Limit(int(tokens), why))
    return min(limits)


def windows(config: PretrainedConfig) -> dict[str, Limit]:
    """How many tokens each kind of layer with a window sees; only the mask makes these windows."""
    kinds, found = getattr(config, "layer_types", None) or [*_MASKED.values()], {}
    for name, kind in _MASKED.items():
        tokens = getattr(config, name, None)
        if tokens is not None and kind in kinds:
            found[kind] = Limit(tokens, f"has layers that see {tokens} tokens only ({name})")
    return found


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
