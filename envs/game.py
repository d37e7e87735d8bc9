"""A game in words as it is played: its episode, and the texts of its last step."""

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_glam.text import GameStep

Source = str | Callable[[Any, Mapping[str, Any]], Any]
GoalFunction = Callable[[torch.Generator, int], Tensor]
_LARGEST_REWARD = 3.4e38  # that float32 holds


def sample_goals(
    sampler: GoalFunction, size: int, count: int, generator: torch.Generator
) -> Tensor:
    """Draws the goals of new episodes from a table of some size, ``int64 [count]``."""
    goal_id = torch.as_tensor(sampler(generator, count), device=generator.device)
    whole = not (goal_id.is_floating_point() or goal_id.dtype == torch.bool)
    fits = goal_id.shape == (count,)
    if not fits or (count and not (whole and 0 <= goal_id.min() <= goal_id.max() < size)):
        raise ValueError(
            f"goal_sampler must return {count} goal id{'s' * (count != 1)} in [0, {size}), got "
            f"{goal_id}"
        )
    return goal_id.long()


class Rules(NamedTuple):
    """How a game is played and read: arguments of :class:`~torchrl_glam.envs.TextEnvWrapper`."""

    actions: Source
    observation: Source | None
    goal: Source | None
    goal_text: str | None
    success: Source | None
    reward: Callable[[GameStep], float] | None
    act: Callable[[str], Any] | None
    history: int
    hindsight: Callable[[Sequence[GameStep]], Iterable[str]] | None
    max_actions: int
    overflow: Literal["error", "first", "sample"]


def _keep(observation: Any, info: Mapping[str, Any], *played: Any) -> GameStep:
    """A step of its own: a game may return the same objects again, changed."""
    info = {key: _own(held) for key, held in info.items()} if type(info) is dict else copy(info)
    return GameStep(_own(observation), info, *played)


def _own(value: Any) -> Any:
    return copy(value) if isinstance(value, (Mapping, list, set, np.ndarray)) else value


