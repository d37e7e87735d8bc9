"""BabyAI's levels in words: a room seen from where the agent stands."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium
import minigrid  # registers the levels
import torch
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

from torchrl_glam.envs.games.common import SOURCES
from torchrl_glam.envs.wrapper import TextEnvWrapper

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
GOAL_KINDS = ("go_to", "pick_up", "other")
_THINGS = ("door", "key", "ball", "box")
_DOORS = ("open", "closed", "locked")


def make_babyai(
    level: str = "GoToRedBallNoDists",
    num_envs: int = 1,
    seed: int | None = None,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """A level of BabyAI (Chevalier-Boisvert et al., 2019) as a text environment.

    The goal is the level's mission. The observation lists what stands in the 7 x 7 squares that the
    agent sees, counted from it, how far the walls are, and what it carries. ``turn left``, ``turn
    right`` and ``go forward`` are always admissible; ``pick up``, ``drop`` and ``toggle`` where
    they do something. The reward is 1 on the step that fulfils the mission, else 0.

    Hindsight: "go to the red ball" after every step that faces one, "pick up the red ball", "pick
    up the ball" and "pick up the red object" after one that picks it up; with "a" for "the" where
    the level had several, as missions are worded.

    Args:
        level: name of the level without "BabyAI-" and version, such as ``"GoToObj"`` or
            ``"PickupDist"``. Default: ``"GoToRedBallNoDists"``.
        num_envs: B, games side by side. Default: 1.
        seed, device, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`.

    Raises:
        ValueError: if there is no such level.

    References:
        The words follow the idea of BabyAI-Text (Carta et al., 2023, "Grounding Large Language
        Models in Interactive Environments with Online Reinforcement Learning").
    """
    sizes = {"max_actions": len(ACTIONS), "goal_bytes": 64, "observation_bytes": 384}
    return TextEnvWrapper(
        [BabyAIText(level) for _ in range(num_envs)],
        **{**sizes, "goal_kinds": GOAL_KINDS, "kind_of": kind_of, "max_hindsight": 4, **kwargs},
        **SOURCES,
        seed=seed,
        device=device,
    )


def kind_of(goal: str) -> int:
    """Index into ``GOAL_KINDS`` of a mission."""
    starts = [goal.startswith(kind.replace("_", " ")) for kind in GOAL_KINDS]
    return starts.index(True) if True in starts else len(GOAL_KINDS) - 1


class BabyAIText:
    """A level of :func:`make_babyai` in words, in Gymnasium's interface."""

    def __init__(self, level: str) -> None:
        names = sorted(name for name in gymnasium.registry if name.startswith("BabyAI-"))
        levels = {name.removeprefix("BabyAI-").rsplit("-v", 1)[0]: name for name in names}
        if level not in levels:
            raise ValueError(
                f"level ({level!r}) must be one of {[*levels]} (minigrid {minigrid.__version__})"
            )
        self.game = gymnasium.make(levels[level], disable_env_checker=True).unwrapped

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; returns the observation and ``info``."""
        seen, _ = self.game.reset(seed=seed)
        # Missions say "the" of what there is once, at the beginning.
        things = [thing for thing in self.game.grid.grid if thing and thing.type in _THINGS]
        self._number = Counter(words for t in things for words in _wordings(t.color, t.type))
        self._carried = self.game.carrying
        return self._tell(seen, won=False, reached=[])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does one of the actions."""
        seen, reward, terminated, truncated, _ = self.game.step(ACTIONS.index(action))
        won = bool(terminated and reward > 0)
        observation, info = self._tell(seen, won, self._reached())
        return observation, float(won), bool(terminated), bool(truncated), info

    def _tell(
        self, seen: dict[str, Any], won: bool, reached: list[str]
    ) -> tuple[str, dict[str, Any]]:
        carried, ahead = self.game.carrying, self.game.grid.get(*self.game.front_pos)
        useful = {
            "pick up": carried is None and ahead is not None and ahead.can_pickup(),
            "drop": carried is not None and ahead is None,
            "toggle": ahead is not None and ahead.type in ("door", "box"),
        }
        info = {
            "goal": seen["mission"],
            "actions": [action for action in ACTIONS if useful.get(action, True)],
            "won": won,
            "reached": reached,
        }
        return describe(seen["image"]), info

    def _reached(self) -> list[str]:
        """The missions that the last step fulfils."""
        ahead, carried = self.game.grid.get(*self.game.front_pos), self.game.carrying
        reached = []
        if ahead is not None and ahead.type in _THINGS:
            reached.append(f"go to {self._named(ahead.color, ahead.type)}")
        if carried is not None and carried is not self._carried:
            wordings = _wordings(carried.color, carried.type)
            reached += [f"pick up {self._named(*words)}" for words in wordings]
        self._carried = carried
        return reached

    def _named(self, color: str | None, kind: str) -> str:
        article = "a" if self._number[color, kind] > 1 else "the"
        return " ".join(filter(None, (article, color, kind)))


def _wordings(color: str, kind: str) -> list[tuple[str | None, str]]:
    return [(color, kind), (None, kind), (color, "object")]


def describe(image: Any) -> str:
    """What the agent sees, in words.

    Args:
        image: MiniGrid's encoding ``[W, W, 3]`` of the squares in view; the agent stands in the
            middle of the last row, where what it carries is written, and looks along its column.

    Examples:
        >>> import numpy as np
        >>> view = np.zeros((3, 3, 3), dtype=int)  # nothing is known
        >>> view[1, 0], view[1, 1], view[0, 2] = (2, 5, 0), (6, 0, 0), (4, 2, 1)
        >>> print(describe(view))
        You see: closed blue door 1 left, red ball 1 forward
        Walls: 2 forward
        You carry: nothing
    """
    width = len(image)
    middle, last = width // 2, width - 1
    things, walls = [], {}
    for row in range(last, -1, -1):  # the nearest first
        for column in sorted(range(width), key=lambda column: abs(column - middle)):
            kind, color, state = (int(value) for value in image[column, row])
            name, place = IDX_TO_OBJECT[kind], _place(column - middle, last - row)
            if name == "wall" and (column == middle or row == last):
                walls.setdefault(place.split()[1], place)
            elif name in _THINGS and place:
                door = f"{_DOORS[state]} " if name == "door" else ""
                things.append(f"{door}{IDX_TO_COLOR[color]} {name} {place}")
    kind, color, _ = (int(value) for value in image[middle, last])
    carried = IDX_TO_OBJECT[kind]
    carries = f"{IDX_TO_COLOR[color]} {carried}" if carried in _THINGS else "nothing"
    return (
        f"You see: {', '.join(things) or 'nothing'}\n"
        f"Walls: {', '.join(walls.values()) or 'none'}\n"
        f"You carry: {carries}"
    )


def _place(right: int, forward: int) -> str:
    """Where a square is, ``""`` for the agent's own."""
    sideways = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return " ".join(filter(None, (f"{forward} forward" if forward else "", sideways)))
