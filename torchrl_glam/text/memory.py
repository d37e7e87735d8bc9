"""Earlier steps of an episode in front of its observation, within a number of tokens."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_glam.text.encoding import join_segments
from torchrl_glam.text.template import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StepMemory:
    """Keeps the newest whole steps, each an observation and the action played after it.

    Tokens of the steps, and those of the observation behind them, share one tensor ``[*B, P +
    To]``: P places for steps, each of which begins after one padding token, and To for the
    observation. Prompts leave padding out, wherever it is. So whoever holds the tensor and the
    action can tell the next one, and nothing is kept here.

    Args:
        tokenizer: tokenizer of the language model.
        template: the prompt, whose ``link`` joins an observation and its action.
        tokens: the most tokens of all steps together, at least 1.

    Attributes:
        places: P.
        num_forgotten: steps that alone had more tokens, so that nothing is remembered after them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, tokens: int
    ) -> None:
        link = tokenizer(template.link, add_special_tokens=False).input_ids
        self.tokens, self.pad_id = tokens, tokenizer.pad_token_id
        self._link, self.num_forgotten, self._fits = torch.tensor(link).long(), 0, False
        self.places = tokens + tokens // (len(link) + 1)  # no step is shorter than link and action

    def forget(self, observation: Tensor) -> Tensor:
        """The tensor without any step, from the observation's tokens ``[*B, To]``."""
        return torch.nn.functional.pad(observation, (self.places, 0), value=self.pad_id)

    def follow(
        self, before: Tensor, action: Tensor, after: Tensor, moves: Tensor | None = None
    ) -> Tensor:
        """The tensor after a step.

        Args:
            before: the tensor before it, ``[*B, P + To]``.
            action: tokens of the action, padded on the right, ``[*B, Ta]``.
            after: the tensor of the next observation, ``[*B, P + To]``, whose steps are ignored.
            moves: True where the step is taken, ``[*B]``. Default: None, everywhere.
        """
        steps, observation = before.tensor_split([self.places], -1)
        gap = torch.full_like(steps[..., :1], self.pad_id)
        link = self._link.to(steps).expand(*steps.shape[:-1], -1)
        values = torch.cat([steps, gap, observation, link, action.to(steps)], -1)
        there = values != self.pad_id
        begins = torch.zeros_like(there)
        begins[..., : self.places] = ~there[..., : self.places] & there[..., 1 : self.places + 1]
        begins[..., self.places] = True
        until_end = there.flip(-1).cumsum(-1).flip(-1)
        fits = begins & (until_end <= self.tokens)
        too_long = ~fits[..., self.places]
        self._count(too_long if moves is None else too_long & moves)
        # older steps have more tokens until the end, so those that fit are the newest ones
        kept = (there | begins) & (fits.cumsum(-1) > 0)
        kept = join_segments(values.unsqueeze(-2), kept.unsqueeze(-2), self.places, self.pad_id)
        steps = kept if moves is None else kept.where(moves.unsqueeze(-1), steps)
        return torch.cat([steps, after[..., self.places :]], -1)

    def _count(self, forgotten: Tensor) -> None:
        number = int(forgotten.sum())
        if number and not self.num_forgotten:
            warnings.warn(
                f"memory ({self.tokens}) is too small for a step, so nothing is remembered after "
                "it; num_cut counts such steps: raise memory if what they show matters",
                stacklevel=2,
            )
        self.num_forgotten += number

    def check(self, observation: Tensor, actions: Tensor) -> None:
        """Refuses a first state ``[*B]`` after which no step could be remembered."""
        if self._fits or not observation.numel():
            return
        seen = (observation != self.pad_id).sum(-1)
        longest = (actions != self.pad_id).sum(-1).amax(-1)
        most = int((seen + longest).max()) + len(self._link)
        if most > self.tokens:
            raise ValueError(
                f"memory ({self.tokens}) must be at least {most}, the tokens of the first step "
                "(the observation and its longest action): raise it, or give 0 for no memory"
            )
        self._fits = True
