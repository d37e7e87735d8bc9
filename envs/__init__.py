"""Text environments, their goals, and the tools that turn their text into tensors."""

from torchrl_glam.envs.action_mask import CandidateActions, CandidateMask
from torchrl_glam.envs.check import check_text_env
from torchrl_glam.envs.goals import GoalSpace
from torchrl_glam.envs.layout import TextLayout
from torchrl_glam.envs.oracle import OraclePolicy
from torchrl_glam.envs.playground import PlaygroundTextEnv
from torchrl_glam.envs.template import PromptTemplate
from torchrl_glam.envs.text import decode_text, encode_text, join_segments
from torchrl_glam.envs.tokenize import TokenizeText
from torchrl_glam.envs.wrapper import GameStep, TextEnvWrapper

__all__ = [
    "CandidateActions",
    "CandidateMask",
    "GameStep",
    "GoalSpace",
    "OraclePolicy",
    "PlaygroundTextEnv",
    "PromptTemplate",
    "TextEnvWrapper",
    "TextLayout",
    "TokenizeText",
    "check_text_env",
    "decode_text",
    "encode_text",
    "join_segments",
]
