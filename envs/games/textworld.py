"""TextWorld's challenges, made on the spot."""

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tqdm import tqdm

from torchrl_glam._extras import needs
from torchrl_glam.envs.games.common import ROOMS, check_known, tidy
from torchrl_glam.envs.wrapper import TextEnvWrapper

with needs("textworld", "TextWorld"):
    import textworld
    from textworld.challenges.tw_coin_collector import coin_collector
    from textworld.challenges.tw_cooking import cooking

GOAL_KINDS = ("cook", "find", "take", "prepare")
# Sizes of easy games; see the challenges of TextWorld for what the keys mean.
_SETTINGS = {
    "coin_collector": {"level": 5},
    "cooking": {"recipe": 1, "take": 1, "go": 1, "split": "train"},
}
_KEYS = {"coin_collector": ["level"], "cooking": [*cooking.SKILLS, "split", "recipe_seed"]}
# What the text of every state tells anyway.
_TOLD = ("inventory", "look", "examine ")
_FILE = "tw-game.z8"  # a name by which Jericho knows it


def make_textworld(
    challenge: str = "coin_collector",
    num_envs: int = 1,
    num_games: int = 20,
    first_game: int = 0,
    settings: Mapping[str, Any] | None = None,
    player: Literal["textworld", "jericho"] = "textworld",
    max_steps: int = 30,
    seed: int | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """Games of one of TextWorld's challenges (Côté et al., 2018) as a text environment.

    Every episode plays one of ``num_games`` games, which are made and compiled first (about a
    second each, once: they stay in ``$XDG_CACHE_HOME`` or ``~/.cache``). The goal is "Take the
    coin", or the recipe's meal. The observation is the room's description, what is carried, and
    what the last action gave. Candidates are TextWorld's admissible commands, without those that
    only look: observations show what they tell. The reward is 1 on the step that wins, else 0.

    Hindsight: "Find the kitchen" after a step into it, "Take the coin" after one that takes it, and
    "Prepare a meal of" the recipe's parts once it is ready to be eaten.

    Args:
        challenge: ``"coin_collector"`` or ``"cooking"``. Default: ``"coin_collector"``.
        num_envs: B, games side by side. Default: 1.
        num_games: different games. Default: 20.
        first_game: seed of the first; the next count up, and other seeds are held out. Default: 0.
        settings: of the challenge, added to ``{"level": 5}`` for coins, five rooms in a row, or
            ``{"recipe": 1, "take": 1, "go": 1, "split": "train"}`` for meals. Default: none.
        player: what plays the files, ``"textworld"``, or ``"jericho"`` with the candidates of
            :func:`~torchrl_glam.envs.games.jericho.make_jericho`. Default: ``"textworld"``.
        max_steps: steps after which an episode is truncated. Default: 30.
        seed, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`. Of more than
            ``max_actions`` (default 64) candidates some are drawn at random.

    Raises:
        ValueError: if there is no such challenge, player or setting, TextWorld refuses the
            settings, or ``num_games`` is below 1.
    """
    check_known("challenge", challenge, _SETTINGS)
    if num_games < 1:
        raise ValueError(f"num_games ({num_games}) must be at least 1")
    check_known("player", player, ("textworld", "jericho"))
    chosen = {**_SETTINGS[challenge], **(settings or {})}
    for name in chosen:
        check_known("settings", name, _KEYS[challenge])
    check_known("settings['split']", chosen.get("split", "train"), ("train", "valid", "test"))
    try:
        numbers = tqdm(range(num_games), desc="make games", delay=5)  # no bar for those made before
        files = [_make_game(challenge, chosen, first_game + number) for number in numbers]
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"settings ({chosen}): TextWorld makes no game: {error}") from error
    if player == "jericho":
        from torchrl_glam.envs.games.jericho import make_jericho  # another extra

        goal = files[0][1] if challenge == "coin_collector" else "Prepare and eat the meal"
        options = {"max_steps": max_steps, "seed": seed, **kwargs}
        return make_jericho([file for file, _ in files], num_envs, goal, **options)
    games = [TextWorldGame(files) for _ in range(num_envs)]
    sizes = {**ROOMS, "goal_kinds": GOAL_KINDS, "kind_of": kind_of, **kwargs}
    return TextEnvWrapper(games, **sizes, max_steps=max_steps, seed=seed)


