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
know nothing of one another go through :func:`number_trajectories` first. ``buffer.state_dict()``
holds all that a resumed run needs: rows, cursor, sampler, generator and steps of unfinished
episodes. With :class:`torchrl.checkpoint.Checkpoint`, register the buffer with
``StateDictCheckpointAdapter()``: the default, ``buffer.dumps``, fails before the first episode has
ended and uses pickle.

The strategies of :class:`HindsightTransform` are those of Hindsight Experience Replay (Andrychowicz
et al., 2017, section 4.5), with goals that a partner names instead of goals read off states:

- ``"future"``: every step with the goals named after it or after a later one. If the same goal was
  named before, after step s, a copy begins at s + 1: step s has reached it, so no reward of 0 would
  be true there.
- ``"final"``: every step with the goals reached at the end. A partner does not name a goal after
  every step, so the end is the last step after which any goal but the pursued one was named; the
  steps after it are not repeated.
- ``"episode"``: as "future" and, for a goal that is not named again after step t, the steps from
  t + 1 to the episode's end too, where this goal is not reached: at the end ``truncated``, or
  ``terminated`` if the episode ended in a terminal state without reward. It needs a partner that
  names a goal after every step that reaches it.

The goal pursued is no hindsight, even if it is named, and a goal is used once with a step.
TorchRL's HERReplayBuffer relabels when it samples, one step with one achieved goal: it cannot be
followed by n-step returns, leaves ``terminated`` False on relabelled successes, and knows no social
partner.
"""

from torchrl_glam.replay.goal_sampler import GoalBalancedSampler
from torchrl_glam.replay.hindsight import HindsightTransform
from torchrl_glam.replay.multi_step import SegmentMultiStepTransform
from torchrl_glam.replay.rollout import SubgoalFilter, close_rollout
from torchrl_glam.replay.samplers import GoalKindSampler, HindsightRatioSampler
from torchrl_glam.replay.workers import number_trajectories, unfinished_trajectories

__all__ = [
    "GoalBalancedSampler",
    "GoalKindSampler",
    "HindsightRatioSampler",
    "HindsightTransform",
    "SegmentMultiStepTransform",
    "SubgoalFilter",
    "close_rollout",
    "number_trajectories",
    "unfinished_trajectories",
]
