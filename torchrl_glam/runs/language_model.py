"""The language model that a configuration names, and how it is read on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchrl_glam.models import load_language_model
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.device import choose_attention, choose_padding

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_agent_model(
    config: RecipeConfig, device: torch.device, autocast: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and its tokenizer, see :func:`~torchrl_glam.models.load_language_model`."""
    return load_language_model(
        config.language_model,
        lora=config.lora(),
        load_in_4bit=config.load_in_4bit,
        device=device,
        gradient_checkpointing=config.gradient_checkpointing,
        attention=choose_attention(device, autocast),
    )


def scoring(
    config: RecipeConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    autocast: torch.dtype | None,
) -> dict[str, Any]:
    """Keyword arguments of :func:`~torchrl_glam.models.make_trunk`."""
    return {
        "template": config.template(tokenizer),
        "normalisation": config.normalisation,
        "max_tokens_per_pass": config.max_tokens_per_pass,
        "autocast": autocast,
        "pad_to_multiple_of": choose_padding(device, autocast),
    }
