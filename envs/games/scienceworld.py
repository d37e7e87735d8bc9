"""ScienceWorld: school experiments with a hundred admissible actions and more; it runs on Java."""

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

from torchrl_glam._extras import needs
from torchrl_glam.envs.games.common import ROOMS, Fold, check_java, check_known, side_by_side, tidy
from torchrl_glam.envs.wrapper import TextEnvWrapper

with needs("scienceworld", "ScienceWorld"):
    from scienceworld import ScienceWorldEnv

GOAL_KINDS = ("task", "focus", "move", "go")
# What the simulator says of an action that did something, and how goals say it.
_DONE = {
    "You focus on": "Focus on",
    "You teleport to": "Go to",
    "You move to": "Go to",
    "You move": "Move",
}


def make_scienceworld(
    task: str = "find-non-living-thing",
    fold: Fold = "train",
    simplifications: str = "easy",
    reward: Literal["success", "score"] = "success",
    kinds: Sequence[str] | None = None,
    num_envs: int = 1,
    max_steps: int = 30,
    seed: int | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """A task of ScienceWorld (Wang et al., 2022) as a text environment. It needs Java.

    Every episode is a variation of the task. The goal is its description; the observation is the
    room, what is carried, and what the last action gave. The episode ends where the task is
    completed or has failed. There are hundreds of admissible actions: beyond ``max_actions``
    (default 256) some are drawn at random, and ``kinds`` keeps only some kinds of them.

    Hindsight: "Focus on the apple", "Move the apple to the red box", "Move the apple to the
    inventory" and "Go to the kitchen" after steps that did so, and the task when it is done.

    Args:
        task: name of the task. Default: ``"find-non-living-thing"``, one of the shortest.
        fold: variations to play, ``"train"``, ``"dev"`` or ``"test"``. Default: ``"train"``.
        simplifications: as its simulator reads them. Default: ``"easy"``, all of them.
        reward: ``"success"``, 1 on the step that completes the task, else 0; or ``"score"``, what
            a step adds to the score, which then reaches 1; a loss counts as 0. Default:
            ``"success"``.
        kinds: regular expressions, matched at the start of admissible actions, that select the
            candidates, such as ``["teleport to", "focus on", "move .* box$"]``. Where none matches,
            as when the simulator asks which of two things was meant, all are kept. Default: all.
        num_envs: B, games side by side in one simulator. Default: 1.
        max_steps: steps after which an episode is truncated. Default: 30.
        seed, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`.

    Raises:
        ValueError: if there is no such task, fold, simplification or reward.
        FileNotFoundError: if there is no Java.
    """
    check_known("fold", fold, get_args(Fold))
    check_known("reward", reward, ("success", "score"))
    check_java()
    first = ScienceWorldEnv("", envStepLimit=1_000_000)
    interface = first._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface
    simulators = side_by_side(first, interface, num_envs)
    sizes = {**ROOMS, "max_actions": 256, "observation_bytes": 2048, "goal_bytes": 512}
    sizes |= {"action_bytes": 192, "goal_kinds": GOAL_KINDS, "kind_of": kind_of, **kwargs}
    options = (task, fold, simplifications, reward, kinds)
    games = [ScienceWorldGame(one, *options) for one in simulators]
    return TextEnvWrapper(games, **sizes, max_steps=max_steps, seed=seed)


def kind_of(goal: str) -> int:
    """Index into ``GOAL_KINDS`` of a goal."""
    return {"Focus": 1, "Move": 2, "Go": 3}.get(goal.split(" ")[0], 0)


class ScienceWorldGame:
    """A task of :func:`make_scienceworld` in Gymnasium's interface, played by ``simulator``."""

    def __init__(
        self,
        simulator: ScienceWorldEnv,
        task: str,
        fold: str,
        simplifications: str,
        reward: str,
        kinds: Sequence[str] | None = None,
    ) -> None:
        self.simulator, self.close, self._reward = simulator, simulator.close, reward
        try:
            self._kinds = re.compile(kinds if isinstance(kinds, str) else "|".join(kinds or ()))
        except re.error as error:
            raise ValueError(f"kinds ({kinds}) must be regular expressions: {error}") from None
        self._task, self._simplifications = task, simplifications
        simulator.load(task, 0, simplifications)
        self._variations = list(getattr(simulator, f"get_variations_{fold}")())

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the variation that the seed draws."""
        variation = self._variations[(seed or 0) % len(self._variations)]
        self.simulator.load(self._task, variation, self._simplifications)
        _, info = self.simulator.reset()
        return self._tell("", info, [])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command."""
        feedback, points, done, info = self.simulator.step(action)
        said = next((start for start in _DONE if feedback.startswith(f"{start} ")), None)
        reached = [_DONE[said] + feedback.removeprefix(said).split(".")[0]] if said else []
        observation, info = self._tell(feedback, info, reached)
        reward = max(points, 0) / 100 if self._reward == "score" else float(info["won"])
        return observation, reward, bool(done or info["won"]), False, info

    def _tell(
        self, feedback: str, info: dict[str, Any], reached: list[str]
    ) -> tuple[str, dict[str, Any]]:
        goal = " ".join(info["taskDesc"].removeprefix("Task Description:").split())
        lines = [*info["look"].split("\n"), *info["inv"].split("\n")]
        if feedback.strip() not in info["look"]:
            lines += feedback.split("\n")
        text = "\n".join(tidy(lines))
        won, some = info["score"] >= 100, [a for a in info["valid"] if self._kinds.match(a)]
        told = {"goal": goal, "won": won, "reached": reached + [goal] * won}
        return text, {**info, **told, "actions": some or info["valid"]}
