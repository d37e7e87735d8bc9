"""Types and ranges of the recipes' configurations; ``recipes/config`` explains every key."""

from torchrl_glam.training.config.base import MAY_CHANGE_ON_RESUME, RecipeConfig, read_config
from torchrl_glam.training.config.groups import register
from torchrl_glam.training.config.ppo_glam import PPOGLAMConfig
from torchrl_glam.training.config.pretrain import PretrainConfig
from torchrl_glam.training.config.sac_glam import SACGLAMConfig

__all__ = [
    "MAY_CHANGE_ON_RESUME",
    "PPOGLAMConfig",
    "PretrainConfig",
    "RecipeConfig",
    "SACGLAMConfig",
    "read_config",
    "register",
]
