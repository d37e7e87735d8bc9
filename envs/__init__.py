"""The text contract: what a text environment says, and the tools that make tensors of its text.

Games lie in packages of their own, such as :mod:`torchrl_glam.envs.playground`; their names are
found here too, and importing this package loads none of them.
"""

if __name__ != "torchrl_glam.envs":
    raise ImportError(f"{__name__} is no package of its own: import torchrl_glam.envs")

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchrl_glam.envs.action_mask import CandidateActions, CandidateMask
from torchrl_glam.envs.contract import EnvDescription, Oracle, describe_env, token_lengths
from torchrl_glam.envs.template import PromptTemplate
from torchrl_glam.envs.text import decode_text, encode_text, join_segments
from torchrl_glam.envs.tokenize import TokenizeText

if TYPE_CHECKING:
    from torchrl_glam.envs.playground import GoalSpace, OraclePolicy, PlaygroundTextEnv

_GAMES = {
    "torchrl_glam.envs.playground": ("GoalSpace", "OraclePolicy", "PlaygroundTextEnv"),
}

__all__ = [
    "CandidateActions",
    "CandidateMask",
    "EnvDescription",
    "GoalSpace",
    "Oracle",
    "OraclePolicy",
    "PlaygroundTextEnv",
    "PromptTemplate",
    "TokenizeText",
    "decode_text",
    "describe_env",
    "encode_text",
    "join_segments",
    "token_lengths",
]


def __getattr__(name: str) -> Any:
    for game, names in _GAMES.items():
        if name in names:
            return getattr(import_module(game), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
