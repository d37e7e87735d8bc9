"""Earlier steps of an episode in front of its observation, within a number of tokens."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrl_glam.text.encoding import join_segments
from torchrl_glam.text.template import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StepMemory:
    """Keeps the newest whole steps that have at most ``tokens`` tokens together.

    They share a tensor ``[*B, P + To]`` with the observation: P ``places`` for steps, each of which
    begins after one padding token, and To for the observation. Prompts leave padding out, wherever
    it is. The next tensor follows from this one and the action, so this class holds no state.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, tokens: int
    ) -> None:
        if type(tokens) is not int or tokens < 0:
            raise ValueError(
                f"memory ({tokens!r}) must be a whole number of tokens, at least 0, which shows no "
                "earlier steps"
            )
        self._link = torch.tensor(tokenizer(template.link, add_special_tokens=False).input_ids)
        self.tokens, self.pad_id, self._fits = tokens, tokenizer.pad_token_id, False
        self.places = tokens + tokens // (len(self._link) + 1)  # no step is shorter

    def begin(self, observation: Tensor, actions: Tensor, counts: Tensor | None = None) -> Tensor:
        """The tensor without steps, from tokens of observation and candidate actions.

        Refuses, once, first states whose own step would not fit; they are where ``counts`` is True.
        """
        if not self._fits:
            texts = (observation.unsqueeze(-2), actions)
            length = sum((text != self.pad_id).sum(-1).amax(-1) for text in texts)
            length = length if counts is None else length * counts.reshape(length.shape)
            most = max(length.flatten().tolist(), default=0) + len(self._link)
            if most > self.tokens:
                raise ValueError(
                    f"memory ({self.tokens}) must be at least {most}, the tokens of the first step "
                    "(the observation and its longest action): raise it, or give 0 for no memory"
                )
            self._fits = True
        return pad(observation, (self.places, 0), value=self.pad_id)

    def follow(self, before: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """The tensor after a step, by that before it, the action's tokens, and one that begins."""
        steps, observation = before.tensor_split([self.places], -1)
        gap = torch.full_like(before[..., :1], self.pad_id)
        link = self._link.to(before).expand(*before.shape[:-1], -1)
        values = torch.cat([steps, gap, observation, link, action], -1)
        there = values != self.pad_id
        begins = torch.zeros_like(there)
        begins[..., : self.places] = ~there[..., : self.places] & there[..., 1 : self.places + 1]
        begins[..., self.places] = True
        until_end = there.flip(-1).cumsum(-1).flip(-1)
        fits = begins & (until_end <= self.tokens)
        if not fits[..., self.places].all():
            warnings.warn(
                f"memory ({self.tokens}) is too small for a step, so nothing is remembered after "
                "it: raise memory if what it shows matters",
                stacklevel=2,
            )
        # older steps have more tokens until the end, so those that fit are the newest
        kept = (there | begins) & (fits.cumsum(-1) > 0)
        steps = join_segments(values.unsqueeze(-2), kept.unsqueeze(-2), self.places, self.pad_id)
        return torch.cat([steps, after[..., self.places :]], -1)
