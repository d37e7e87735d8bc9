"""The trunk that fits a language model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import nn

from torchrl_glam.models.trunks.decoder_only import DecoderOnlyTrunk, RepeatedDecoderOnlyTrunk
from torchrl_glam.models.trunks.encoder_decoder import EncoderDecoderTrunk, RepeatedTrunk
from torchrl_glam.models.trunks.exactness import InexactTrunkError
from torchrl_glam.models.trunks.trunk import CandidateTrunk
from torchrl_glam.text import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_trunk(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate | None = None,
    **options: Any,
) -> CandidateTrunk:
    """Makes the fastest trunk that reads a language model exactly.

    Args:
        model: a ``transformers`` model with a language-model head, or the same wrapped by
            ``peft``.
        tokenizer: its tokenizer.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        **options: those of :class:`~torchrl_glam.models.CandidateTrunk`.

    Returns:
        The first of these that equals the model's own forward on a test. For a decoder-only model,
        a :class:`DecoderOnlyTrunk` (GPT-2, Llama, Qwen, ...) or a
        :class:`RepeatedDecoderOnlyTrunk` (MPT, Bloom, GPT-Neo); for an encoder-decoder, an
        :class:`EncoderDecoderTrunk` (T5, Flan-T5, BART, Pegasus, ...) or a :class:`RepeatedTrunk`
        (UMT5, Switch Transformers). The second is slower, and a warning says why it is taken.

    Raises:
        ValueError: if the model is of neither family or read exactly by no trunk, or as the trunk
            raises it.

    Examples:
        >>> from torchrl_glam.models.loading import load_language_model
        >>> type(make_trunk(*load_language_model("tiny"))).__name__
        'EncoderDecoderTrunk'
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    ways = [DecoderOnlyTrunk, RepeatedDecoderOnlyTrunk]
    if getattr(base.config, "is_encoder_decoder", False):
        ways = [EncoderDecoderTrunk, RepeatedTrunk]
    reasons = []
    for kind in ways:
        try:
            trunk = kind(model, tokenizer, template, **options)
        except InexactTrunkError as error:
            reasons.append(str(error))
            continue
        if reasons:
            warnings.warn(
                f"{base.__class__.__name__} takes no token trie: every candidate is read apart, "
                f"which is exact and slower ({reasons[0]})",
                stacklevel=2,
            )
        return trunk
    raise InexactTrunkError(
        f"model ({base.__class__.__name__}) is read exactly by no trunk, so it cannot be used: "
        + "; ".join(dict.fromkeys(reasons))
    )
