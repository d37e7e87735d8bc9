"""The text of the prompt, and how it is cut into pieces that can be tokenised apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SLOT = re.compile(r"(\s*)\{(\w+)\}")


@dataclass(frozen=True)
class PromptTemplate:
    """Text of the prompt, with a slot for the goal and a slot for the observation.

    White space in front of a slot is tokenised together with what fills the slot: tokenizers
    attach a space to the word that follows it, so the pieces are cut in front of white space and
    their tokens, put one after another, are those of the whole text.

    Args:
        text: the prompt with the slots ``{goal}`` and ``{observation}``, each exactly once.
            Default: the prompt of SAC-GLAM (Gaven et al., 2024), figure 3.
        action_lead: text in front of a candidate action that follows the prompt. Default: a space.

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
    pieces: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pieces, end = [], 0
        for slot in _SLOT.finditer(self.text):
            if slot.start() > end:
                pieces.append(("literal", self.text[end : slot.start()]))
            pieces.append((slot[2], slot[1]))
            end = slot.end()
        if end < len(self.text):
            pieces.append(("literal", self.text[end:]))
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
        return self.text.format(goal=goal, observation=observation)
