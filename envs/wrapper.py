"""Text games that others wrote, as environments of the text contract.

Of a game :class:`TextEnvWrapper` needs

- ``reset() -> observation`` or ``(observation, info)``; if it takes ``seed``, or the game has a
  method ``seed``, every episode gets a seed of its own, from its game's private stream;
- ``step(action) -> (observation, reward, terminated, truncated, info)``, or ``(observation, reward,
  done, info)`` as of old, where ``info["TimeLimit.truncated"]`` tells time-outs.

What is text in it is said by sources: a key of ``info`` (or of the observation, if that is a
mapping), or a function of observation and ``info``.
"""

from __future__ import annotations

import inspect
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from torchrl_glam.envs.layout import TextLayout
from torchrl_glam.text import GameStep

Source = str | Callable[[Any, Mapping[str, Any]], Any]


@dataclass
class _Episode:
    """The episode of one game: how it came about, and what is to be written of its last state."""

    seed: int
    steps: list[GameStep]
    chosen: list[int] = field(default_factory=list)
    goal: str = ""
    observation: str = ""
    actions: list[str] = field(default_factory=list)
    hindsight: list[str] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    success: bool = False


class TextEnvWrapper(EnvBase):
    """Any game that speaks in strings: Gymnasium's interface, or an object with reset and step.

    Candidate actions that are there twice are merged, empty ones left out. At the end of an episode
    a game may list none; those of the state before are written again.

    Notation: B batch shape, none for one game and ``[len(games)]`` for a list; A candidate actions;
    H slots for goals named in hindsight. More games than that, and games in processes of their own,
    by TorchRL's :class:`~torchrl.envs.SerialEnv` and :class:`~torchrl.envs.ParallelEnv`.

    ``state_dict`` holds seeds and actions of the episodes under way; loading it plays them again.

    Args:
        games: a game, or a list of games.
        max_actions: A, places for candidate actions.
        actions: source of the admissible actions, strings. Default: ``"admissible_commands"``.
        observation: source of the observation's text. Default: None, the observation itself.
        goal: source of the goal's text. Default: None, it is ``goal_text``.
        goal_text: the goal, where there is only one. Default: None, ``goal`` tells it.
        success: source of whether the goal is reached, which ends the episode; written as
            ``"success"``. Default: None, the reward tells it: positive on that step alone.
        act: what the game's ``step`` is given for an action's text. Default: the text.
        history: how many of the last actions the observation begins with, for games that do not
            show what was done: ``"Last actions: up, down"``, in a line of its own from the second
            state on. Default: 0, none.
        hindsight: function that gives the texts of the goals which the last step of an episode
            reached, from the list of its steps so far (:class:`~torchrl_glam.text.GameStep`). For
            a game that cannot tell, a :class:`~torchrl_glam.models.GoalJudge`. Default: None, no
            hindsight.
        max_hindsight: H. Default: 8.
        overflow: what happens to more than A candidates: ``"error"``; ``"first"``, the first A are
            kept; ``"sample"``, A of them drawn at random. Default: ``"error"``.
        max_steps: steps after which an episode is truncated. Default: None, the game ends it.
        seed: of the games' private streams. Default: one that ``torch.manual_seed`` determines.
        device: where the tensors live. Default: the CPU.
        **sizes: ``goal_kinds``, ``kind_of``, ``goal_bytes``, ``observation_bytes``,
            ``action_bytes`` and ``keep`` of :class:`~torchrl_glam.envs.TextLayout`.

    Raises:
        ValueError: if an argument is out of range; on a reset or step, if a game lists no action or
            more than A, if a text is not a string or is too long, or an action is not admissible.
        KeyError: if a source is a key that a game does not write.

    Examples:
        >>> from torchrl_glam.text import decode_text
        >>> class Stairs:
        ...     def reset(self):
        ...         self.floor = 0
        ...         return "You are on floor 0"
        ...     def step(self, action):
        ...         self.floor += 1 if action == "up" else -1
        ...         return f"You are on floor {self.floor}", 0.0, self.floor == 2, False, {}
        >>> ways = lambda observation, info: ["up", "down"]
        >>> env = TextEnvWrapper([Stairs()], max_actions=3, actions=ways, goal_text="Climb")
        >>> state = env.reset()
        >>> state["action_mask"]
        tensor([[ True,  True, False]])
        >>> step = env.step(state.set("action", torch.tensor([1])))["next"]
        >>> decode_text(step["observation"])
        ['You are on floor -1']
    """

    def __init__(
        self,
        games: Any,
        *,
        max_actions: int,
        actions: Source = "admissible_commands",
        observation: Source | None = None,
        goal: Source | None = None,
        goal_text: str | None = None,
        success: Source | None = None,
        act: Callable[[str], Any] | None = None,
        history: int = 0,
        hindsight: Callable[[Sequence[GameStep]], Iterable[str]] | None = None,
        max_hindsight: int = 8,
        overflow: Literal["error", "first", "sample"] = "error",
        max_steps: int | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        **sizes: Any,
    ) -> None:
        if (goal is None) == (goal_text is None):
            raise ValueError(
                f"goal ({goal!r}) and goal_text ({goal_text!r}): give one of them, the source of "
                "the goal's text or the only goal there is"
            )
        if overflow not in ("error", "first", "sample"):
            raise ValueError(f'overflow ({overflow!r}) must be "error", "first" or "sample"')
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps ({max_steps}) must be at least 1, or None")
        if history < 0:
            raise ValueError(f"history ({history}) must be 0, for none, or more")
        many = isinstance(games, Sequence)
        if many and not games:
            raise ValueError("games is empty: give one game or more")
        super().__init__(device=device, batch_size=[len(games)] if many else [])
        self.games = list(games) if many else [games]
        self.layout = TextLayout(
            self,
            max_actions=max_actions,
            max_hindsight=max_hindsight if hindsight is not None else 0,
            success=success is not None,
            **sizes,
        )
        self._sources = {"actions": actions, "observation": observation, "goal": goal}
        self._sources["success"] = success
        self._goal_text, self._act, self._hindsight = goal_text, act, hindsight
        self._overflow, self.max_steps, self._history = overflow, max_steps, history
        self._episodes: list[_Episode | None] = [None] * len(self.games)
        self.set_seed(seed)

    @property
    def num_cut(self) -> Counter[str]:
        """Texts cut so far, by the names ``"goal"``, ``"observation"`` and ``"action"``."""
        return self.layout.num_cut

    def __repr__(self) -> str:
        kind = type(getattr(self.games[0], "unwrapped", self.games[0])).__name__
        return (
            f"{type(self).__name__}({len(self.games)} x {kind}, "
            f"max_actions={self.layout.max_actions}, max_hindsight={self.layout.max_hindsight}, "
            f"overflow={self._overflow!r}, keep={self.layout.keep!r}, max_steps={self.max_steps}, "
            f"history={self._history})"
        )

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int:
        """Gives each game a stream of episodes, that of a single game in its place in a batch.

        So the episodes do not hang on which games a ``SerialEnv`` or ``ParallelEnv`` puts together.

        Returns:
            The seed for the environment after this one.
        """
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_())
        self._streams = []  # seed, and number of episodes begun
        for _ in self.games:
            self._streams.append([seed, 0])
            seed = super().set_seed(seed, static_seed)
        return seed

    def _set_seed(self, seed: int | None) -> None:
        """There is nothing beside the streams."""

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        reset = None if tensordict is None else tensordict.get("_reset", None)
        for index in range(len(self.games)):
            if reset is None or reset.view(-1)[index] or self._episodes[index] is None:
                stream = self._streams[index]
                stream[1] += 1
                seed = random.Random(repr(stream)).getrandbits(31)
                self._episodes[index] = self._begin(index, seed)
        return self._write()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chosen, moves = tensordict["action"].view(-1).tolist(), tensordict.get("_step", None)
        rewards = [0.0] * len(self.games)
        for index, action in enumerate(chosen):
            if moves is None or moves.view(-1)[index]:
                rewards[index] = self._advance(index, action)
        return self._write(reward=rewards)

    def _write(self, **rewards: list[float]) -> TensorDict:
        episodes = self._episodes
        ends = {}
        if rewards:
            for end in ("terminated", "truncated"):
                ends[end] = [getattr(episode, end) for episode in episodes]
            ends["success"] = [episode.success for episode in episodes]
        cut = self.num_cut.total()
        packed = self.layout.pack(
            [episode.goal for episode in episodes],
            [episode.observation for episode in episodes],
            [episode.actions for episode in episodes],
            hindsight=[episode.hindsight for episode in episodes],
            **rewards,
            **ends,
        )
        if self.num_cut and not cut:
            slot = next(iter(self.num_cut))
            warnings.warn(
                f"texts are cut ({self.layout.keep} kept), the first one for {slot}_bytes; num_cut "
                "counts them: raise it if what is cut matters",
                stacklevel=2,
            )
        return packed

    # One game

    def _begin(self, index: int, seed: int) -> _Episode:
        game = self.games[index]
        parameters = inspect.signature(game.reset).parameters.values()
        if any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters):
            result = game.reset(seed=seed)
        else:
            if callable(getattr(game, "seed", None)):
                game.seed(seed)
            result = game.reset()
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        observation, info = result if pair else (result, {})
        episode = _Episode(seed, [GameStep(observation, info)])
        self._read(index, episode)
        return episode

    def _advance(self, index: int, chosen: int) -> float:
        episode = self._episodes[index]
        if episode is None or episode.terminated or episode.truncated:
            raise ValueError(f"the episode of environment {index} is over: reset it first")
        if not 0 <= chosen < len(episode.actions):
            listed = ", ".join(f"{i}: {text}" for i, text in enumerate(episode.actions))
            raise ValueError(f"action[{index}] = {chosen} is not admissible, these are: {listed}")
        action = episode.actions[chosen]
        result = self.games[index].step(action if self._act is None else self._act(action))
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        elif len(result) == 4:
            observation, reward, done, info = result
            truncated = done and bool(info.get("TimeLimit.truncated", False))
            terminated = done and not truncated
        else:
            raise ValueError(
                f"step of game {index} ({type(self.games[index]).__name__}) returns {len(result)} "
                "values: they must be (observation, reward, terminated, truncated, info) or "
                "(observation, reward, done, info)"
            )
        episode.chosen.append(chosen)
        episode.steps.append(GameStep(observation, info, action, float(reward)))
        episode.terminated = bool(terminated)
        out_of_time = self.max_steps is not None and len(episode.chosen) >= self.max_steps
        episode.truncated = (bool(truncated) or out_of_time) and not episode.terminated
        self._read(index, episode)
        return float(reward)

    def _read(self, index: int, episode: _Episode) -> None:
        """Takes from the newest step what is to be written."""
        goal = self._goal_text if self._goal_text is not None else self._find(episode, "goal")
        episode.goal = _checked(goal, f"goal[{index}]")
        episode.observation = _checked(self._find(episode, "observation"), f"observation[{index}]")
        told = max(1, len(episode.steps) - self._history)  # the first step is a reset
        last = [step.action for step in episode.steps[told:]]
        if last:
            episode.observation = f"Last actions: {', '.join(last)}\n{episode.observation}"
        over = episode.terminated or episode.truncated
        found = self._find(episode, "actions")
        texts = [_checked(text, f"actions[{index}]") for text in (found or ())]
        distinct = [text for text in dict.fromkeys(texts) if text.strip()]
        if not distinct and not over:
            raise ValueError(
                f"actions[{index}] is empty: the game lists no action, in the state "
                f"{episode.observation!r}. Let actions give one, such as 'wait', or let the game "
                "end there"
            )
        episode.actions = self._limited(index, episode, distinct) if distinct else episode.actions
        if self._sources["success"] is not None and len(episode.steps) > 1:
            episode.success = bool(self._find(episode, "success"))
        if self._hindsight is not None and len(episode.steps) > 1:
            episode.hindsight = list(self._hindsight(episode.steps))

    def _limited(self, index: int, episode: _Episode, actions: list[str]) -> list[str]:
        limit = self.layout.max_actions
        if len(actions) <= limit or self._overflow == "first":
            return actions[:limit]
        if self._overflow == "sample":  # the same ones whenever the episode is played again
            draw = random.Random(f"{episode.seed}, {len(episode.chosen)}")
            return [actions[i] for i in sorted(draw.sample(range(len(actions)), limit))]
        raise ValueError(
            f"actions[{index}] lists {len(actions)} actions, and max_actions is {limit}: raise it, "
            'or say what to leave out (overflow="first" or "sample")'
        )

    def _find(self, episode: _Episode, what: str) -> Any:
        source, step = self._sources[what], episode.steps[-1]
        if source is None:
            return step.observation
        if callable(source):
            return source(step.observation, step.info)
        places = [step.info]
        if isinstance(step.observation, Mapping):
            places.append(step.observation)
        for place in places:
            if source in place:
                return place[source]
        keys = sorted(str(key) for place in places for key in place)
        raise KeyError(
            f"{what}={source!r}: the game writes no such key, it writes {keys}. Name one of them, "
            "or give a function of observation and info"
        )

    # Where the games stand

    def get_extra_state(self) -> dict[str, Any]:
        """Returns streams, seeds and actions of the episodes under way, for ``state_dict``."""
        played = [
            None if episode is None else (episode.seed, list(episode.chosen), episode.observation)
            for episode in self._episodes
        ]
        return {"streams": [list(stream) for stream in self._streams], "episodes": played}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores the streams and plays the episodes under way again.

        Raises:
            ValueError: if a game then stands elsewhere, since it does not follow its seed.
        """
        self._streams = [list(stream) for stream in state["streams"]]
        for index, played in enumerate(state["episodes"]):
            if played is None:
                continue
            seed, chosen, observation = played
            self._episodes[index] = self._begin(index, seed)
            for action in chosen:
                self._advance(index, action)
            if self._episodes[index].observation != observation:
                raise ValueError(
                    f"game {index} ({type(self.games[index]).__name__}) played again from its seed "
                    "stands elsewhere than before: give it a reset(seed=...) that determines it"
                )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the games that can be closed."""
        for game in self.games:
            if callable(getattr(game, "close", None)):
                game.close()
        super().close(raise_if_closed=raise_if_closed)


def _checked(text: Any, what: str) -> str:
    if not isinstance(text, str):
        raise ValueError(
            f"{what} is {type(text).__name__}, {text!r}: it must be a string; give a function of "
            "observation and info that makes one"
        )
    return text.replace("\0", "")
