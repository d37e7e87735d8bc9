"""Losses on a shared language model, and the optimisation of what they share.

The mathematics is in :mod:`torchrl_glam.objectives.functional`: soft value, entropy coefficient,
Munchausen bonus, clipping around a centre. The losses apply it to the heads of one trunk.
"""

from torchrl_glam.objectives.gathering import ClippedAdam, GatheringOptimizer
from torchrl_glam.objectives.optim import SharedTrunkOptimizer
from torchrl_glam.objectives.ppo import PPOGLAMLoss
from torchrl_glam.objectives.reduction import GradientReducer, LostProcessError, UpdateFailedError
from torchrl_glam.objectives.sac import SACGLAMLoss
from torchrl_glam.objectives.trunk import trainable_leaves

__all__ = [
    "ClippedAdam",
    "GatheringOptimizer",
    "GradientReducer",
    "LostProcessError",
    "PPOGLAMLoss",
    "SACGLAMLoss",
    "SharedTrunkOptimizer",
    "UpdateFailedError",
    "trainable_leaves",
]
