"""States as text for people, in ANSI colours."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ANSI = {"red": "\033[31m", "blue": "\033[34m", "green": "\033[32m"}
_BOLD, _DIM, _RESET = "\033[1m", "\033[2m", "\033[0m"
# A colour and the word after it: "red lion", and the same in "any red thing".
_COLOURED = re.compile(rf"\b({'|'.join(_ANSI)}) \w+")
_TITLE = re.compile(r"^[A-Z][\w ]*:", re.MULTILINE)


def render_state(
    goal: str,
    observation: str,
    actions: Sequence[str],
    admissible: Sequence[bool],
    progress: str,
    ansi: bool = True,
) -> str:
    """Lays out a state of a text environment.

    Args:
        goal (str): the goal's text.
        observation (str): the observation's text.
        actions (sequence of str): candidate actions.
        admissible (sequence of bool): which of them can be taken; the others are left out.
        progress (str): a note after the goal, such as ``"step 3 of 16"``.
        ansi (bool, optional): whether to use ANSI colours. Defaults to ``True``.

    Examples:
        >>> print(render_state("Grasp red lion", "You see: red lion", ["Go to red lion", "Release"],
        ...                    [True, False], "step 0 of 16", ansi=False))
        Goal: Grasp red lion (step 0 of 16)
        You see: red lion
        Actions: 0 Go to red lion
    """
    choices = " | ".join(
        f"{index} {text}"
        for index, (text, can) in enumerate(zip(actions, admissible, strict=True))
        if can
    )
    text = f"Goal: {goal} ({progress})\n{observation}\nActions: {choices}"
    if not ansi:
        return text
    text = _COLOURED.sub(lambda match: f"{_ANSI[match[1]]}{match[0]}{_RESET}", text)
    text = text.replace(f"({progress})", f"{_DIM}({progress}){_RESET}")
    return _TITLE.sub(lambda match: f"{_BOLD}{match[0]}{_RESET}", text)


def render_refusal(env: int, index: int, actions: Sequence[str], admissible: Sequence[bool]) -> str:
    """Says why an action cannot be taken, and which can.

    Args:
        env (int): which environment.
        index (int): the action.
        actions (sequence of str): text of every candidate action.
        admissible (sequence of bool): which of them are admissible.

    Examples:
        >>> render_refusal(3, 1, ["Grasp", "Release"], [True, False])
        "action[3] = 1 'Release' is masked out. Admissible are 0: Grasp."
    """
    in_range = 0 <= index < len(actions)
    what = f"{actions[index]!r} is masked out" if in_range else "is out of range"
    choice = [f"{i}: {text}" for i, text in enumerate(actions) if admissible[i]]
    return f"action[{env}] = {index} {what}. Admissible are {', '.join(choice)}."
