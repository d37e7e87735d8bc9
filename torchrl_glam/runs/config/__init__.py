"""Types and ranges of the recipes' configurations; ``recipes/config`` explains every key."""

from torchrl_glam.runs.config.base import ENVIRONMENT, LENGTHS, RecipeConfig, read_config
from torchrl_glam.runs.config.groups import register
from torchrl_glam.runs.config.ppo_glam import PPOGLAMConfig
from torchrl_glam.runs.config.sac_glam import SACGLAMConfig
from torchrl_glam.runs.config.sac_glam_ray import SACGLAMRayConfig
from torchrl_glam.runs.config.viewing import EvaluateConfig, PlayConfig, WatchConfig

__all__ = [
    "ENVIRONMENT",
    "EvaluateConfig",
    "LENGTHS",
    "PPOGLAMConfig",
    "PlayConfig",
    "RecipeConfig",
    "SACGLAMConfig",
    "SACGLAMRayConfig",
    "WatchConfig",
    "read_config",
    "register",
]