def kind_of(goal: str) -> int:
    """Index into ``GOAL_KINDS`` of a goal."""
    return {"Find": 1, "Take": 2, "Prepare": 3}.get(goal.split()[0], 0)


def _make_game(challenge: str, settings: Mapping[str, Any], seed: int) -> tuple[str, str]:
    """The file and the goal of a game, which is made unless an earlier process has made it."""
    recipe = repr((challenge, sorted(settings.items()), seed, textworld.__version__))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torchrl_glam", "textworld")
    folder = cache.expanduser() / sha256(recipe.encode()).hexdigest()[:20]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # It appears whole or not at all; another process may have been sooner
        with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as part:
            options = textworld.GameOptions()
            options.seeds, options.path = seed, os.path.join(part, _FILE)
            if challenge == "coin_collector":
                game, goal = coin_collector.make(dict(settings), options), "Take the coin"
            else:
                game = cooking.make({"recipe_seed": seed, **settings}, options)
                parts = [" ".join(reversed(words)) for words in game.metadata["ingredients"]]
                goal = f"Cook and eat a meal of {', '.join(parts)}"
            textworld.generator.compile_game(game, options)
            Path(part, "goal").write_text(goal)
            with suppress(OSError):
                os.rename(part, folder)
    return str(folder / _FILE), (folder / "goal").read_text()


class TextWorldGame:
    """Compiled games with their goals, in Gymnasium's interface; the seed draws one to play."""

    def __init__(self, files: list[tuple[str, str]]) -> None:
        self.files = files
        self._wanted = textworld.EnvInfos(
            admissible_commands=True, won=True, lost=True, description=True, inventory=True
        )
        self._loaded: dict[str, textworld.Environment] = {}

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the game that the seed draws; returns the observation and ``info``."""
        file, self._goal = self.files[(seed or 0) % len(self.files)]
        if file not in self._loaded:
            with warnings.catch_warnings():  # of what the interpreter does not know of the game
                warnings.simplefilter("ignore")
                self._loaded[file] = textworld.start(file, self._wanted)
        self.game = self._loaded[file]
        state = self.game.reset()
        self._room = _room(state["description"])
        return self._tell(state, "", [])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command."""
        state, _, done = self.game.step(action)
        observation, info = self._tell(state, state.feedback, self._reached(action, state))
        return observation, float(info["won"]), bool(done or state["lost"]), False, info

    def _reached(self, action: str, state: Mapping[str, Any]) -> list[str]:
        reached, room = [], _room(state["description"])
        if room != self._room:
            reached.append(f"Find the {room.lower()}")
        self._room = room
        thing = action.removeprefix("take ").split(" from ")[0]
        if action.startswith("take ") and thing in state["inventory"]:
            reached.append(f"Take the {thing}")
        if action == "prepare meal" and "a meal" in state["inventory"]:
            reached.append(f"Prepare {self._goal.removeprefix('Cook and eat ')}")
        return reached

    def _tell(
        self, state: Mapping[str, Any], feedback: str, reached: list[str]
    ) -> tuple[str, dict[str, Any]]:
        lines = [_room(state["description"]), *state["description"].split("=-", 1)[1].split("\n")]
        lines += state["inventory"].split("\n")
        if "-= " not in feedback.split(">")[0]:  # else it describes the room
            lines += feedback.strip().split("\n")[:1]
        info = {
            "goal": self._goal,
            "actions": [a for a in state["admissible_commands"] if not a.startswith(_TOLD)],
            "won": bool(state["won"]),
            "reached": reached,
        }
        return "\n".join(tidy(lines)), info

    def close(self) -> None:
        """Ends the games' interpreters."""
        for game in self._loaded.values():
            game.close()
        self._loaded.clear()


def _room(description: str) -> str:
    """The room's name, ``Kitchen`` of ``-= Kitchen =-``."""
    return description.split("=-", 1)[0].strip(" -=\n")
