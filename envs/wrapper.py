"""Text games that others wrote, as environments of the text contract."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from torchrl_glam.envs.game import GoalFunction, PlayedGame, Rules, Source, sample_goals
from torchrl_glam.envs.layout import TextLayout
from torchrl_glam.text import GameStep


class TextEnvWrapper(EnvBase):
    """Makes an environment of a text game: Gymnasium's, or any object with ``reset`` and ``step``.

    The game must have

    - ``reset() -> observation`` or ``(observation, info)``; if it takes ``seed``, or the game has a
      method ``seed``, every episode gets its own seed, from a private stream of its game;
    - ``step(action) -> (observation, reward, terminated, truncated, info)``, or ``(observation,
      reward, done, info)``, where ``info["TimeLimit.truncated"]`` tells time-outs.

    A source is a key of ``info`` (or of the observation, if that is a mapping), or a function of
    observation and ``info``. Duplicate candidate actions are merged and empty ones left out. A game
    may list none at the end of an episode: those of the state before are then written again. Games
    where ``"_step"`` is False stand still. ``state_dict`` holds the seeds and actions of unfinished
    episodes; loading it plays them again.

    Notation: A candidate actions; H slots for goals named in hindsight.

    Args:
        games: a game, for a batch size of ``[]``, or a list of different instances.
        max_actions: A, the most candidate actions of a state.
        actions: source of the admissible actions, strings. Default: ``"admissible_commands"``.
        observation: source of the observation's text. Default: None, the observation itself.
        goal: source of the goal's text. Default: None, it is ``goal_text``.
        goal_text: the goal, where there is only one. Default: None, ``goal`` tells it.
        goal_texts: table of goals, one of which each episode pursues: the game's ``reset`` takes
            its text as ``goal``. Default: None, ``goal`` or ``goal_text`` tells the goal.
        goal_sampler: function of a generator and a number ``n`` that returns the ids of goals of
            the table for ``n`` new episodes, ``int64 [n]``; see :mod:`torchrl_glam.goals`. Default:
            uniform sampling, by the episode's seed.
        success: source of whether the goal is reached (True or False), with which the game ends its
            episode; written as ``"success"``. Default: None, the reward tells it: it is positive on
            that step alone.
        reward: function of a step that gives its reward, for games whose rewards are not from 0
            to 1, such as ``lambda step: float(step.info["won"])``. Default: None, the game's own.
        act: function from an action's text to what the game's ``step`` takes. Default: the text.
        history: number of last actions that the observation begins with, in a line such as ``"Last
            actions: up, down"``, for games that do not show what was done. For what was seen, too,
            see ``memory`` of :class:`~torchrl_glam.text.TokenizeText`. Default: 0.
        hindsight: function that gives the texts of the goals which the last step of an episode
            reached, from the list of its steps (:class:`~torchrl_glam.text.GameStep`), such as a
            :class:`~torchrl_glam.models.GoalJudge`. Default: None, no hindsight.
        max_hindsight: H. Default: 8.
        overflow: what to do with more than A candidates: ``"error"``; ``"first"``, keep the first
            A; ``"sample"``, draw A at random. Default: ``"error"``.
        max_steps: steps after which an episode is truncated. Default: None, the game ends it.
        seed: of the games' private streams. Default: one that ``torch.manual_seed`` determines.
        device: where the tensors live. Default: the CPU.
        **sizes: ``goal_kinds``, ``kind_of``, ``goal_bytes``, ``observation_bytes``,
            ``action_bytes`` and ``keep`` of :class:`~torchrl_glam.envs.TextLayout`.

    Attributes:
        num_cut: texts cut so far, as of :class:`~torchrl_glam.envs.TextLayout`.

    Raises:
        ValueError: if an argument is out of range, a game lacks ``reset`` or ``step`` or is listed
            twice; on a reset or step, if a game returns something else, lists no action or more
            than A, if a text is not a string or is too long, if a reward is not finite, a source is
            a key that a game does not write, or an action is not admissible.

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
        goal_texts: Sequence[str] | None = None,
        goal_sampler: GoalFunction | None = None,
        success: Source | None = None,
        reward: Callable[[GameStep], float] | None = None,
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
        if [goal, goal_text, goal_texts].count(None) != 2:
            raise ValueError(
                f"goal ({goal!r}), goal_text ({goal_text!r}) and goal_texts ({goal_texts!r}): give "
                "one of them, the source of the goal's text, the only goal there is, or a table"
            )
        if goal_sampler is not None and goal_texts is None:
            raise ValueError("goal_sampler needs goal_texts, the table of goals that it draws from")
        judged = getattr(hindsight, "goals", ())  # of a GoalJudge
        others = [] if callable(judged) or goal_texts is None else {*judged} - {*goal_texts}
        if others:
            raise ValueError(
                f"hindsight names {len(others)} goals that are not in goal_texts, such as "
                f"{min(others)!r}: give the judge goals of the table"
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
        played = [id(getattr(game, "unwrapped", game)) for game in self.games]
        for index, game in enumerate(played):
            if (other := played.index(game)) != index:
                raise ValueError(
                    f"games[{index}] is games[{other}], and one game cannot play two episodes at "
                    "once: make an instance for each"
                )
        self.layout = TextLayout(
            self,
            max_actions=max_actions,
            max_hindsight=max_hindsight if hindsight is not None else 0,
            success=success is not None,
            goal_texts=goal_texts,
            **sizes,
        )
        self.goal_sampler = goal_sampler
        if goal_texts is not None and goal_sampler is None:
            self.goal_kind_prior = [*map(self.goal_kind_ids.count, range(len(self.goal_kinds)))]
        self.num_cut = self.layout.num_cut
        rules = Rules(
            actions=actions,
            observation=observation,
            goal=goal,
            goal_text=goal_text,
            success=success,
            reward=reward,
            act=act,
            history=history,
            hindsight=hindsight,
            max_actions=max_actions,
            overflow=overflow,
        )
        self._played = [PlayedGame(game, index, rules) for index, game in enumerate(self.games)]
        self.max_steps = max_steps
        self.set_seed(seed)

    def __repr__(self) -> str:
        rules = self._played[0].rules
        return (
            f"{type(self).__name__}({len(self.games)} x {self._played[0].name}, "
            f"max_actions={self.layout.max_actions}, max_hindsight={self.layout.max_hindsight}, "
            f"overflow={rules.overflow!r}, keep={self.layout.keep!r}, max_steps={self.max_steps}, "
            f"history={rules.history})"
        )

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int:
        """Gives each game its own stream of episodes, however games are divided into processes.

        Returns the seed for the environment after this one.
        """
        seed = int(torch.empty((), dtype=torch.int64).random_() if seed is None else seed)
        self._streams = []  # seed, and number of episodes begun
        for _ in self.games:
            self._streams.append([seed, 0])
            seed = super().set_seed(seed, static_seed)
        return seed

    def _set_seed(self, seed: int | None) -> None:
        """Does nothing: all randomness comes from the streams."""

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        reset = None if tensordict is None else tensordict.get("_reset", None)
        for index, played in enumerate(self._played):
            if reset is None or reset.view(-1)[index] or played.seed is None:
                stream = self._streams[index]
                stream[1] += 1
                seed = random.Random(repr(stream)).getrandbits(31)
                played.begin(seed, self._choose_goal(seed))
        return self._pack()

    def _choose_goal(self, seed: int) -> str | None:
        """The goal of a new episode, where there is a table."""
        texts = getattr(self, "goal_texts", None)
        if texts is None:
            return None
        generator = torch.Generator().manual_seed(seed)
        if self.goal_sampler is None:
            return texts[int(torch.randint(len(texts), (1,), generator=generator))]
        return texts[int(sample_goals(self.goal_sampler, len(texts), 1, generator))]

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chosen, moves = tensordict["action"].view(-1).tolist(), tensordict.get("_step", None)
        moving = [True] * len(chosen) if moves is None else moves.view(-1).tolist()
        turns = list(zip(self._played, chosen, moving, strict=True))
        # All are looked up before any is played: a refused action moves no game.
        texts = [played.candidate(action) if moves else None for played, action, moves in turns]
        for played, text in zip(self._played, texts, strict=True):
            if text is None:
                played.stand_still()
            else:
                played.take(text, self.max_steps)
        return self._pack("reward", "terminated", "truncated", "success")

    def _pack(self, *ends: str) -> TensorDict:
        entries = ("goal", "observation", "actions", "hindsight", *ends)
        return self.layout.pack(
            **{entry: [getattr(game, entry) for game in self._played] for entry in entries}
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Returns the streams, and seed and actions of each game's episode, for ``state_dict``."""
        streams = [list(stream) for stream in self._streams]
        return {"streams": streams, "episodes": [game.saved() for game in self._played]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores the streams and plays the episodes again up to where they stood."""
        if (number := len(state["episodes"])) != len(self.games):
            raise ValueError(f"the state has {number} games, expected {len(self.games)}")
        self._streams = [list(stream) for stream in state["streams"]]
        for played, saved in zip(self._played, state["episodes"], strict=True):
            played.restore(saved, self.max_steps)
        if None not in state["episodes"]:
            self._pack()  # for the action spec's mask

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the games that can be closed."""
        for game in self.games:
            if callable(getattr(game, "close", None)):
                game.close()
        super().close(raise_if_closed=raise_if_closed)
