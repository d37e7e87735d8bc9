"""Types, shapes and contents of the contract's entries."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_glam.text import EnvDescription, decode_text

_GOAL, _KIND, _ID = ("hindsight", "goal"), ("hindsight", "kind"), ("hindsight", "goal_id")
_INTEGERS = "int8 or int16 or int32 or int64"
# Of every key: its types, and its shape.
_ENTRIES: dict[NestedKey, tuple[str, str]] = {
    "goal": ("uint8", "[*B, bytes]"),
    "observation": ("uint8", "[*B, bytes]"),
    "actions": ("uint8", "[*B, A, bytes]"),
    "action_mask": ("bool", "[*B, A]"),
    "goal_kind": (_INTEGERS, "[*B]"),
    _GOAL: ("uint8", "[*B, H, bytes]"),
    _KIND: (_INTEGERS, "[*B, H]"),
    _ID: (_INTEGERS, "[*B, H]"),
}
_ALWAYS = [key for key in _ENTRIES if isinstance(key, str)]


class Rows:
    """The rows of a reset's or step's state that count, ``bool [*B]``, in one dimension."""

    def __init__(
        self, state: TensorDictBase, batch: torch.Size, where: str, counts: Tensor
    ) -> None:
        self.state, self.batch, self.where = state, batch, where
        self._places = counts.flatten().nonzero().flatten()

    def get(self, key: NestedKey) -> Tensor | None:
        """Values of an entry, ``[rows, ...]``; None if it is missing."""
        value = self.state.get(key, None)
        if value is not None:
            value = value.reshape(-1, *value.shape[len(self.batch) :])[self._places]
        return value

    def first_difference(
        self, other: Rows, keys: Iterable[NestedKey] | None = None
    ) -> NestedKey | None:
        """The first of the keys, by default all, whose values differ; None if none does."""
        for key in self.state.keys(True, True) if keys is None else keys:
            mine, theirs = self.get(key), other.get(key)
            if isinstance(mine, Tensor) and not (
                isinstance(theirs, Tensor) and torch.equal(mine, theirs)
            ):
                return key
        return None

    def name(self, key: NestedKey, row: int, *more: int) -> str:
        """An entry of a row, as errors name it."""
        place = torch.unravel_index(self._places[row], self.batch) if self.batch else ()
        index = ", ".join(str(int(i)) for i in (*place, *more))
        return f"{name_of(key)}{f'[{index}]' if index else ''} of the {self.where}"


def check_types(rows: Rows) -> None:
    """Checks keys, types and shapes."""
    state, batch, where = rows.state, rows.batch, rows.where
    named = [key for key in (_GOAL, _ID) if state.get(key, None) is not None]
    for key in _ALWAYS + named + [_KIND] * bool(named):
        value, name = state.get(key, None), f"{name_of(key)} of the {where}"
        if value is None:
            raise missing(key, where)
        types, shape = _ENTRIES[key]
        ndim = len(batch) + shape.count(",")
        shape += f", B being {list(batch)}"
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name} is {type(state[key]).__name__}: it must be a {types} tensor {shape}; "
                "TextLayout.pack and encode_text write strings so"
            )
        if str(value.dtype).removeprefix("torch.") not in types.split():
            raise ValueError(
                f"{name} is {value.dtype}: it must be {types}; write it so, and say it in the "
                f"specs (.to(torch.{types.split()[0]}))"
            )
        if value.shape[: len(batch)] != batch or value.ndim != ndim:
            raise ValueError(f"{name} has the shape {list(value.shape)}: it must be {shape}")
    actions, mask = state["actions"].shape[len(batch)], state["action_mask"].shape[-1]
    if actions != mask:
        raise ValueError(
            f"actions of the {where} has {actions} candidates and action_mask {mask}: pad both"
        )
    if named and state[named[0]].shape[len(batch)] != state[_KIND].shape[-1]:
        raise ValueError(
            f"{name_of(named[0])} of the {where} has {state[named[0]].shape[len(batch)]} slots and "
            f"{name_of(_KIND)} {state[_KIND].shape[-1]}: a kind for each, -1 in empty ones"
        )
    if _GOAL in named and state[_GOAL].shape[-1] != state["goal"].shape[-1]:
        raise ValueError(
            f"{name_of(_GOAL)} of the {where} is {state[_GOAL].shape[-1]} bytes wide and goal "
            f"{state['goal'].shape[-1]}: one replaces the other, so pad both to the same width"
        )


def check_content(rows: Rows, description: EnvDescription) -> None:
    """Checks texts, admissible actions and kinds of goals."""
    for key in ("goal", "observation", "actions", _GOAL):
        text = rows.get(key)
        if text is not None:
            _check_text(rows, key, text)
    actions, mask = rows.get("actions"), rows.get("action_mask")
    for row, texts in enumerate(decode_text(actions)):
        places = mask[row].nonzero().flatten().tolist()
        if not places:
            raise ValueError(
                f"{rows.name('action_mask', row)} has no admissible action: each state needs one, "
                "the last of an episode too (those of the state before will do)"
            )
        first: dict[str, int] = {}
        for place in places:
            if not texts[place]:
                raise ValueError(
                    f"{rows.name('actions', row, place)} is empty and admissible: mask it out"
                )
            other = first.setdefault(texts[place], place)
            if other != place:
                raise ValueError(
                    f"{rows.name('actions', row, place)} is {texts[place]!r}, and so is "
                    f"{rows.name('actions', row, other)}: admissible actions must differ; merge "
                    "them, or mask one out"
                )
    _check_kinds(rows, description)


def _check_text(rows: Rows, key: NestedKey, text: Tensor) -> None:
    after_end = ((text[..., 1:] != 0) & (text[..., :-1] == 0)).any(-1).nonzero()
    if len(after_end):
        place = rows.name(key, *after_end[0].tolist())
        raise ValueError(f"{place} continues after a zero byte: zeros are padding, at the end only")
    for index in text[..., 0].nonzero().tolist():
        try:
            decode_text(text[tuple(index)])
        except ValueError as error:
            raise ValueError(f"{rows.name(key, *index)}: {error}") from None


def _check_kinds(rows: Rows, description: EnvDescription) -> None:
    kinds, named = description.goal_kinds, rows.get(_KIND)
    for key, least in (("goal_kind", 0), (_KIND, -1)):
        found = rows.get(key)
        if found is None:
            return
        for place in ((found < least) | (found >= len(kinds))).nonzero().tolist():
            raise ValueError(
                f"{rows.name(key, *place)} is {int(found[tuple(place)])}, and there are "
                f"{len(kinds)} goal_kinds {kinds}: name more of them, or write others"
            )
    key = _GOAL if rows.get(_GOAL) is not None else _ID
    goals = rows.get(key)
    filled = goals[..., 0] != 0 if key == _GOAL else goals >= 0
    for row, slot in (filled != (named >= 0)).nonzero().tolist():
        says = "names a goal" if filled[row, slot] else "is empty"
        raise ValueError(
            f"{rows.name(key, row, slot)} {says} and its kind is {int(named[row, slot])}: the kind "
            "must be -1 in empty slots, and in no other"
        )
    if key == _GOAL:
        return
    texts = description.goal_texts
    if texts is None:
        raise ValueError(
            f"{name_of(_ID)} counts in texts that the environment does not tell: give it an "
            f"attribute goal_texts, or write {name_of(_GOAL)}"
        )
    for row, slot in (goals >= len(texts)).nonzero().tolist():
        place, value = rows.name(_ID, row, slot), int(goals[row, slot])
        raise ValueError(f"{place} is {value}, and goal_texts has {len(texts)} entries")


def name_of(key: NestedKey) -> str:
    """A key as errors name it."""
    return key if isinstance(key, str) else ".".join(key)


def missing(key: NestedKey, where: str, more: str = "") -> ValueError:
    """The error for an entry that is not there."""
    wanted = f", {' '.join(_ENTRIES[key])}" if key in _ENTRIES else ""
    return ValueError(
        f"{name_of(key)} is missing from the {where}: the text contract wants it{wanted}{more}"
    )
