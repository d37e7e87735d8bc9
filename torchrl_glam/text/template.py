"""The text of the prompt, and how it is cut into pieces that can be tokenised apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SLOT = re.compile(r"(?<!\s)(\s*)\{(\w+)\}")


@dataclass(frozen=True)
class PromptTemplate:
    """Text of the prompt, with a slot for the goal and a slot for the observation.

    Tokenizers attach a space to the word that follows it, so white space in front of a slot is
    tokenised together with what fills the slot.

    Args:
        text: the prompt with the slots ``{goal}`` and ``{observation}``, each exactly once.
            Default: the prompt of SAC-GLAM (Gaven et al., 2024), figure 3.
        action_lead: text in front of a candidate action that follows the prompt. Default: a space.
        special_tokens: whether the tokenizer puts its own special tokens around the prompt; False
            where the text spells those it wants, as :meth:`as_chat` makes it. Default: True.

    Raises:
        ValueError: if a slot is missing, unknown or repeated.

    Examples:
        >>> template = PromptTemplate()
        >>> template.fill(goal="Grasp red lion", observation="You see: red lion")
        'Goal: Grasp red lion\\nYou see: red lion\\nAction:'
        >>> template.lead("goal"), template.lead("observation")
        (' ', '\\n')
    """

    text: str = "Goal: {goal}\n{observation}\nAction:"
    action_lead: str = " "
    special_tokens: bool = True
    pieces: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        *parts, end = _SLOT.split(self.text)
        pieces = []
        for text, lead, slot in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            pieces += [("literal", text), (slot, lead)]
        pieces = [piece for piece in (*pieces, ("literal", end)) if piece != ("literal", "")]
        slots = sorted(kind for kind, _ in pieces if kind != "literal")
        if slots != ["goal", "observation"]:
            raise ValueError(
                f"text ({self.text!r}) has the slots {slots}: it must have '{{goal}}' and "
                "'{observation}', each exactly once"
            )
        object.__setattr__(self, "pieces", tuple(pieces))

    def lead(self, slot: str) -> str:
        """White space in front of ``slot`` (``"goal"``, ``"observation"`` or ``"action"``)."""
        return self.action_lead if slot == "action" else dict(self.pieces)[slot]

    def fill(self, goal: str, observation: str) -> str:
        """The whole prompt as text."""
        slots = {"literal": "", "goal": goal, "observation": observation}
        return "".join(text + slots[kind] for kind, text in self.pieces)

    @property
    def link(self) -> str:
        """Text between an earlier observation and the action played there, as in the prompt."""
        kinds = [kind for kind, _ in self.pieces]
        after = kinds.index("observation") + 1
        if self.special_tokens and "goal" not in kinds[after:]:
            return "".join(text for _, text in self.pieces[after:])
        # a chat is not opened again
        return "\nAction:" if self.action_lead else "\nAction:\n"

    def recall(self, steps: Iterable[tuple[str, str]], observation: str) -> str:
        """The observation behind earlier steps, pairs of observation and action, for :meth:`fill`.

        Examples:
            >>> PromptTemplate().recall([("It is dark", "switch on")], "It is light")
            'It is dark\\nAction: switch on\\nIt is light'
        """
        shown = [f"{seen}{self.link}{self.action_lead}{action}" for seen, action in steps]
        return self.lead("observation").join([*shown, observation])

    def as_chat(self, tokenizer: PreTrainedTokenizerBase) -> PromptTemplate:
        """The same prompt as a user's turn, for a chat model: the action is what it answers.

        Args:
            tokenizer: its ``chat_template`` says how turns are written.

        Returns:
            A template whose text is everything up to the answer, special tokens spelled out.

        Raises:
            ValueError: if the tokenizer has no chat template, or one that does not write the text
                of the turn as it stands.

        Examples:
            >>> from torchrl_glam.models.loading import load_tokenizer
            >>> tokenizer = load_tokenizer("tiny")
            >>> tokenizer.chat_template = (
            ...     "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% endfor %}"
            ... )
            >>> PromptTemplate("{goal}\\n{observation}").as_chat(tokenizer).text
            '<user>{goal}\\n{observation}<assistant>'
        """
        if getattr(tokenizer, "chat_template", None) is None:
            raise ValueError(
                f"tokenizer ({type(tokenizer).__name__}) has no chat template: use the prompt as "
                "it is (chat_template=False), or a model that was trained on chats"
            )
        text = _up_to_answer(tokenizer, self.text)
        bare = text.rstrip(" ")
        chat = PromptTemplate(bare, action_lead=text[len(bare) :], special_tokens=False)
        example = {"goal": "Grasp red lion", "observation": "You see: red lion, blue cat"}
        whole = _up_to_answer(tokenizer, self.fill(**example))
        if chat.fill(**example) + chat.action_lead != whole:
            raise ValueError(
                f"tokenizer ({type(tokenizer).__name__}) has a chat template that changes the text "
                f"of a turn, so a prompt cannot be put together from pieces: {text!r}"
            )
        return chat


def _up_to_answer(tokenizer: PreTrainedTokenizerBase, content: str) -> str:
    """A chat of one user's turn, as text, up to where the assistant's words begin."""
    answer = "Release"
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    chat = tokenizer.apply_chat_template(turns, tokenize=False)
    at = chat.rfind(answer)
    if content not in chat[: max(at, 0)]:
        raise ValueError(
            f"tokenizer ({type(tokenizer).__name__}) has a chat template that does not write the "
            f"turns of user and assistant as they stand: {chat!r}"
        )
    return chat[:at]
