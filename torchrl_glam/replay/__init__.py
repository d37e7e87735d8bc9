"""Replay: hindsight relabelling, n-step returns and samplers for TorchRL's replay buffers.

A buffer as in SAC-GLAM (Gaven et al., 2024, section 2.3, Appendix E and F): 3-step returns over
episodes and their relabelled copies, half of each batch hindsight. Inverse transforms run from last
to first, so the hindsight transform stands after the n-step one.

Examples:
    >>> import torch
    >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    >>> from torchrl.envs.transforms import Compose
    >>> capacity = 100_000
    >>> buffer = TensorDictReplayBuffer(
    ...     storage=LazyTensorStorage(capacity),
    ...     sampler=HindsightRatioSampler(ratio=0.5),
    ...     transform=Compose(
    ...         SegmentMultiStepTransform(n_steps=3, gamma=0.99),
    ...         HindsightTransform(capacity=capacity),
    ...     ),
    ...     batch_size=256,
    ...     generator=torch.Generator().manual_seed(0),
    ... )

``buffer.extend`` then takes a collector's batches as they come; those of several collectors that
each number trajectories from 0 go through :func:`number_trajectories` first.
``buffer.state_dict()`` holds rows, pending steps, sampler and generators. If a resumed run begins
new episodes, call the transform's ``clear()`` first. With :class:`torchrl.checkpoint.Checkpoint`,
register the buffer with ``StateDictCheckpointAdapter()``: the default fails before the first
episode has ended.

TorchRL's HERReplayBuffer relabels when it samples, one step with one achieved goal: it cannot be
followed by n-step returns, leaves ``terminated`` False on relabelled successes, and knows no social
partner.
"""

from torchrl_glam.replay.hindsight import HindsightTransform
from torchrl_glam.replay.multi_step import SegmentMultiStepTransform
from torchrl_glam.replay.noise import TokenNoise
from torchrl_glam.replay.rollout import SubgoalFilter, close_rollout
from torchrl_glam.replay.samplers import GoalBalancedSampler, GoalKindSampler, HindsightRatioSampler
from torchrl_glam.replay.trajectories import number_trajectories, unfinished_trajectories

__all__ = [
    "GoalBalancedSampler",
    "GoalKindSampler",
    "HindsightRatioSampler",
    "HindsightTransform",
    "SegmentMultiStepTransform",
    "SubgoalFilter",
    "TokenNoise",
    "close_rollout",
    "number_trajectories",
    "unfinished_trajectories",
]
