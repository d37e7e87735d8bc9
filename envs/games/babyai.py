"""BabyAI's levels in words: a room seen from where the agent stands."""

from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Literal

from torchrl_glam._extras import needs
from torchrl_glam.envs.games.common import SOURCES, check_known
from torchrl_glam.envs.wrapper import TextEnvWrapper

with needs("babyai", "BabyAI"):
    import gymnasium
    from minigrid.core.constants import DIR_TO_VEC  # with the package, which registers the levels

    from torchrl_glam.envs.games.babyai_room import TaskRoom
    from torchrl_glam.envs.games.babyai_words import THINGS, describe

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
GOAL_KINDS = ("go_to", "pick_up", "put", "open", "other")


def make_babyai(
    level: str = "GoToRedBallNoDists",
    tasks: Sequence[str] | None = None,
    distractors: int = 8,
    room_size: int = 8,
    fold: Literal["train", "test"] = "train",
    num_envs: int = 1,
    seed: int | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """A level of BabyAI (Chevalier-Boisvert et al., 2019) as a text environment.

    The goal is the level's mission. The observation lists what the agent sees of the 7 x 7 squares
    in front of it, counted from where it stands, and what it carries. ``turn left``, ``turn right``
    and ``go forward`` are always admissible; ``pick up`` and ``drop`` where they do something,
    ``toggle`` in front of a door or a box. The reward is 1 on the step that fulfils it, else 0.

    Hindsight, in the words of missions, with "a" for "the" where the level had several: "go to the
    red ball" after every step that faces one; "pick up the red ball", "pick up the ball" and "pick
    up the red object" after one that picks it up; "put the red ball next to the blue key" after one
    that drops it there; "open the blue door" and "open the door" after one that opens it.

    Args:
        level: name of the level without "BabyAI-" and version, such as ``"GoToObj"`` or
            ``"PickupDist"``. Default: ``"GoToRedBallNoDists"``.
        tasks: tasks that are mixed in one room, instead of a level; some of ``"go to"``, ``"pick
            up"``, ``"put next to"``, ``"open"`` and ``"unlock"``. Default: None, the level.
        distractors: objects of that room besides those that a mission names. Default: 8.
        room_size: squares along a side of that room, walls included. Default: 8.
        fold: missions of that room, ``"test"`` for those that name a thing of
            ``torchrl_glam.envs.games.babyai_room.HELD_OUT``, ``"train"`` for all others. Default:
            ``"train"``, all that a level has.
        num_envs: B, games side by side. Default: 1.
        seed, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`.

    Raises:
        ValueError: if there is no such level, task or fold, or the room is too small.

    References:
        Carta et al., 2023, "Grounding Large Language Models in Interactive Environments with Online
        Reinforcement Learning": words, held-out missions, and tasks in a room with 8 distractors.
    """
    sizes = {**SOURCES, "max_actions": len(ACTIONS), "goal_bytes": 64, "max_hindsight": 4}
    sizes |= {"goal_kinds": GOAL_KINDS, "kind_of": kind_of, **kwargs}
    check_known("fold", fold, ("train",) if tasks is None else ("train", "test"))
    room = None if tasks is None else (tasks, distractors, room_size, fold)
    games = [TaskRoom(*room) if room else make_level(level) for _ in range(num_envs)]
    games = [BabyAIText(game) for game in games]
    return TextEnvWrapper(games, **sizes, seed=seed)


def kind_of(goal: str) -> int:
    """Index into ``GOAL_KINDS`` of a mission."""
    starts = [goal.startswith(kind.replace("_", " ")) for kind in GOAL_KINDS]
    return starts.index(True) if True in starts else len(GOAL_KINDS) - 1


def make_level(level: str) -> Any:
    """A level of BabyAI by its name; raises ValueError if there is none."""
    names = sorted(name for name in gymnasium.registry if name.startswith("BabyAI-"))
    levels = {name.removeprefix("BabyAI-").rsplit("-v", 1)[0]: name for name in names}
    check_known("level", level, levels)
    return gymnasium.make(levels[level], disable_env_checker=True).unwrapped


class BabyAIText:
    """A game of :func:`make_babyai` in words, in Gymnasium's interface."""

    def __init__(self, game: Any) -> None:
        self.game = game

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; returns the observation and ``info``."""
        with redirect_stdout(None):  # BabyAI tells of missions that it draws again
            seen, _ = self.game.reset(seed=seed)
        # Missions say "the" of what there is once, at the beginning.
        things = [thing for thing in self.game.grid.grid if thing and thing.type in THINGS]
        self._number = Counter(words for t in things for words in _wordings(t.color, t.type))
        self._carried = self.game.carrying
        return self._tell(seen, won=False, reached=[])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does one of the actions."""
        seen, reward, terminated, truncated, _ = self.game.step(ACTIONS.index(action))
        won = bool(terminated and reward > 0)
        observation, info = self._tell(seen, won, self._reached(action))
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

    def _reached(self, action: str) -> list[str]:
        """The missions that the last step fulfils."""
        at, before, carried = self.game.front_pos, self._carried, self.game.carrying
        ahead, self._carried = self.game.grid.get(*at), carried
        reached = []
        if ahead is not None and ahead.type in THINGS:
            reached.append(f"go to {self._named(ahead.color, ahead.type)}")
        if carried is not None and carried is not before:
            wordings = _wordings(carried.color, carried.type)
            reached += [f"pick up {self._named(*words)}" for words in wordings]
        if action == "drop" and before is not None and carried is None:
            put = f"put {self._named(before.color, before.type)} next to"
            beside = [self.game.grid.get(*(at + way)) for way in DIR_TO_VEC]
            near = [thing for thing in beside if thing is not None and thing.type in THINGS]
            reached += [f"{put} {self._named(thing.color, thing.type)}" for thing in near]
        if action == "toggle" and ahead is not None and ahead.type == "door" and ahead.is_open:
            reached += [f"open {self._named(color, 'door')}" for color in (ahead.color, None)]
        return list(dict.fromkeys(reached))

    def _named(self, color: str | None, kind: str) -> str:
        article = "a" if self._number[color, kind] > 1 else "the"
        return " ".join(filter(None, (article, color, kind)))


def _wordings(color: str, kind: str) -> list[tuple[str | None, str]]:
    return [(color, kind), (None, kind), (color, "object")]
