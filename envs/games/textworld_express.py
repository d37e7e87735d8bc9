"""TextWorld-Express: coins, maps, chores and more, in a simulator that runs on Java."""

from typing import Any, get_args

from torchrl_glam._extras import needs
from torchrl_glam.envs.games.common import ROOMS, Fold, check_java, check_known, side_by_side, tidy
from torchrl_glam.envs.wrapper import TextEnvWrapper

with needs("textworld-express", "TextWorld-Express"):
    from textworld_express import TextWorldExpressEnv

# What the text of every state tells anyway.
_TOLD = ("inventory", "look around", "task")


def make_textworld_express(
    game: str = "coin",
    params: str = "numLocations=5,includeDoors=0,numDistractorItems=0",
    fold: Fold = "train",
    num_envs: int = 1,
    max_steps: int = 30,
    seed: int | None = None,
    **kwargs: Any,
) -> TextEnvWrapper:
    """A game of TextWorld-Express (Jansen and Côté, 2023) as a text environment. It needs Java.

    Every episode is a new game of its fold. The goal is the game's task; the observation is the
    room, what is carried, and what the last action gave. Commands that only look are left out. The
    reward is 1 on the step that fulfils the task, else 0.

    Hindsight: "Find the kitchen" after a step into it, "Take the coin" after one that takes it.

    Args:
        game: ``"coin"``, ``"mapreader"``, ``"twc"`` or another of its games. Default: ``"coin"``.
        params: the game's settings, as its simulator reads them. Default: five rooms without doors.
        fold: ``"train"``, ``"dev"`` or ``"test"``. Default: ``"train"``.
        num_envs: B, games side by side in one simulator. Default: 1.
        max_steps: steps after which an episode is truncated. Default: 30.
        seed, kwargs: as in :class:`~torchrl_glam.envs.TextEnvWrapper`. Of more than
            ``max_actions`` (default 64) candidates some are drawn at random.

    Raises:
        ValueError: if there is no such game, fold or setting.
        FileNotFoundError: if there is no Java.
    """
    check_known("fold", fold, get_args(Fold))
    check_java()
    first = TextWorldExpressEnv(envStepLimit=max_steps + 1)
    check_known("game", game, first.getGameNames())
    interface = first._gateway.jvm.textworldexpress.runtime.PythonInterface
    simulators = side_by_side(first, interface, num_envs)
    games = [TextWorldExpressGame(simulator, game, params, fold) for simulator in simulators]
    sizes = {**ROOMS, "goal_bytes": 256, **kwargs}
    return TextEnvWrapper(games, **sizes, max_steps=max_steps, seed=seed)


class TextWorldExpressGame:
    """A game of TextWorld-Express in Gymnasium's interface, played by ``simulator``."""

    def __init__(self, simulator: TextWorldExpressEnv, game: str, params: str, fold: str) -> None:
        self.simulator, self.close, self._fold = simulator, simulator.close, fold
        simulator.load(gameName=game, gameParams=params)
        self._seeds = list(getattr(simulator, f"getValidSeeds{fold.capitalize()}")())

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Makes the game of the fold that the seed draws."""
        chosen = self._seeds[(seed or 0) % len(self._seeds)]
        _, info = self.simulator.reset(seed=chosen, gameFold=self._fold)
        self._room = _room(info)
        return self._tell(info, "", [])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command."""
        feedback, _, _, info = self.simulator.step(action)
        room, reached = _room(info), []
        if room != self._room:
            reached.append(f"Find the {room}")
        self._room = room
        if action.startswith("take ") and feedback.startswith("You take"):
            reached.append(f"Take the {action.removeprefix('take ')}")
        observation, info = self._tell(info, feedback, reached)
        return observation, float(info["won"]), info["won"] or info["taskfailure"], False, info

    def _tell(
        self, info: dict[str, Any], feedback: str, reached: list[str]
    ) -> tuple[str, dict[str, Any]]:
        lines = [info["look"], info["inventory"], "" if feedback in info["look"] else feedback]
        actions = sorted(action for action in info["validActions"] if action not in _TOLD)
        more = {
            "actions": actions or list(info["validActions"]),
            "goal": info["taskDescription"],
            "won": info["tasksuccess"],
            "reached": reached,
        }
        return "\n".join(tidy(lines)), info | more


def _room(info: dict[str, Any]) -> str:
    """The room's name, ``kitchen`` of "You are in the kitchen."."""
    return info["look"].split(".")[0].removeprefix("You are in the ")
