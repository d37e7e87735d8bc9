"""Gradients: a check that all of them arrive, and activations computed again instead of kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchrl_glam.models.trunks.exactness import probe, without_dropout

if TYPE_CHECKING:
    from torchrl_glam.models.trunks.encoded_actions import EncodedActionsTrunk
    from torchrl_glam.models.trunks.trunk import CandidateTrunk


def check_gradients(trunk: CandidateTrunk | EncodedActionsTrunk) -> None:
    """Back-propagates through a small pass and checks that each trainable weight gets a gradient.

    The gradient through each shape of 4-bit weights is compared with the one through the full
    weight, since their kernels depend on the machine. Gradients and generators are left alone.

    Args:
        trunk: a trunk, as it will be trained.

    Raises:
        ValueError: if nothing is to be trained, if trainable weights get no gradient, or if 4-bit
            weights pass on a wrong one. Unused experts of a mixture may get none.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> check_gradients(make_trunk(*load_language_model("tiny")))
    """
    trunk = getattr(trunk, "trunk", trunk)
    leaves = {n: p for n, p in trunk.model.named_parameters() if p.requires_grad}
    if not leaves:
        raise ValueError(
            f"model ({type(trunk.base_model).__name__}) has no weights to train: load it with "
            "lora=, or set requires_grad on those that are"
        )
    gradients = _gradients(trunk, list(leaves.values()))
    # B of an adapter starts at 0, so that A's gradient is 0 and B's is not.
    missed = [
        name
        for name, gradient in zip(leaves, gradients, strict=True)
        if "expert" not in name and (gradient is None or "lora_B" in name and not gradient.any())
    ]
    if missed:
        first = ", ".join(missed[:5]) + (", ..." if len(missed) > 5 else "")
        raise ValueError(
            f"{len(missed)} of {len(leaves)} trainable weights get no gradient ({first}): they "
            "would stay as they are; choose other target_modules in the LoraConfig, or freeze them"
        )
    _check_quantised(trunk.base_model)


def _gradients(trunk: CandidateTrunk, leaves: list[nn.Parameter]) -> Sequence[Tensor | None]:
    """Gradients of a small pass that follows one without gradient."""
    inputs = probe(trunk)
    with without_dropout(trunk.model):
        with torch.no_grad():
            trunk._read(*inputs)
        with torch.enable_grad():
            hidden = trunk._read(*inputs)
            # Not their sum, which normalisation holds constant.
            value = trunk._logits(hidden[:, 1]).float().log_softmax(-1)[:, ::2].sum()
    if not value.requires_grad:
        return [None] * len(leaves)
    return torch.autograd.grad(value, leaves, allow_unused=True)


def _check_quantised(base: nn.Module) -> None:
    """Compares the gradient through each shape of 4-bit weights with that through full ones."""
    seen = set()
    for name, module in base.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        state = getattr(weight, "quant_state", None)
        if state is None or state.shape in seen:
            continue
        seen.add(state.shape)
        # Here, because importing it writes a message about kernels, whoever needs 4-bit or not.
        from bitsandbytes.functional import dequantize_4bit

        weight = dequantize_4bit(weight.data, state).float()
        dtype = getattr(module, "compute_dtype", None) or torch.float32
        pattern = torch.arange(2 * weight.shape[1], device=weight.device, dtype=torch.float32)
        inputs = pattern.view(2, -1).sin().to(dtype).requires_grad_()
        expected = torch.ones(2, len(weight), device=weight.device) @ weight
        with torch.enable_grad():
            output = module(inputs)
            found = torch.zeros_like(inputs)
            if output.requires_grad:
                (found,) = torch.autograd.grad(output.float().sum(), inputs)
        if not (found.float() - expected).norm() <= 0.05 * expected.norm():
            raise ValueError(
                f"4-bit weights ({name}) pass on no right gradient, as where bitsandbytes repacks "
                "them for inference: train with load_in_4bit=False, or another bitsandbytes"
            )


def checkpoint_layers(model: nn.Module) -> None:
    """Makes every layer of a ``transformers`` model compute its activations again when needed.

    ``model.gradient_checkpointing_enable()`` does so in train mode only, which turns dropout on.
    Raises ValueError if none of its layers can be checkpointed.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"gradient_checkpointing (True) is not possible for {type(model).__name__}: "
            "transformers marks none of its layers as one that may be computed again; set it False"
        )
    for layer in layers:
        # Its class, not its attribute `forward`: a copy of the model must not call the original.
        layer.__class__ = _checkpointed(type(layer))


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self, *args, **kwargs):
        run = partial(kind.forward, self, **kwargs)
        again = torch.is_grad_enabled()
        return checkpoint(run, *args, use_reentrant=False) if again else run(*args)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
