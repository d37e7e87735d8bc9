"""The game Playground-Text: its environment, its goals, and the shortest plans for them."""

from torchrl_glam.envs.playground.env import PlaygroundTextEnv
from torchrl_glam.envs.playground.goals import GoalSpace
from torchrl_glam.envs.playground.oracle import OraclePolicy

__all__ = ["GoalSpace", "OraclePolicy", "PlaygroundTextEnv"]
