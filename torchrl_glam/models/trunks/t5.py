"""T5 read with less around the products than in the model's own forward.

The same function of the same weights, for two cases in which products are not what takes the time:

- In bfloat16 on a CPU it is moving numbers. Queries, keys and values come from one product, those
  of all cross-attentions from another; the scale of a norm is a factor of the weights after it;
  nothing is cast twice, and the weights of attention not at all: the product that makes them adds
  the biases, in rows as wide as a softmax of bfloat16 wants them. Prompts of like length are read
  together. It rounds where autocast does, but for these weights and the scale of a norm.
- On a GPU it is starting kernels. A norm is one kernel, and so is an activation; biases and masks
  are added once and not in each layer; what several projections read is cast once. Projections are
  called as modules, so they may have adapters or 4-bit weights.

Conventions: B states, T tokens of a prompt, N nodes of a trie, H heads of width K, D width of the
model. Hidden states between layers are float32 ``[B, T or N, D]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, rms_norm, scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration

LONGEST = 512  # tokens; attention holds the weights of all pairs
ROW = 32  # numbers that a softmax of bfloat16 reads at a time on a CPU, and the rest one by one
MASKED = torch.finfo().min


def can_read(model: nn.Module, prompt: Tensor) -> bool:
    """Whether :func:`read_t5` reads these prompts: where it is faster, by T5's own layers only."""
    if model.config.model_type != "t5" or (model.training and model.config.dropout_rate):
        return False
    if prompt.is_cuda:
        blocks = [b for s in (model.get_encoder(), model.get_decoder()) for b in s.block]
        parts = [part for block in blocks for part in (block, *block.layer)]
        plain = all(type(part) in _known() and not _has_hooks(part) for part in parts)
        return plain and model.dtype != torch.float16  # whose infinities T5 clamps
    if prompt.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return False
    return prompt.shape[-1] <= LONGEST and all(_is_plain(module) for module in model.modules())


@cache
def _known() -> set[type[nn.Module]]:
    from transformers.models.t5 import modeling_t5 as t5  # takes a second, and not all need it

    attention = {t5.T5Attention, t5.T5LayerSelfAttention, t5.T5LayerCrossAttention}
    feed_forward = {t5.T5LayerFF, t5.T5DenseActDense, t5.T5DenseGatedActDense}
    around = {t5.T5ForConditionalGeneration, t5.T5Stack, t5.T5Block, t5.T5LayerNorm}
    return attention | feed_forward | around | {nn.Linear, nn.Embedding, nn.ModuleList}


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _is_plain(module: nn.Module) -> bool:
    if _has_hooks(module):
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
    kind = prompt.device.type
    casts = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if casts else model.dtype
    seen = prompt_mask.new_zeros(prompt_mask.shape, dtype=torch.float32)
    seen = seen.masked_fill_(~prompt_mask.bool(), MASKED)[:, None, None]
    if not prompt.is_cuda:
        seen, node_bias = (pad(x, (0, -x.shape[-1] % ROW), value=MASKED) for x in (seen, node_bias))
    with torch.autocast("cpu", enabled=False):
        encoder, decoder = model.get_encoder(), model.get_decoder()
        own = encoder.block[0].layer[0].SelfAttention
        bias = own.compute_bias(prompt.shape[-1], seen.shape[-1])
        # In the order of dimensions without which attention on a GPU falls back to many kernels.
        bias, seen, node_bias = (x.to(dtype).contiguous() for x in (bias, seen, node_bias))
        hidden = _read_prompts(encoder, prompt, prompt_mask, bias, seen, dtype)

        crosses = [block.layer[1].EncDecAttention for block in decoder.block]
        modules = [projection for cross in crosses for projection in (cross.k, cross.v)]
        read = _products(hidden, encoder.final_layer_norm, modules, dtype)
        read = _heads(read, crosses[0])
        hidden = decoder.embed_tokens(nodes)
        for block, key, value in zip(decoder.block, read[::2], read[1::2], strict=True):
            hidden = _attend(block.layer[0], hidden, node_bias, dtype)
            hidden = _cross_attend(block.layer[1], hidden, key, value, seen, dtype)
            hidden = _feed_forward(block.layer[2], hidden, dtype)
        norm = decoder.final_layer_norm
        if hidden.is_cuda:
            return norm(hidden)
        return _Normalised.apply(hidden, norm.variance_epsilon, torch.float32) * norm.weight


