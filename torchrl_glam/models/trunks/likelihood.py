"""Equation 1: from hidden states to log-likelihoods of the candidates, with no unneeded logits."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrl_glam.models.trunks.trie import CandidateTrie

Normalisation = Literal["sum", "token_mean"]


def log_likelihoods(
    trie: CandidateTrie,
    hidden: Tensor,
    logits: Callable[[Tensor], Tensor],
    normalisation: Normalisation = "sum",
    pad_to_multiple_of: int = 1,
) -> Tensor:
    """Eq. 1 of SAC-GLAM (Gaven et al., 2024) on token tries: ``[B, A]``, float32, in nats.

    The vocabulary head reads a node once, however many candidates run through it, and only where a
    token is predicted. Masked candidates get 0. On a GPU, the host waits once, to count nodes.

    ``hidden`` ``[B, N, D]`` are the states at the nodes, ``logits`` is the vocabulary head,
    ``[K, D]`` to ``[K, V]``, and ``pad_to_multiple_of`` rounds K up.
    """
    node, target, scored = trie.predicted_at, trie.targets, trie.is_target
    # One place more, for what is not scored.
    slot = torch.where(scored, node, hidden.shape[1]).flatten(1)
    predicts = slot.new_zeros(len(slot), hidden.shape[1] + 1, dtype=torch.bool)
    predicts.scatter_(1, slot, True)[:, -1] = False
    row = (predicts.flatten().cumsum(0).view_as(predicts) - 1).gather(1, slot).clamp_min(0)
    # Not by the mask itself, which the backward pass would turn into indices again.
    at = predicts[:, :-1].flatten().nonzero().squeeze(-1)
    read = hidden.flatten(0, 1).index_select(0, at)
    if not len(read):
        return hidden.new_zeros(trie.end.shape, dtype=torch.float32)
    spare = -len(read) % pad_to_multiple_of
    values = logits(pad(read, (0, 0, 0, spare)) if spare else read)
    # Before the sums: the backward pass then frees what these kept before it fills a gradient.
    chosen = values[row, target.flatten(1)].float()
    # By rows that the cache (or, on a GPU, memory) holds.
    most = max(2 ** (19 if values.device.type == "cpu" else 28) // values.shape[-1], 1)
    log_sums = torch.cat([part.float().logsumexp(-1) for part in values.split(most)])
    total = (chosen - log_sums[row]).view_as(target).masked_fill(~scored, 0).sum(-1)
    return total if normalisation == "sum" else total / scored.sum(-1).clamp_min(1)
