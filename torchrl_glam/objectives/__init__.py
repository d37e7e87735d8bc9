"""Losses, and the optimisation of what they share."""

from torchrl_glam.objectives.averaging import WeightAverage
from torchrl_glam.objectives.gathering import ClippedAdam, GatheringOptimizer
from torchrl_glam.objectives.networks import ppo_networks
from torchrl_glam.objectives.optim import SharedTrunkOptimizer
from torchrl_glam.objectives.ppo import PPOGLAMLoss
from torchrl_glam.objectives.reduction import (
    GradientReducer,
    LostProcessError,
    UpdateFailedError,
)
from torchrl_glam.objectives.sac import SACGLAMLoss

__all__ = [
    "ClippedAdam",
    "GatheringOptimizer",
    "GradientReducer",
    "LostProcessError",
    "PPOGLAMLoss",
    "SACGLAMLoss",
    "SharedTrunkOptimizer",
    "UpdateFailedError",
    "WeightAverage",
    "ppo_networks",
]
