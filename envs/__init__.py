"""Text environments: Playground-Text, a wrapper for any game, and a check of the text contract.

Games that others wrote lie in ``torchrl_glam.envs.games``, each an extra.
"""

if __name__ != "torchrl_glam.envs":
    raise ImportError(f"{__name__} is no package of its own: import torchrl_glam.envs")

from torchrl_glam.envs.action_mask import CandidateActions, CandidateMask
from torchrl_glam.envs.check import check_text_env
from torchrl_glam.envs.layout import TextLayout
from torchrl_glam.envs.playground import GoalSpace, OraclePolicy, PlaygroundTextEnv
from torchrl_glam.envs.wrapper import TextEnvWrapper

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
