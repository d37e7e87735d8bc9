"""Jericho: text games in files of the z-machine, such as Zork, which the user brings."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torchrl_glam.envs.games.common import ROOMS, check_known
from torchrl_glam.envs.games.zmachine import Story, find_stories, room_name
from torchrl_glam.envs.wrapper import TextEnvWrapper

GOAL_KINDS = ("find", "take", "reach", "other")


def make_jericho(
    game: str | os.PathLike | Sequence[str | os.PathLike],
    num_envs: int = 1,
    goal: str | None = None,
    reward: Literal["success", "score"] = "success",
    commands: Sequence[str] | None = None,
    max_steps: int = 100,
    seed: int | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """Games in z-machine files, played by Jericho (Hausknecht et al., 2020).

    The files are yours: none comes with the package. The observation is the room, what is carried,
    and what the last action gave. In every state all commands are tried on the things in sight, and
    one is kept for each different change of the world; this takes most of a step's time.
    The episode ends where the game is over, or where the player has the full score.

    Jericho knows some sixty games by their bytes, and TextWorld's by their names, ``tw-*.z8``. Any
    other file is played too, without a score; it is won by a line such as ``*** You have won ***``.

    Hindsight: "Find the kitchen" after a step into it, "Take the coin" after one that takes it,
    "Reach a score of 5" after one that raises it to 5, and the goal after one that wins.

    Args:
        game: a file, a folder with files ``*.z1`` to ``*.z8``, or a list of them. Every episode
            plays one, which its seed draws.
        num_envs: B, games side by side. Default: 1.
        goal: the goal's text. Default: ``"Get the highest score in NAME"``, as the file is named.
        reward: ``"success"``, 1 on the step that wins, else 0; or ``"score"``, what a step adds to
            the score, as a share of the full one; a loss counts as 0. Default: ``"success"``.
        commands: to try, such as ``"open OBJ"`` and ``"put OBJ in OBJ"``, for all things in sight;
            of two things one is carried. Default: what Jericho knows of the game, else
            ``torchrl_glam.envs.games.zmachine.COMMANDS``.
        max_steps: steps after which an episode is truncated. Default: 100.
        seed, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`. Of more than
            ``max_actions`` (default 64) candidates some are drawn at random.

    Raises:
        FileNotFoundError: if there is no such file, or none in a folder.
        ValueError: if a file is no whole z-machine game, or there is no such reward; on a reset, if
            no command does anything, or Jericho cannot read the score that is the reward.

    Examples:
        >>> env = make_jericho("games/zork1.z5", num_envs=4)  # doctest: +SKIP
    """
    check_known("reward", reward, ("success", "score"))
    files = find_stories(game)
    games = [JerichoGame(files, goal, reward, commands) for _ in range(num_envs)]
    sizes = {**ROOMS, "max_hindsight": 4, "goal_kinds": GOAL_KINDS, "kind_of": kind_of, **kwargs}
    return TextEnvWrapper(games, **sizes, max_steps=max_steps, seed=seed)


def kind_of(goal: str) -> int:
    """Index into ``GOAL_KINDS`` of a goal."""
    return {"Find": 0, "Take": 1, "Reach": 2}.get(goal.split(" ")[0], 3)


class JerichoGame:
    """Games of :func:`make_jericho` in Gymnasium's interface; the seed draws one to play."""

    def __init__(
        self, files: list[Path], goal: str | None, reward: str, commands: Sequence[str] | None
    ) -> None:
        self.files, self._goal, self._reward, self._commands = files, goal, reward, commands
        self._loaded: dict[Path, Story] = {}

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the game that the seed draws; returns the observation and ``info``."""
        self._file = file = self.files[(seed or 0) % len(self.files)]
        if file not in self._loaded:
            self._loaded[file] = Story(file, self._commands)
        self.story = self._loaded[file]
        if self._reward == "score" and self.story.full_score <= 0:
            raise ValueError(
                f'reward ("score"): Jericho cannot read the score of {file}: give "success"'
            )
        self.story.begin(seed or 0)
        self._room, self._carried = self.story.look()
        if not (valid := self.story.valid(self._room, self._carried)):
            raise ValueError(
                f"no command does anything where {file} begins, {self._room}: give others by "
                "commands=..."
            )
        return self._tell([], valid, [], over=False, won=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command."""
        before, room, carried = self.story.score, self._room, self._carried
        reply, over, won = self.story.do(action)
        valid, reached = [], []
        if not over:  # a game that is over tells of no room
            self._room, self._carried = self.story.look()
            valid = self.story.valid(self._room, self._carried)
            reached = self._reached(action, room, carried)
        if gained := max(self.story.score - before, 0):
            reached.append(f"Reach a score of {self.story.score}")
        observation, info = self._tell(reply, valid, reached, over, won)
        reward = gained / self.story.full_score if self._reward == "score" else float(won)
        return observation, reward, over, False, info

    def _reached(self, action: str, room: list[str], carried: list[str]) -> list[str]:
        reached, name = [], room_name(self._room)
        if name and name != room_name(room):
            reached.append(f"Find the {name.lower()}")
        verb, _, thing = action.partition(" ")
        has, had = ("\n".join(lines).lower() for lines in (self._carried, carried))
        if verb in ("take", "get") and thing in has and thing not in had:
            reached.append(f"Take the {thing}")
        return reached

    def _tell(
        self, reply: list[str], valid: list[str], reached: list[str], over: bool, won: bool
    ) -> tuple[str, dict[str, Any]]:
        seen = [] if over else [*self._room, *self._carried]
        goal = self._goal or f"Get the highest score in {self._file.stem}"
        reached = [*reached, goal] if won else reached
        info = {"goal": goal, "actions": valid or ["wait"], "won": won, "reached": reached}
        return "\n".join([*seen, *(line for line in reply if line not in seen)]), info

    def close(self) -> None:
        """Ends the games' interpreters."""
        for story in self._loaded.values():
            story.game.close()
        self._loaded.clear()
