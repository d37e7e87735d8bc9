"""The replay buffer that a configuration asks for, and its parts: storage, transforms, sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.envs import EnvBase
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import (
    GoalBalancedSampler,
    GoalKindSampler,
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)
from torchrl_glam.runs.config import SACGLAMConfig


def make_buffer(
    config: SACGLAMConfig,
    env: EnvBase,
    folder: Path,
    goal_kind_prior: Sequence[float] | None = None,
    *,
    name: str = "replay",
) -> TensorDictReplayBuffer:
    """The replay buffer: hindsight relabelling, then n-step returns, as episodes come in.

    Args:
        config: the run's configuration.
        env: the environment.
        folder: the run's, see :func:`make_storage`.
        goal_kind_prior: see :func:`make_sampler`. Default: None, unknown.
        name: see :func:`make_storage`. Default: ``"replay"``.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=1, text=False)
        >>> buffer = make_buffer(SACGLAMConfig(hindsight=False), env, Path("runs"))
        >>> buffer.batch_size, len(buffer)
        (128, 0)
    """
    hindsight = HindsightTransform(
        config.hindsight_relabel if config.hindsight else "none",
        strategy=config.hindsight_strategy,
        goals_per_episode=config.hindsight_goals_per_episode,
        goals_per_transition=config.hindsight_goals_per_transition,
        seed=config.seed,
        capacity=config.capacity,
    )
    return TensorDictReplayBuffer(
        storage=make_storage(config, env, folder, name),
        sampler=make_sampler(config, goal_kind_prior),
        # inverse transforms run last to first
        transform=Compose(SegmentMultiStepTransform(config.n_step, config.gamma), hindsight),
        batch_size=config.batch_size,
        generator=torch.Generator().manual_seed(config.seed),
    )


def make_storage(
    config: SACGLAMConfig, env: EnvBase, folder: Path, name: str = "replay"
) -> TensorStorage:
    """The replay buffer's storage that the configuration asks for.

    Args:
        config: the run's configuration.
        env: the environment.
        folder: the run's.
        name: with ``storage: memmap``, transitions lie in the run's folder of this name until the
            run ends. Default: ``"replay"``.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=1, text=False)
        >>> make_storage(SACGLAMConfig(capacity=500), env, Path("runs")).max_size
        500
    """
    if config.storage == "memmap":
        return LazyMemmapStorage(config.capacity, scratch_dir=folder / name)
    return LazyTensorStorage(config.capacity)


def make_sampler(config: SACGLAMConfig, goal_kind_prior: Sequence[float] | None = None) -> Sampler:
    """The replay buffer's sampler that the configuration asks for.

    Args:
        config: the run's configuration.
        goal_kind_prior: how often the environment pursues each kind of goals, see
            :class:`~torchrl_glam.text.EnvDescription`. Default: None, unknown.

    Examples:
        >>> make_sampler(SACGLAMConfig(hindsight_ratio=0.3))
        HindsightRatioSampler(ratio=0.3)
    """
    if config.sampling == "uniform" or not config.hindsight:
        return RandomSampler()
    if config.sampling == "ratio":
        return HindsightRatioSampler(config.hindsight_ratio)
    ratio = config.hindsight_ratio if "ratio" in config.sampling else None
    kind = GoalBalancedSampler if "goals" in config.sampling else GoalKindSampler
    return kind(goal_kind_prior, ratio)
