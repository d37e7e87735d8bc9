"""T5 read in bfloat16 on a CPU, where most of the time goes into moving numbers.

The same function of the same weights as the model's own forward, with less around the products:
queries, keys and values come from one product, those of all cross-attentions from another; the
scale of a norm is a factor of the weights after it; nothing is cast twice. It rounds where autocast
does, but for the scale of a norm. In float32, where products take most of the time, it gains
nothing.

Conventions: B states, T tokens of a prompt, N nodes of a trie, H heads of width K, D width of the
model. Hidden states between layers are float32 ``[B, T or N, D]``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration

LONGEST = 256  # tokens; attention holds the weights of all pairs


def can_read(model: nn.Module, prompt: Tensor) -> bool:
    """Whether :func:`read_t5` reads these prompts: faster in bfloat16, by T5's own layers only."""
    if prompt.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return False
    if prompt.shape[-1] > LONGEST:
        return False
    if model.config.model_type != "t5" or (model.training and model.config.dropout_rate):
        return False
    return all(_is_plain(module) for module in model.modules())


@cache
def _known() -> set[type[nn.Module]]:
    from transformers.models.t5 import modeling_t5 as t5  # takes a second, and not all need it

    attention = {t5.T5Attention, t5.T5LayerSelfAttention, t5.T5LayerCrossAttention}
    feed_forward = {t5.T5LayerFF, t5.T5DenseActDense, t5.T5DenseGatedActDense}
    around = {t5.T5ForConditionalGeneration, t5.T5Stack, t5.T5Block, t5.T5LayerNorm}
    return attention | feed_forward | around | {nn.Linear, nn.Embedding, nn.ModuleList}


def _is_plain(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    own = list(module.parameters(recurse=False))
    if any(parameter.dtype != torch.float32 for parameter in own):
        return False
    leaf = not own and next(module.children(), None) is None  # dropout and activations
    return leaf or type(module) in _known()


def read_t5(
    model: T5ForConditionalGeneration,
    prompt: Tensor,
    prompt_mask: Tensor,
    nodes: Tensor,
    node_bias: Tensor,
) -> Tensor:
    """Last hidden states at the nodes of tries, ``[B, N, D]``.

    ``prompt`` and ``prompt_mask`` are ``[B, T]``, ``nodes`` the tokens ``[B, N]``, ``node_bias``
    ``[B, H, N, N]`` what is added to attention between nodes.
    """
    casts = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if casts else torch.float32
    seen = torch.zeros(prompt_mask.shape).masked_fill_(~prompt_mask.bool(), torch.finfo().min)
    seen = seen[:, None, None]
    with torch.autocast("cpu", enabled=False):
        encoder, decoder = model.get_encoder(), model.get_decoder()
        bias = encoder.block[0].layer[0].SelfAttention.compute_bias(*prompt.shape[-1:] * 2) + seen
        hidden = encoder.embed_tokens(prompt)
        for block in encoder.block:
            hidden = _attend(block.layer[0], hidden, bias, dtype)
            hidden = _feed_forward(block.layer[1], hidden, dtype)

        crosses = [block.layer[1].EncDecAttention for block in decoder.block]
        weights = [projection.weight for cross in crosses for projection in (cross.k, cross.v)]
        read = _heads(_product(hidden, encoder.final_layer_norm, weights, dtype), crosses[0])
        hidden = decoder.embed_tokens(nodes)
        for block, key, value in zip(decoder.block, read[::2], read[1::2], strict=True):
            hidden = _attend(block.layer[0], hidden, node_bias, dtype)
            hidden = _cross_attend(block.layer[1], hidden, key, value, seen, dtype)
            hidden = _feed_forward(block.layer[2], hidden, dtype)
        norm = decoder.final_layer_norm
        return _Normalised.apply(hidden, norm.variance_epsilon, torch.float32) * norm.weight


class _Normalised(torch.autograd.Function):
    """``[..., D]`` over the root of its mean square, in ``dtype``: T5's norm before its scale."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        factor = norm.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()
        out = (hidden * factor).to(dtype)
        ctx.save_for_backward(out, factor)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        out, factor = ctx.saved_tensors
        along = (gradient * out).mean(-1, keepdim=True)
        return torch.addcmul(gradient, out, along, value=-1) * factor, None, None


def _product(hidden: Tensor, norm: nn.Module, weights: list[Tensor], dtype: torch.dtype) -> Tensor:
    """All projections ``[..., sum of their widths]`` of what a norm gives."""
    out = _Normalised.apply(hidden, norm.variance_epsilon, dtype)
    return linear(out, (torch.cat(weights) * norm.weight).to(dtype))


def _heads(projected: Tensor, attention: nn.Module) -> Tensor:
    """``[B, T, P * H * K]`` to ``[P, B * H, T, K]``, for P projections."""
    heads, width = attention.n_heads, attention.key_value_proj_dim
    split = projected.view(*projected.shape[:2], -1, heads, width).permute(2, 0, 3, 1, 4)
    return split.reshape(len(split), -1, projected.shape[1], width)


def _weighted(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention of ``[B * H, N, K]`` to ``[B * H, T, K]``: ``[B, N, H * K]``."""
    pairs = (query.shape[1], key.shape[1])
    scores = torch.bmm(query, key.transpose(1, 2)).view(len(bias), -1, *pairs)
    weights = (scores + bias).softmax(-1).to(value.dtype)
    out = torch.bmm(weights.view(-1, *pairs), value)
    return out.view(len(bias), -1, *query.shape[1:]).transpose(1, 2).flatten(2)


def _attend(layer: nn.Module, hidden: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    own = layer.SelfAttention
    weights = [own.q.weight, own.k.weight, own.v.weight]
    query, key, value = _heads(_product(hidden, layer.layer_norm, weights, dtype), own)
    return hidden + linear(_weighted(query, key, value, bias), own.o.weight.to(dtype))


def _cross_attend(
    layer: nn.Module, hidden: Tensor, key: Tensor, value: Tensor, seen: Tensor, dtype: torch.dtype
) -> Tensor:
    cross = layer.EncDecAttention
    (query,) = _heads(_product(hidden, layer.layer_norm, [cross.q.weight], dtype), cross)
    return hidden + linear(_weighted(query, key, value, seen), cross.o.weight.to(dtype))


def _feed_forward(layer: nn.Module, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    dense = layer.DenseReluDense
    gated = hasattr(dense, "wi_0")
    weights = [dense.wi_0.weight, dense.wi_1.weight] if gated else [dense.wi.weight]
    gate, *up = _product(hidden, layer.layer_norm, weights, dtype).chunk(len(weights), -1)
    inner = dense.act(gate) * up[0] if gated else dense.act(gate)
    return hidden + linear(inner, dense.wo.weight.to(dtype))
