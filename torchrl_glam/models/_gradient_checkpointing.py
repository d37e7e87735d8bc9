"""Activations that are computed again instead of kept, for models in eval mode too."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_layers(model: nn.Module) -> None:
    """Makes every layer of a ``transformers`` model compute its activations again when needed.

    ``model.gradient_checkpointing_enable()`` does so in train mode only, which turns dropout on.
    Here the mode makes no difference, and passes without gradient are left alone.

    Args:
        model: a model, changed in place.

    Raises:
        ValueError: if none of its layers can be checkpointed.

    Examples:
        >>> from torchrl_glam.models.loading import load_language_model
        >>> model, _ = load_language_model("tiny")
        >>> checkpoint_layers(model)
        >>> model.encoder.block[0].training
        False
    """
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ValueError(
            f"gradient_checkpointing (True) is not possible for {type(model).__name__}: "
            "transformers marks none of its layers as one that may be computed again; set it False"
        )
    for layer in layers:
        # Its class, not its attribute `forward`: a copy of the model must not call the original.
        layer.__class__ = _checkpointed(type(layer))


def is_checkpointed(model: nn.Module) -> bool:
    """Whether any layer of a model computes its activations again, by whatever means."""
    return any(
        getattr(module, "gradient_checkpointing", False) or hasattr(type(module), "_recomputes")
        for module in model.modules()
    )


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self, *args, **kwargs):
        run = partial(kind.forward, self, **kwargs)
        if not torch.is_grad_enabled():
            return run(*args)
        return checkpoint(run, *args, use_reentrant=False)

    own = {"forward": forward, "__module__": kind.__module__, "_recomputes": True}
    return type(kind.__name__, (kind,), own)
