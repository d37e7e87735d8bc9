"""The trunk that fits a language model."""

from __future__ import annotations

import warnings

from torch import nn
from transformers import PreTrainedTokenizerBase

from torchrl_glam.envs.template import PromptTemplate
from torchrl_glam.models.decoder_only import DecoderOnlyTrunk
from torchrl_glam.models.encoder_decoder import EncoderDecoderTrunk, is_t5_family
from torchrl_glam.models.repeated import RepeatedTrunk
from torchrl_glam.models.trunk import CandidateTrunk


def make_trunk(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate | None = None,
    **kwargs,
) -> CandidateTrunk:
    """Makes the fastest trunk that reads a language model exactly.

    Args:
        model: a ``transformers`` model with a language-model head, or the same wrapped by
            ``peft``.
        tokenizer: its tokenizer.
        template: the prompt. Default: :class:`~torchrl_glam.envs.PromptTemplate`.
        **kwargs: the other arguments of :class:`~torchrl_glam.models.trunk.CandidateTrunk`.

    Returns:
        An :class:`EncoderDecoderTrunk` for T5's family, a :class:`RepeatedTrunk` for other
        encoder-decoders (with a warning, as it is slower), else a :class:`DecoderOnlyTrunk`.

    Raises:
        ValueError: if the model is of neither family, or as the trunk raises it.

    Examples:
        >>> from torchrl_glam.models.loading import load_language_model
        >>> type(make_trunk(*load_language_model("tiny"))).__name__
        'EncoderDecoderTrunk'
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if is_t5_family(base):
        return EncoderDecoderTrunk(model, tokenizer, template, **kwargs)
    if getattr(base.config, "is_encoder_decoder", False):
        warnings.warn(
            f"{base.__class__.__name__} takes no token trie: its decoder reads every candidate "
            "apart, which is exact and slower; models of the T5 family and decoder-only models "
            "take one",
            stacklevel=2,
        )
        return RepeatedTrunk(model, tokenizer, template, **kwargs)
    return DecoderOnlyTrunk(model, tokenizer, template, **kwargs)
