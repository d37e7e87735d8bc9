"""ALFWorld: chores in rooms, of its data or of games made on the spot."""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torchrl_glam._extras import needs
from torchrl_glam.envs.games.alfworld_games import FOLDS, TASKS, Game, find_games, wordings
from torchrl_glam.envs.games.common import ROOMS, check_known, tidy
from torchrl_glam.envs.wrapper import TextEnvWrapper

with needs("alfworld", "ALFWorld"):
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

GOAL_KINDS = (*TASKS, "other")
_PICK, _LOOK, _CLEAN, _HEAT, _COOL, _TWO = TASKS
_STATES = {_CLEAN: "isclean", _HEAT: "ishot", _COOL: "iscool"}
# What the text of every state tells anyway.
_TOLD = ("inventory", "look", "help", "examine ")


def make_alfworld(
    data: str | os.PathLike[str] | None = None,
    fold: Literal["train", "valid_seen", "valid_unseen"] = "train",
    tasks: Sequence[str] | None = None,
    num_envs: int = 1,
    num_games: int | None = None,
    max_steps: int = 50,
    seed: int | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """Text games of ALFWorld (Shridhar et al., 2021) as a text environment.

    The goal is the task, "put a clean apple in fridge". The observation is what the last action
    gave, at first the places of the room, and what is carried, "a clean apple 1". Commands that
    only look are left out. The reward is 1 on the step that wins the game, else 0.

    Hindsight: every task that a step fulfils, in both of its wordings. A game's file is code, as
    Python evaluates parts of its grammar: play only files that you trust.

    Args:
        data: folder that ``alfworld-download`` filled, ``json_2.1.1/train`` and so on; or
            ``"made"``, games made on the spot. Default: the environment variable
            ``ALFWORLD_DATA``, or ``~/.cache/alfworld``.
        fold: ``"train"``, ``"valid_seen"``, in the same rooms, or ``"valid_unseen"``, in others.
            Default: ``"train"``.
        tasks: families of tasks to play, of ``TASKS``. Default: None, all six.
        num_envs: B, games side by side. Each has a copy of the planner, 34 MB in the temporary
            folder. Default: 1.
        num_games: the most games to play, always the same. Default: None, all, or 60 made ones.
        max_steps: steps after which an episode is truncated. Default: 50.
        seed, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`. Of more than
            ``max_actions`` (default 64) candidates some are drawn at random.

    Raises:
        ValueError: if an argument is none of these, or ALFWorld cannot play a file.
        FileNotFoundError: if there are no games.

    Examples:
        >>> make_alfworld("made", num_envs=2).batch_size
        torch.Size([2])
    """
    tasks = tuple(tasks or TASKS)
    check_known("fold", fold, FOLDS)
    for task in tasks:
        check_known("tasks", task, TASKS)
    if num_games is not None and num_games < 1:
        raise ValueError(f"num_games ({num_games}) must be at least 1, or None")
    games = find_games(str(data or os.environ["ALFWORLD_DATA"]), fold, tasks, num_games)
    played = [ALFWorldGame(games) for _ in range(num_envs)]
    sizes = {**ROOMS, "max_hindsight": 8, "goal_kinds": GOAL_KINDS, "kind_of": kind_of, **kwargs}
    return TextEnvWrapper(played, **sizes, max_steps=max_steps, seed=seed)


def kind_of(goal: str) -> int:
    """Index into ``GOAL_KINDS`` of a goal; one in a person's own words is ``"other"``."""
    fits = [any(re.fullmatch(w, goal) for w in wordings(task, r"\w+", r"\w+")) for task in TASKS]
    return [*fits, True].index(True)


class ALFWorldGame:
    """Games in Gymnasium's interface; the seed draws one to play."""

    def __init__(self, games: Sequence[Game]) -> None:
        wanted = textworld.EnvInfos(admissible_commands=True, won=True, facts=True)
        self.games, self.engine = games, AlfredDemangler(PddlEnv(wanted))

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the game that the seed draws; returns the observation and ``info``."""
        game, arguments = self.games[(seed or 0) % len(self.games)], sys.argv
        try:
            self.engine.load(game)
            state = self.engine.reset()
            room, goal = state["feedback"].split("=-")[-1].split("Your task is to: ")
        except (Exception, SystemExit) as error:  # by which the planner's reader may end
            raise ValueError(f"ALFWorld cannot play {game}: {error!r}") from error
        finally:
            sys.argv = arguments  # the planner puts its own there
        self._goal, self._done = goal.strip(" .\n"), None
        return self._tell(state, room)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command."""
        state, _, over = self.engine.step(action)
        observation, info = self._tell(state, state["feedback"])
        return observation, float(info["won"]), bool(over), False, info

    def _tell(self, state: Mapping[str, Any], feedback: str) -> tuple[str, dict[str, Any]]:
        facts = defaultdict(set)
        for fact in state["facts"]:
            facts[fact.name].add(tuple(thing.name.strip() for thing in fact.arguments))
        before, self._done = self._done, _fulfilled(facts)
        info = {
            "goal": self._goal,
            "actions": [a for a in state["admissible_commands"] if not a.startswith(_TOLD)],
            "won": bool(state["won"]),
            "reached": [] if before is None else sorted(self._done - before),
        }
        carried = "nothing"
        for _, thing in facts["holds"]:
            states = [state[2:] for state in _STATES.values() if (thing,) in facts[state]]
            carried = " ".join(["a", *states, thing])
        lines = [*feedback.split("\n"), f"You are carrying: {carried}."]
        return "\n".join(tidy(lines)), info


def _fulfilled(facts: Mapping[str, set[tuple[str, ...]]]) -> set[str]:
    """The tasks that a state fulfils, in all wordings."""
    done, (here,) = set(), [spot for _, spot in facts["atlocation"]]
    kinds_inside = [(thing.split()[0], place) for thing, place in facts["inreceptacle"]]
    for thing, place in facts["inreceptacle"]:
        kinds = thing.split()[0], place.split()[0]  # apple and fridge of "apple 1" and "fridge 1"
        tasks = [_PICK, *(task for task, state in _STATES.items() if (thing,) in facts[state])]
        tasks += [_TWO] if kinds_inside.count((kinds[0], place)) > 1 else []
        done |= {(task, *kinds) for task in tasks}
        if (thing,) in facts["istoggled"] and (place, here) in facts["receptacleatlocation"]:
            done |= {(_LOOK, held.split()[0], kinds[0]) for _, held in facts["holds"]}
    return {words for each in done for words in wordings(*each)}
