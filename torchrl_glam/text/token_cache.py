"""Tokens of texts, each tokenised once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchrl_glam.text.encoding import End, bytes_of, cut_text, decode_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SIZE = 100_000  # texts kept
_LEAD = b"\0"  # stands for the lead alone: no text contains a zero


class TokenCache:
    """Remembers the tokens of texts, in the rows of one table.

    ``lead`` stands in front of every text, ``length`` tokens of one (T) are kept, ``name`` is for
    errors, and ``keep`` that of :class:`~torchrl_glam.text.TokenizeText`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        lead: str,
        name: str,
        length: int,
        dtype: torch.dtype,
        keep: End | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"{name}_length ({length}) must be at least 1")
        self._tokenizer, self._lead, self.name, self.length = tokenizer, lead, name, length
        self._keep, self.num_cut = keep, 0
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._clear()

    def _clear(self) -> None:
        self._rows = {b"": 0, _LEAD: 1}
        self._table = self._tokenize(["", self._lead])

    def tokens_of(self, text: Tensor, *, always_lead: bool = False) -> Tensor:
        """Tokens of a text tensor ``[*B, bytes]``, right-padded, ``[*B, T]``.

        With ``always_lead`` an empty text, as part of a prompt, has the tokens of the lead; else it
        is an empty slot, without tokens.
        """
        texts = bytes_of(text, self.name)
        try:
            rows = [self._rows[text] for text in texts]
        except KeyError:
            self._remember(texts)
            rows = [self._rows[text] for text in texts]
        if always_lead and 0 in rows:
            rows = [row or 1 for row in rows]
        tokens = torch.from_numpy(self._table[rows])
        return tokens.view(*text.shape[:-1], self.length).to(text.device)

    def _remember(self, texts: Sequence[bytes]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if len(self._rows) + len(missing) > _SIZE:
            self._clear()
            missing = [text for text in dict.fromkeys(texts) if text]
        tokens = self.tokenize([decode_bytes(text, self.name) for text in missing])
        first, end = len(self._rows), len(self._rows) + len(missing)
        if end > len(self._table):  # doubling, so that growing costs little
            spare = np.empty((2 * end - len(self._table), self.length), self._dtype)
            self._table = np.concatenate([self._table, spare])
        self._table[first:end] = tokens
        self._rows.update(zip(missing, range(first, end), strict=True))

    def tokenize(self, texts: Sequence[str]) -> np.ndarray:
        """Tokens of strings, right-padded, ``[len(texts), T]``; none for the empty string."""
        return self._tokenize([self._lead + text if text else "" for text in texts])

    def _tokenize(self, texts: Sequence[str]) -> np.ndarray:
        rows = np.full((len(texts), self.length), self._tokenizer.pad_token_id, self._dtype)
        encoded = self._tokenizer(list(texts), add_special_tokens=False).input_ids
        for row, text, ids in zip(rows, texts, encoded, strict=True):
            if len(ids) > self.length:
                ids = self._cut(text.removeprefix(self._lead), len(ids))
            if self._tokenizer.pad_token_id in ids:
                raise ValueError(
                    f"{self.name} ({text!r}) spells {self._tokenizer.pad_token!r}, the tokenizer's "
                    "padding, which is not read: let the environment write it in another way"
                )
            row[: len(ids)] = ids
        return rows

    def _cut(self, text: str, number: int) -> list[int]:
        """Tokens of the part of a text that is kept; ``number`` is how many the whole has."""
        said = text or self._lead
        why = f"{self.name}_length ({self.length}) is too small: {said!r} has {number} tokens"
        if self._keep is None or not text:  # no end of a lead is kept
            raise ValueError(f"{why}; raise it, or say with keep which end to keep")
        if not self.num_cut:
            warnings.warn(
                f"{why}, of which the {self._keep} is kept; num_cut counts such texts", stacklevel=2
            )
        self.num_cut += 1

        def tokens(part: str) -> list[int]:
            return self._tokenizer(self._lead + part, add_special_tokens=False).input_ids

        return tokens(cut_text(text, lambda part: len(tokens(part)) <= self.length, self._keep))