def _read_prompts(
    encoder: nn.Module, prompt: Tensor, mask: Tensor, bias: Tensor, seen: Tensor, dtype: torch.dtype
) -> Tensor:
    """The encoder's hidden states ``[B, T, D]`` of prompts that are padded on the right.

    On a CPU those that fill the same number of :data:`ROW` are a group, read up to its longest.
    """
    width = prompt.shape[1]
    if prompt.is_cuda or width <= ROW:
        return _encode(encoder, encoder.embed_tokens(prompt), bias + seen, dtype)
    lengths, order = mask.sum(-1).clamp(min=1).sort()
    ends = (lengths.sub(1) // ROW).diff().nonzero().flatten() + 1
    in_order = (encoder.embed_tokens(prompt[order]), seen[order], lengths)
    groups = zip(*(x.tensor_split(ends) for x in in_order), strict=True)
    parts = []
    for hidden, hides, tokens in groups:
        length = int(tokens[-1])
        room = length + -length % ROW
        part = bias[..., :length, :room] + hides[..., :room]
        hidden = _encode(encoder, hidden[:, :length], part, dtype)
        parts.append(pad(hidden, (0, 0, 0, width - length)))
    return torch.cat(parts)[order.argsort()]


def _encode(encoder: nn.Module, hidden: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    for block in encoder.block:
        hidden = _attend(block.layer[0], hidden, bias, dtype)
        hidden = _feed_forward(block.layer[1], hidden, dtype)
    return hidden


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


def _products(
    hidden: Tensor, norm: nn.Module, modules: list[nn.Module], dtype: torch.dtype
) -> list[Tensor] | Tensor:
    """What each of P projections makes of what a norm gives: on a CPU one ``[B, T, P * W]``."""
    if hidden.is_cuda:
        scale = norm.weight
        same = hidden.dtype == scale.dtype
        out = rms_norm(hidden, scale.shape, scale, norm.variance_epsilon) if same else norm(hidden)
        out = out.to(dtype)
        return [module(out) for module in modules]
    out = _Normalised.apply(hidden, norm.variance_epsilon, dtype)
    weights = torch.cat([module.weight for module in modules])
    return linear(out, (weights * norm.weight).to(dtype))


def _product(module: nn.Module, inner: Tensor, dtype: torch.dtype) -> Tensor:
    return module(inner) if inner.is_cuda else linear(inner, module.weight.to(dtype))


def _heads(products: list[Tensor] | Tensor, attention: nn.Module) -> Sequence[Tensor]:
    """P times ``[B, H, T, K]`` on a GPU, ``[P, B * H, T, K]`` on a CPU, of :func:`_products`."""
    heads, width = attention.n_heads, attention.key_value_proj_dim
    if isinstance(products, list):
        return [x.unflatten(-1, (heads, width)).transpose(1, 2) for x in products]
    split = products.view(*products.shape[:2], -1, heads, width).permute(2, 0, 3, 1, 4)
    return split.reshape(len(split), -1, products.shape[1], width)


def _weighted(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention of queries to keys, as :func:`_heads` gives them: ``[B, N, H * K]``."""
    if query.is_cuda:
        out = scaled_dot_product_attention(query, key, value, bias, scale=1.0)
        return out.transpose(1, 2).flatten(2)
    batch, room = len(bias), bias.shape[-1] - key.shape[1]
    key, value = (pad(x, (0, 0, 0, room)) for x in (key, value))
    bias = bias.expand(batch, len(query) // batch, query.shape[1], -1).flatten(0, 1)
    weights = torch.baddbmm(bias, query, key.transpose(1, 2)).softmax(-1)
    out = torch.bmm(weights, value).view(batch, -1, *query.shape[1:])
    return out.transpose(1, 2).flatten(2)


def _attend(layer: nn.Module, hidden: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    own = layer.SelfAttention
    heads = _heads(_products(hidden, layer.layer_norm, [own.q, own.k, own.v], dtype), own)
    return hidden + _product(own.o, _weighted(*heads, bias), dtype)


def _cross_attend(
    layer: nn.Module, hidden: Tensor, key: Tensor, value: Tensor, seen: Tensor, dtype: torch.dtype
) -> Tensor:
    cross = layer.EncDecAttention
    (query,) = _heads(_products(hidden, layer.layer_norm, [cross.q], dtype), cross)
    return hidden + _product(cross.o, _weighted(query, key, value, seen), dtype)


def _feed_forward(layer: nn.Module, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    dense = layer.DenseReluDense
    modules = [dense.wi_0, dense.wi_1] if hasattr(dense, "wi_0") else [dense.wi]
    products = _products(hidden, layer.layer_norm, modules, dtype)
    gate, *up = products if hidden.is_cuda else products.chunk(len(modules), -1)
    is_new = type(dense.act).__name__ == "NewGELUActivation"  # eight operations
    inner = gelu(gate, approximate="tanh") if is_new else dense.act(gate)
    return hidden + _product(dense.wo, inner * up[0] if up else inner, dtype)
