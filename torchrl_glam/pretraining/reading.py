"""The unit of pretraining: a prompt, and texts that answer questions about it."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """A prompt, and decoder texts about it.

    Attributes:
        prompt: what the encoder reads.
        answers: for each question its pieces of text, and whether each is to be predicted.
    """

    prompt: str
    answers: list[list[tuple[str, bool]]]
