"""From goal and observation tokens to the prompt of the language model, on tensors.

Goal and observation travel as separate token tensors, since hindsight relabelling replaces the
goal alone. The prompt is put together from them and a template's fixed parts by moving tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchrl_glam.text.encoding import join_segments
from torchrl_glam.text.template import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a trunk tries its tokenizer on: goals with observations, and actions.
EXAMPLES = (("Grasp red lion", "You see: red lion, blue cat\nYou are on: nothing"),)
EXAMPLE_ACTIONS = ("Go to red lion", "Grasp")


class PromptBuilder(nn.Module):
    """Puts the prompt together from goal tokens and observation tokens.

    Notation: B any batch shape; Tg, To, Ta padded lengths; T length of the batch's longest prompt.

    Args:
        tokenizer: a transformers tokenizer with a padding token.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        closed: whether what the tokenizer puts after a text (T5's ``</s>``) ends the prompt; False
            where the action continues it. Default: True.

    Raises:
        ValueError: if the tokenizer has no padding token.

    Examples:
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> builder = PromptBuilder(tokenizer)
        >>> ids = lambda text: torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
        >>> tokens, mask = builder(ids(" Grasp red lion"), ids("\\nYou see: red lion"))
        >>> tokenizer.decode(tokens[0])
        'Goal: Grasp red lion\\nYou see: red lion\\nAction:</s>'
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: PromptTemplate | None = None,
        *,
        closed: bool = True,
    ) -> None:
        super().__init__()
        self.template = PromptTemplate() if template is None else template
        if tokenizer.pad_token_id is None:
            raise ValueError("tokenizer has no padding token: set tokenizer.pad_token")
        self.pad_id: int = tokenizer.pad_token_id
        before, after = special_tokens(tokenizer) if self.template.special_tokens else ([], [])
        pieces = [("literal", before)]
        for kind, text in self.template.pieces:
            ids = tokenizer(text, add_special_tokens=False).input_ids if kind == "literal" else []
            pieces.append((kind, ids))
        pieces += [("action", []), ("literal", after if closed else [])]
        self._order: list[str] = []  # names of slots, and of buffers with literals
        for index, (kind, ids) in enumerate(pieces):
            if kind != "literal":
                self._order.append(kind)
            elif ids:
                self._order.append(f"_literal_{index}")
                self.register_buffer(self._order[-1], torch.tensor(ids), persistent=False)
        self.num_literal_tokens = sum(len(ids) for _, ids in pieces)

    def forward(
        self, goal_tokens: Tensor, observation_tokens: Tensor, action_tokens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Prompt tokens and their mask. On a GPU, the host waits once, for the longest.

        Args:
            goal_tokens: ``[*B, Tg]`` integers, padded on the right.
            observation_tokens: ``[*B, To]`` integers, padded anywhere.
            action_tokens: ``[*B, Ta]`` integers, padded on the right: an action that ends the
                prompt, before what closes it. Default: None.

        Returns:
            Tokens int64 ``[*B, T]``, padded on the right, and mask bool ``[*B, T]``, True at them.
        """
        batch = goal_tokens.shape[:-1]
        action = goal_tokens[..., :0] if action_tokens is None else action_tokens
        slots = {"goal": goal_tokens, "observation": observation_tokens, "action": action}
        parts, masks = [], []
        for name in self._order:
            part = slots[name].long() if name in slots else getattr(self, name).expand(*batch, -1)
            parts.append(part)
            masks.append(part != self.pad_id if name in slots else torch.ones_like(part).bool())
        values, mask = torch.cat(parts, -1), torch.cat(masks, -1)
        lengths = mask.sum(-1)
        longest = int(lengths.max()) if lengths.numel() else 0
        tokens = join_segments(values.unsqueeze(-2), mask.unsqueeze(-2), longest, self.pad_id)
        return tokens, torch.arange(longest, device=mask.device) < lengths.unsqueeze(-1)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Tokens that the tokenizer itself puts before and after a text (``</s>`` for T5)."""
    probe = "Action:"
    plain = tokenizer(probe, add_special_tokens=False).input_ids
    whole = tokenizer(probe).input_ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    raise ValueError(
        f"tokenizer ({tokenizer.__class__.__name__}) changes the tokens of {probe!r} when it adds "
        f"special tokens: {plain} became {whole}"
    )


def check_composition(
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate,
    examples: Iterable[tuple[str, str]],
    actions: Iterable[str] = (),
    steps: Sequence[tuple[str, str]] = (),
) -> None:
    """Checks that prompts built from pieces have exactly the tokens of the whole text.

    Args:
        tokenizer: the tokenizer of the language model.
        template: the prompt.
        examples: pairs of goal text and observation text.
        actions: texts that continue the last of them, for decoder-only models. Default: none.
        steps: earlier observations and actions, in front of each observation. Default: none.

    Raises:
        ValueError: naming the first example that differs, and where.

    Examples:
        >>> from torchrl_glam.models import load_tokenizer
        >>> check_composition(load_tokenizer("tiny"), PromptTemplate(), [("Grasp", "You see: cat")])
    """
    builder = PromptBuilder(tokenizer, template)

    def ids(text: str) -> Tensor:
        return torch.tensor([tokenizer(text, add_special_tokens=False).input_ids], dtype=torch.long)

    def piece(slot: str, text: str) -> Tensor:
        return ids(template.lead(slot) + text)

    def compare(text: str, *pieces: Tensor) -> None:
        built = builder(*pieces)[0][0].tolist()
        whole = tokenizer(text, add_special_tokens=template.special_tokens).input_ids
        if built != whole:
            at = len(os.path.commonprefix([built, whole]))
            raise ValueError(
                f"tokenizer ({tokenizer.__class__.__name__}) does not compose: the prompt {text!r} "
                f"has {len(whole)} tokens as one text and {len(built)} in pieces, and they differ "
                f"from token {at} on ({tokenizer.decode(whole[at : at + 3])!r} against "
                f"{tokenizer.decode(built[at : at + 3])!r}). Choose a template whose slots, and "
                "whose actions, start at white space, or another tokenizer."
            )

    seen = []
    for before, action in steps:
        seen += [piece("observation", before), ids(template.link), piece("action", action)]
    pieces, text = [], ""
    for goal, observation in examples:
        pieces = [piece("goal", goal), torch.cat([*seen, piece("observation", observation)], -1)]
        text = template.fill(goal, template.recall(steps, observation))
        compare(text, *pieces)
    for action in actions:
        compare(text + template.lead("action") + action, *pieces, piece("action", action))
