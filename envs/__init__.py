"""Text environments: Playground-Text, a wrapper for any game, and a check of the text contract.

Games lie in packages of their own, such as :mod:`torchrl_glam.envs.playground`; their names are
found here too, and importing this package loads none of them.
"""

if __name__ != "torchrl_glam.envs":
    raise ImportError(f"{__name__} is no package of its own: import torchrl_glam.envs")

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchrl_glam.envs.action_mask import CandidateActions, CandidateMask
from torchrl_glam.envs.check import check_text_env
from torchrl_glam.envs.layout import TextLayout
from torchrl_glam.envs.wrapper import TextEnvWrapper

if TYPE_CHECKING:
    from torchrl_glam.envs.playground import GoalSpace, OraclePolicy, PlaygroundTextEnv

_GAMES = {
    "torchrl_glam.envs.playground": ("GoalSpace", "OraclePolicy", "PlaygroundTextEnv"),
}

__all__ = [
    "CandidateActions",
    "CandidateMask",
    "GoalSpace",
    "OraclePolicy",
    "PlaygroundTextEnv",
    "TextEnvWrapper",
    "TextLayout",
    "check_text_env",
]


def __getattr__(name: str) -> Any:
    for game, names in _GAMES.items():
        if name in names:
            return getattr(import_module(game), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
