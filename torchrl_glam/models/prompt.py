"""From goal and observation tokens to the prompt of the language model, on tensors.

Goal and observation travel as separate token tensors, since hindsight relabelling replaces the
goal alone. The prompt is put together from them and from the fixed parts of a template by moving
tokens, so no text is touched between the environment and the model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from torchrl_glam.envs.template import PromptTemplate
from torchrl_glam.envs.text import join_segments


class PromptBuilder(nn.Module):
    """Puts the prompt together from goal tokens and observation tokens.

    Notation: B any batch shape, Tg, To padded lengths of goal and observation, T length of the
    longest prompt of the batch.

    Args:
        tokenizer: a transformers tokenizer with a padding token.
        template: the prompt. Default: :class:`PromptTemplate`.
        closed: whether what the tokenizer puts after a text (T5's ``</s>``) ends the prompt;
            False where the action continues the same text. Default: True.

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
            raise ValueError(
                "tokenizer has no padding token: set tokenizer.pad_token (for example to "
                "tokenizer.eos_token) before building prompts"
            )
        self.pad_id: int = tokenizer.pad_token_id
        before, after = special_tokens(tokenizer)
        self._order: list[str] = []
        self.num_literal_tokens = 0
        literals = [("literal", before)] if before else []
        for kind, text in self.template.pieces:
            ids = tokenizer(text, add_special_tokens=False).input_ids if kind == "literal" else []
            literals.append((kind, ids))
        self._action_at = len(literals)
        if after and closed:
            literals.append(("literal", after))
        for index, (kind, ids) in enumerate(literals):
            name = kind if kind != "literal" else f"_literal_{index}"
            self._order.append(name)
            if kind == "literal":
                self.num_literal_tokens += len(ids)
                self.register_buffer(name, torch.tensor(ids, dtype=torch.long), persistent=False)

    def forward(
        self,
        goal_tokens: Tensor,
        observation_tokens: Tensor,
        action_tokens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Prompt tokens and their mask.

        Args:
            goal_tokens: ``[*B, Tg]`` integers, padded on the right.
            observation_tokens: ``[*B, To]`` integers, padded on the right.
            action_tokens: ``[*B, Ta]`` integers, padded on the right: an action to read as the end
                of the prompt, before what closes it. Default: None, no action.

        Returns:
            tokens ``[*B, T]`` (int64, padded on the right) and mask ``[*B, T]`` (bool, True at
            tokens).
        """
        batch = goal_tokens.shape[:-1]
        slots = {"goal": goal_tokens.long(), "observation": observation_tokens.long()}
        order = self._order
        if action_tokens is not None:
            slots["action"] = action_tokens.long()
            order = [*order[: self._action_at], "action", *order[self._action_at :]]
        parts, masks = [], []
        for name in order:
            if name in slots:
                parts.append(slots[name])
                masks.append(slots[name] != self.pad_id)
            else:
                part = getattr(self, name).expand(*batch, -1)
                parts.append(part)
                masks.append(torch.ones_like(part, dtype=torch.bool))
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
        f"special tokens ({plain} became {whole}): prompts cannot be put together from pieces"
    )


def check_composition(
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate,
    examples: Iterable[tuple[str, str]],
) -> None:
    """Checks that prompts built from pieces have exactly the tokens of the whole text.

    Args:
        tokenizer: the tokenizer of the language model.
        template: the prompt.
        examples: pairs of goal text and observation text.

    Raises:
        ValueError: naming the first example that differs, and where.
    """
    builder = PromptBuilder(tokenizer, template)
    for goal, observation in examples:
        pieces = [
            torch.tensor(
                [tokenizer(template.lead(slot) + text, add_special_tokens=False).input_ids],
                dtype=torch.long,
            )
            for slot, text in (("goal", goal), ("observation", observation))
        ]
        built = builder(*pieces)[0][0].tolist()
        whole = tokenizer(template.fill(goal, observation)).input_ids
        if built != whole:
            at = next(
                (i for i, (a, b) in enumerate(zip(built, whole, strict=False)) if a != b),
                min(len(built), len(whole)),
            )
            raise ValueError(
                f"tokenizer ({tokenizer.__class__.__name__}) does not compose: the prompt of goal "
                f"{goal!r} has {len(whole)} tokens as one text and {len(built)} in pieces, and "
                f"they differ from token {at} on ({tokenizer.decode(whole[at : at + 3])!r} against "
                f"{tokenizer.decode(built[at : at + 3])!r}). Choose a template whose slots start "
                "at white space, or another tokenizer."
            )