class PlayedGame:
    """One game of a wrapper, with the episode that it plays and the texts of its last step."""

    def __init__(self, game: Any, index: int, rules: Rules) -> None:
        self.game, self.index, self.rules = game, index, rules
        self.name = type(getattr(game, "unwrapped", game)).__name__  # beneath Gymnasium's wrappers
        for method in ("reset", "step"):
            if not callable(getattr(game, method, None)):
                raise ValueError(
                    f"games[{index}] ({self.name}) has no method {method}: a game must have reset "
                    "and step"
                )
        self.seed: int | None = None  # of the episode; None before the first one

    @property
    def is_over(self) -> bool:
        """Whether there is no unfinished episode."""
        return self.seed is None or self.terminated or self.truncated

    def begin(self, seed: int, goal: str | None = None) -> None:
        """Starts an episode, in which the game is to pursue a goal if one is given."""
        parameters = inspect.signature(self.game.reset).parameters.values()
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        taken = {p.name for p in parameters}
        told: dict[str, Any] = {}
        if "seed" in taken or takes_any:
            told["seed"] = seed
        elif callable(getattr(self.game, "seed", None)):
            self.game.seed(seed)
        if goal is not None:
            if "goal" not in taken and not takes_any:
                raise ValueError(
                    f"reset of game {self.index} ({self.name}) takes no argument goal: with "
                    "goal_texts it is given the text of the goal to pursue"
                )
            told["goal"] = goal
        result = self.game.reset(**told)
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        observation, info = result if pair else (result, {})
        self.seed, self.pursued, self.steps = seed, goal, [_keep(observation, info)]
        self.actions: list[str] = []
        self.hindsight: list[str] = []
        self.reward, self.terminated, self.truncated, self.success = 0.0, False, False, False
        self._read()

    def candidate(self, action: int) -> str:
        """The text of a candidate action, by its index."""
        if self.is_over:
            raise ValueError(f"the episode of environment {self.index} is over: reset it first")
        if not 0 <= action < len(self.actions):
            listed = ", ".join(f"{i}: {text}" for i, text in enumerate(self.actions))
            raise ValueError(
                f"action[{self.index}] = {action} is not admissible, these are: {listed}"
            )
        return self.actions[action]

    def take(self, action: str, max_steps: int | None) -> None:
        """Plays an action."""
        result = self.game.step(action if self.rules.act is None else self.rules.act(action))
        values = result if isinstance(result, (tuple, list)) else [result]
        if len(values) not in (4, 5) or not isinstance(values[-1], Mapping):
            types = ", ".join(type(value).__name__ for value in values)
            raise ValueError(
                f"step of game {self.index} ({self.name}) returns ({types}): it must return "
                "(observation, reward, terminated, truncated, info) or (observation, reward, done, "
                "info), where info is a mapping"
            )
        observation, reward, terminated, *more, info = values
        terminated = self._flag("terminated", terminated)
        truncated = more[0] if more else info.get("TimeLimit.truncated", False)
        truncated = self._flag("truncated", truncated)
        if not more:  # where done means either
            terminated, truncated = terminated and not truncated, terminated and truncated
        self.steps.append(_keep(observation, info, action, self._number(reward)))
        out_of_time = max_steps is not None and len(self.steps) > max_steps
        self.terminated = terminated
        self.truncated = (truncated or out_of_time) and not terminated
        own = self.rules.reward
        self.reward = self._number(reward if own is None else own(self.steps[-1]))
        if not abs(self.reward) <= _LARGEST_REWARD:  # which NaN is not either
            raise ValueError(
                f"reward[{self.index}] is {self.reward}: it must be a finite number that float32 "
                "holds; reward=... of the wrapper gives others"
            )
        self._read()

    def stand_still(self) -> None:
        """Leaves the episode where it is while other games of the batch move."""
        self.reward, self.success, self.hindsight = 0.0, False, []

    def saved(self) -> dict[str, Any] | None:
        """Seed and actions of the episode, and what is read where it stands."""
        if self.seed is None:
            return None
        return {
            "seed": self.seed,
            "goal": self.pursued,
            "chosen": [step.action for step in self.steps[1:]],
            "observation": self.observation,
            "actions": list(self.actions),
        }

    def restore(self, saved: Mapping[str, Any] | None, max_steps: int | None) -> None:
        """Plays a saved episode again, by the texts of its actions.

        Candidates keep the order in which they were read, however the game lists them now.
        """
        self.seed = None
        if saved is None:
            return
        self.begin(saved["seed"], saved["goal"])
        for action in saved["chosen"]:
            self.take(action, max_steps)
        same_actions = self.is_over or set(saved["actions"]) <= set(self._listed)
        if self.observation != saved["observation"] or not same_actions:
            raise ValueError(
                f"game {self.index} ({self.name}) played again from its seed stands elsewhere than "
                "before: give it a reset(seed=...) that determines it"
            )
        self.actions = list(saved["actions"])

    def _read(self) -> None:
        """Takes what is to be written from the last step."""
        rules, index = self.rules, self.index
        goal = rules.goal_text if self.pursued is None else self.pursued
        self.goal = _text(self._find("goal") if goal is None else goal, f"goal[{index}]")
        self.observation = _text(self._find("observation"), f"observation[{index}]")
        told = max(1, len(self.steps) - rules.history)  # the first step is a reset
        if last := [step.action for step in self.steps[told:]]:
            self.observation = f"Last actions: {', '.join(last)}\n{self.observation}"
        texts = _texts(self._find("actions"), f"actions[{index}]")
        self._listed = [text for text in dict.fromkeys(texts) if text.strip()]
        if not self._listed and not self.is_over:
            raise ValueError(
                f"actions[{index}] is empty: the game lists no action, in the state "
                f"{self.observation!r}. Let actions give one, such as 'wait', or let the game end "
                "there"
            )
        self.actions = self._limited() if self._listed else self.actions
        if len(self.steps) > 1:
            if rules.success is not None:
                self.success = self._flag("success", self._find("success"))
            if rules.hindsight is not None:
                self.hindsight = _texts(rules.hindsight(self.steps), f"hindsight[{index}]")

    def _limited(self) -> list[str]:
        limit, listed = self.rules.max_actions, self._listed
        if len(listed) <= limit or self.rules.overflow == "first":
            return listed[:limit]
        if self.rules.overflow == "sample":  # the same ones whenever the episode is played again
            draw = random.Random(f"{self.seed}, {len(self.steps) - 1}")
            return [listed[i] for i in sorted(draw.sample(range(len(listed)), limit))]
        raise ValueError(
            f"actions[{self.index}] lists {len(listed)} actions, and max_actions is {limit}: raise "
            'it, or say what to leave out (overflow="first" or "sample")'
        )

    def _find(self, what: str) -> Any:
        source, step = getattr(self.rules, what), self.steps[-1]
        if source is None:
            return step.observation
        if callable(source):
            return source(step.observation, step.info)
        places = [step.info, step.observation if isinstance(step.observation, Mapping) else {}]
        for place in places:
            if source in place:
                return place[source]
        keys = sorted(str(key) for place in places for key in place)
        raise ValueError(
            f"{what}={source!r}: the game writes no such key, it writes {keys}. Name one of them, "
            "or give a function of observation and info"
        )

    def _number(self, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError):
            raise ValueError(f"reward[{self.index}] is {reward!r}: it must be a number") from None

    def _flag(self, what: str, value: Any) -> bool:
        try:
            return bool([False, True].index(value))
        except (ValueError, RuntimeError):  # by which tensors of several values are refused
            raise ValueError(
                f"{what}[{self.index}] is {type(value).__name__}, {value!r}: it must be True or "
                "False"
            ) from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"{what} is {type(value).__name__}, {value!r}: it must be a string; give a function of "
            "observation and info that makes one"
        )
    return value.replace("\0", "")


def _texts(values: Any, what: str) -> list[str]:
    """A list of strings that reach the game, or the goals' judge, as they are."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        if not values:  # None, as there are none
            return []
        kind = type(values).__name__
        raise ValueError(f"{what} is {kind}, {values!r}: it must be a list of strings")
    texts = list(values)
    for text in texts:
        if _text(text, what) != text:
            raise ValueError(f"{what} holds {text!r}: leave the zero byte out, which is padding")
    return texts
