"""A language model without its weights: tensors of the right shapes and types that hold nothing.

They are torch's fake tensors, so that a pass through them takes no memory, and tells how much it
would take.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from torchrl_glam.models._gradient_checkpointing import checkpoint_layers
from torchrl_glam.models.loading import choose_kind
from torchrl_glam.models.trunk import CandidateTrunk

# NF4 with double quantisation: half a byte a weight, a byte for each 64 of them, and four for each
# 256 of those; tables of each matrix come on top.
_BLOCK, _OUTER_BLOCK, _TABLES = 64, 256, 1_200


def load_skeleton(
    name: str | Path,
    mode: FakeTensorMode,
    *,
    lora: LoraConfig | None = None,
    load_in_4bit: bool = False,
    dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype = torch.bfloat16,
    attention: str | None = None,
    gradient_checkpointing: bool = False,
) -> nn.Module:
    """What :func:`load_language_model` would give, by the model's configuration alone.

    Args:
        name: as there, but no folder of adapters.
        mode: the mode that its tensors belong to.
        lora, load_in_4bit, dtype, compute_dtype, attention, gradient_checkpointing: as there.

    Raises:
        FileNotFoundError, ValueError: as there.
    """
    kind, config = choose_kind(name)
    with torch.device("meta"):
        model = kind.from_config(config, dtype=dtype, attn_implementation=attention).eval()
        if load_in_4bit:
            _quantise(model, compute_dtype)
        if gradient_checkpointing:
            checkpoint_layers(model)
        model = model if lora is None else get_peft_model(model, lora).eval()
    # On the meta device, attention takes other ways than on those that compute.
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for values in (module._parameters, module._buffers):
            for key, value in values.items():
                if value is not None and value not in made:
                    made[value] = _fake(value, mode)
                values[key] = None if value is None else made[value]
    return model


def _fake(value: Tensor, mode: FakeTensorMode) -> Tensor:
    with mode:
        empty = torch.empty(value.shape, dtype=value.dtype)
    return nn.Parameter(empty, value.requires_grad) if isinstance(value, nn.Parameter) else empty


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights and adapters, each once, constants of quantisation included."""
    quantised = [m for m in model.modules() if isinstance(m, _FourBitLinear)]
    constants = sum(m.constants for m in quantised)
    return sum(p.nbytes for p in model.parameters()) + constants


def unchecked(kind: type[CandidateTrunk]) -> type[CandidateTrunk]:
    """A trunk class for models without weights, which nothing can be compared with."""

    def check_exactness(self) -> None:
        self.embedding_dim = self._text_config.hidden_size

    return type(kind.__name__, (kind,), {"check_exactness": check_exactness})


def _quantise(model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
    """Replaces what would be held in 4 bits; the rest is held in float32 then, and frozen."""
    kept = {model.get_output_embeddings()}
    names = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for path, module in list(model.named_modules()):
        parent, _, leaf = path.rpartition(".")
        if type(module) is not nn.Linear or module in kept or names & set(path.split(".")):
            continue
        setattr(model.get_submodule(parent), leaf, _FourBitLinear(module, compute_dtype))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()


class _FourBitLinear(nn.Linear):
    """Takes the memory that a matrix in 4 bits takes: in full only while it is multiplied."""

    def __init__(self, full: nn.Linear, compute_dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = full.in_features, full.out_features
        number = full.weight.numel()
        packed = torch.empty(-(-number // 2), 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = full.bias
        self.compute_dtype = compute_dtype
        blocks = -(-number // _BLOCK)
        self.constants = blocks + 4 * -(-blocks // _OUTER_BLOCK) + _TABLES

    def forward(self, inputs: Tensor) -> Tensor:
        shape = (self.out_features, self.in_features)
        out = _FourBitProduct.apply(inputs.to(self.compute_dtype), shape)
        out = out if self.bias is None else out + self.bias
        return out.to(inputs.dtype)


class _FourBitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.shape = shape
        return inputs @ inputs.new_empty(shape).T

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ gradient.new_empty(ctx.shape), None
