"""The trunk that fits a language model."""

from __future__ import annotations

import warnings

from torch import nn
from transformers import PreTrainedTokenizerBase

from torchrl_glam.envs.template import PromptTemplate
from torchrl_glam.models.decoder_only import DecoderOnlyTrunk
from torchrl_glam.models.encoder_decoder import EncoderDecoderTrunk
from torchrl_glam.models.exactness import InexactTrunkError
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
        A :class:`DecoderOnlyTrunk` or, for an encoder-decoder, the first of these that equals the
        model's own forward on a test: an :class:`EncoderDecoderTrunk` with tries (T5, Flan-T5,
        BART, Pegasus, ...), the same with packed candidates (UMT5), a :class:`RepeatedTrunk`.
        The last two are slower, and a warning says which one it is and why.

    Raises:
        ValueError: if the model is of neither family, or as the trunk raises it.

    Examples:
        >>> from torchrl_glam.models.loading import load_language_model
        >>> type(make_trunk(*load_language_model("tiny"))).__name__
        'EncoderDecoderTrunk'
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not getattr(base.config, "is_encoder_decoder", False):
        return DecoderOnlyTrunk(model, tokenizer, template, **kwargs)
    try:
        return EncoderDecoderTrunk(model, tokenizer, template, **kwargs)
    except InexactTrunkError as error:
        reason = str(error)
    try:
        trunk = EncoderDecoderTrunk(model, tokenizer, template, layout="packed", **kwargs)
        how = "its decoder reads candidates packed, one after another"
    except InexactTrunkError:
        trunk = RepeatedTrunk(model, tokenizer, template, **kwargs)
        how = "nor packed candidates; its decoder reads every candidate apart"
    warnings.warn(
        f"{base.__class__.__name__} takes no token trie: {how}, which is exact and slower "
        f"({reason})",
        stacklevel=2,
    )
    return trunk
