"""ScienceWorld: school experiments with a hundred admissible actions and more; it runs on Java."""

from __future__ import annotations

from typing import Any, Literal

import torch
from scienceworld import ScienceWorldEnv

from torchrl_glam.envs.games.common import Fold, check_fold, side_by_side, tidy
from torchrl_glam.envs.wrapper import TextEnvWrapper


def make_scienceworld(
    task: str = "find-non-living-thing",
    fold: Fold = "train",
    simplifications: str = "easy",
    reward: Literal["success", "score"] = "success",
    num_envs: int = 1,
    max_steps: int = 30,
    seed: int | None = None,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """A task of ScienceWorld (Wang et al., 2022) as a text environment. It needs Java.

    Every episode is a variation of the task. The goal is its description; the observation is the
    room, what is carried, and what the last action gave. The episode ends where the task is
    completed or has failed. There are hundreds of admissible actions: beyond ``max_actions``
    (default 256) some are drawn at random.

    Args:
        task: name of the task. Default: ``"find-non-living-thing"``, one of the shortest.
        fold: variations to play, ``"train"``, ``"dev"`` or ``"test"``. Default: ``"train"``.
        simplifications: as its simulator reads them. Default: ``"easy"``, all of them.
        reward: ``"success"``, 1 on the step that completes the task, else 0; or ``"score"``, what
            a step adds to the score, which then reaches 1. Default: ``"success"``.
        num_envs: B, games side by side in one simulator. Default: 1.
        max_steps: steps after which an episode is truncated. Default: 30.
        seed, device, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`.

    Raises:
        ValueError: if there is no such task, fold, simplification or reward.
    """
    check_fold(fold)
    if reward not in ("success", "score"):
        raise ValueError(f'reward ({reward!r}) must be "success" or "score"')
    first = ScienceWorldEnv("", envStepLimit=1_000_000)
    interface = first._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface
    simulators = side_by_side(first, interface, num_envs)
    sizes = {"max_actions": 256, "overflow": "sample", "keep": "head"}
    sizes |= {"observation_bytes": 2048, "goal_bytes": 512, "action_bytes": 192}
    return TextEnvWrapper(
        [ScienceWorldGame(one, task, fold, simplifications, reward) for one in simulators],
        **{**sizes, **kwargs},
        actions="valid",
        goal="goal",
        success="won",
        max_steps=max_steps,
        seed=seed,
        device=device,
    )


class ScienceWorldGame:
    """A task of :func:`make_scienceworld` in Gymnasium's interface, played by ``simulator``."""

    def __init__(
        self, simulator: ScienceWorldEnv, task: str, fold: str, simplifications: str, reward: str
    ) -> None:
        self.simulator, self._reward = simulator, reward
        self._task, self._simplifications = task, simplifications
        simulator.load(task, 0, simplifications)
        self._variations = list(getattr(simulator, f"get_variations_{fold}")())

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the variation that the seed draws."""
        variation = self._variations[(seed or 0) % len(self._variations)]
        self.simulator.load(self._task, variation, self._simplifications)
        _, info = self.simulator.reset()
        return self._tell("", info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command."""
        feedback, points, done, info = self.simulator.step(action)
        observation, info = self._tell(feedback, info)
        reward = points / 100 if self._reward == "score" else float(info["won"])
        return observation, reward, bool(done or info["won"]), False, info

    def _tell(self, feedback: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        goal = " ".join(info["taskDesc"].removeprefix("Task Description:").split())
        lines = [*info["look"].split("\n"), *info["inv"].split("\n")]
        if feedback.strip() not in info["look"]:
            lines += feedback.split("\n")
        text = "\n".join(tidy(lines))
        return text, {**info, "goal": goal, "won": info["score"] >= 100}
