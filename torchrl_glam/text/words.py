"""How many words a row of tokens spells, counted on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How byte-level and SentencePiece vocabularies write white space.
_SPACES = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n", "ĉ": "\t"})
_PROBE = " Go to the red lion"


class WordCounter(nn.Module):
    """Counts the words, separated by white space, that token rows spell.

    A word begins at a character that follows white space or nothing. Where that is inside one
    token is looked up in a table over the vocabulary; where it is between two tokens depends on
    both, so pieces of a cut word count once, and a token of several words counts them all.

    Args:
        tokenizer: a tokenizer whose vocabulary marks white space, as SentencePiece and byte-level
            ones do.

    Raises:
        ValueError: if the table miscounts the words of a probe.

    Examples:
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> rows = tokenizer([" Go to red lion"], add_special_tokens=False, return_tensors="pt")
        >>> count = WordCounter(tokenizer)
        >>> count(rows.input_ids, torch.ones_like(rows.input_ids, dtype=torch.bool))
        tensor([4])
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        texts = [(piece or "").translate(_SPACES) for piece in pieces]
        inside = [
            sum(a.isspace() and not b.isspace() for a, b in zip(text, text[1:], strict=False))
            for text in texts
        ]
        self.register_buffer("_inside", torch.tensor(inside), persistent=False)
        opens = torch.tensor([not text[:1].isspace() and text != "" for text in texts])
        closes = torch.tensor([text[-1:].isspace() for text in texts])
        self.register_buffer("_opens", opens, persistent=False)
        self.register_buffer("_closes", closes, persistent=False)
        ids = torch.tensor(tokenizer(_PROBE, add_special_tokens=False).input_ids)
        counted = int(self(ids, torch.ones_like(ids, dtype=torch.bool)))
        if counted != len(_PROBE.split()):
            raise ValueError(
                f"tokenizer ({tokenizer.__class__.__name__}) does not mark white space in its "
                f"vocabulary ({_PROBE!r} counts as {counted} words): words cannot be counted from "
                "its tokens; use normalisation='token_mean' or 'sum'"
            )

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Words of each row.

        Args:
            tokens: ``[*B, W]`` integers, padded on the right.
            mask: ``[*B, W]`` bool, True at tokens.

        Returns:
            ``[*B]`` int64.
        """
        tokens = tokens.long()
        after_space = torch.ones_like(mask)
        after_space[..., 1:] = self._closes[tokens[..., :-1]]
        begins = self._opens[tokens] & after_space
        return ((self._inside[tokens] + begins) * mask).sum(-1)
