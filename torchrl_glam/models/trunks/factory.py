"""The trunk that fits a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from torchrl_glam.models.trunks.decoder_only import DecoderOnlyTrunk
from torchrl_glam.models.trunks.encoder_decoder import EncoderDecoderTrunk
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
    """Makes the trunk that reads a language model; ``likelihood.py`` here has its equation 1.

    Args:
        model: a ``transformers`` model with a language-model head, maybe wrapped by ``peft``.
        tokenizer: its tokenizer.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        **options: those of :class:`~torchrl_glam.models.CandidateTrunk`.

    Returns:
        A :class:`DecoderOnlyTrunk` (GPT-2, Llama, Qwen, ...) or an :class:`EncoderDecoderTrunk`
        (T5, Flan-T5, BART, Pegasus, ...), by the model's configuration.

    Raises:
        ValueError: as the trunk raises it, such as for a model that does not equal its own forward
            when it reads a token trie (Bloom, MPT, UMT5).

    Examples:
        >>> from torchrl_glam.models.loading import load_language_model
        >>> type(make_trunk(*load_language_model("tiny"))).__name__
        'EncoderDecoderTrunk'
    """
    encodes = getattr(model.config, "is_encoder_decoder", False)
    kind = EncoderDecoderTrunk if encodes else DecoderOnlyTrunk
    return kind(model, tokenizer, template, **options)
