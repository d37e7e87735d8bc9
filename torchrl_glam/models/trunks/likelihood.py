"""Equation 1: from hidden states to log-likelihoods of the candidates, with no unneeded logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from torchrl_glam.models.trunks.trie import CandidateTrie
from torchrl_glam.text import WordCounter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Normalisation = Literal["sum", "token_mean", "word_mean"]


class LogLikelihood(nn.Module):
    """Eq. 1 of SAC-GLAM (Gaven et al., 2024) on token tries.

    The vocabulary head reads a node once, however many candidates run through it, and only where a
    token is predicted.

    Args:
        tokenizer: the tokenizer of the language model.
        normalisation, score_eos: as in :class:`~torchrl_glam.models.CandidateTrunk`.
        pad_to_multiple_of: the vocabulary head reads a multiple of this many nodes, so that few
            shapes occur. Default: 1.

    Raises:
        ValueError: for an unknown ``normalisation``, or a tokenizer without the tokens needed.

    Examples:
        >>> from torchrl_glam.models import build_trie, load_tokenizer
        >>> tokens = torch.tensor([[[1, 2], [1, 0]]])
        >>> trie = build_trie(tokens, torch.ones(1, 2, dtype=torch.bool), start_id=0, pad_id=0)
        >>> certain = lambda hidden: torch.tensor([0.25, 0.25, 0.5]).log().expand(len(hidden), 3)
        >>> LogLikelihood(load_tokenizer("tiny"))(trie, torch.zeros(1, 3, 4), certain).exp()
        tensor([[0.1250, 0.2500]])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        normalisation: Normalisation = "sum",
        *,
        score_eos: bool = False,
        pad_to_multiple_of: int = 1,
    ) -> None:
        super().__init__()
        if normalisation not in get_args(Normalisation):
            raise ValueError(
                f"normalisation ({normalisation!r}) must be one of {get_args(Normalisation)}"
            )
        if score_eos and tokenizer.eos_token_id is None:
            raise ValueError(
                "score_eos (True) needs an end-of-sequence token, and tokenizer has none: set "
                "tokenizer.eos_token or score_eos=False"
            )
        self.normalisation = normalisation
        self.eos_id: int | None = tokenizer.eos_token_id if score_eos else None
        self.pad_to_multiple_of = pad_to_multiple_of
        self._count_words = WordCounter(tokenizer) if normalisation == "word_mean" else None

    def forward(
        self, trie: CandidateTrie, hidden: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Log-likelihoods of the candidates. On a GPU, the host waits once, to count nodes.

        Args:
            trie: of B states with A candidates.
            hidden: last hidden states at its nodes, ``[B, N, D]``.
            logits: the vocabulary head, ``[K, D]`` to ``[K, V]``.

        Returns:
            ``[B, A]`` float32, in nats; 0 for masked candidates.
        """
        node, target, scored = trie.predicted_at, trie.targets, trie.is_target
        if self.eos_id is not None:
            node = torch.cat([node, trie.end.unsqueeze(-1)], -1)
            target = torch.nn.functional.pad(target, (0, 1), value=self.eos_id)
            scored = torch.cat([scored, scored[..., :1]], -1)
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
        spare = -len(read) % self.pad_to_multiple_of
        values = logits(torch.nn.functional.pad(read, (0, 0, 0, spare)) if spare else read)
        chosen = values[row, target.flatten(1)].float() - log_sum_exp(values)[row]
        total = chosen.view_as(target).masked_fill(~scored, 0).sum(-1)
        return total if self.normalisation == "sum" else total / self._units(trie)

    def _units(self, trie: CandidateTrie) -> Tensor:
        """Tokens or words of each candidate, ``[B, A]``, at least 1."""
        if self._count_words is None:
            count = trie.is_target.sum(-1) + (self.eos_id is not None)
        else:
            count = self._count_words(trie.targets, trie.is_target)
        return count.clamp_min(1)


def log_sum_exp(logits: Tensor) -> Tensor:
    """``[K, V]`` to ``[K]``, in float32, by rows that the cache (or, on a GPU, memory) holds."""
    rows = 2 ** (19 if logits.device.type == "cpu" else 28) // logits.shape[-1]
    return torch.cat([part.float().logsumexp(-1) for part in logits.split(max(rows, 1))])
