"""The parts of a replay buffer that a configuration chooses: storage and sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchrl.data import LazyTensorStorage, RandomSampler
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.envs import EnvBase

from torchrl_glam.replay import CompactStorage, GoalKindSampler, HindsightRatioSampler
from torchrl_glam.training.config import SACGLAMConfig
from torchrl_glam.training.storage import DiskStorage, check_room


def make_storage(config: SACGLAMConfig, env: EnvBase, folder: Path) -> TensorStorage:
    """The replay buffer's storage that the configuration asks for.

    Args:
        config: the run's configuration.
        env: the environment, whose steps tell how large a transition is.
        folder: the run's; with ``storage: memmap``, transitions lie in its folder ``replay`` until
            the run ends.

    Raises:
        ValueError: if ``capacity`` transitions have no room in memory, or on the disk.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=1, text=False)
        >>> make_storage(SACGLAMConfig(storage="compact", capacity=500), env, Path("runs"))
        CompactStorage(len=0, max_size=500)
    """
    check_room(config.storage, config.capacity, env, folder)
    if config.storage == "memmap":
        return DiskStorage(config.capacity, folder / "replay")
    kinds = {"ram": LazyTensorStorage, "compact": CompactStorage}
    return kinds[config.storage](config.capacity)


def make_sampler(config: SACGLAMConfig, goal_kind_prior: Sequence[float] | None = None) -> Sampler:
    """The replay buffer's sampler that the configuration asks for.

    Args:
        config: the run's configuration.
        goal_kind_prior: how often the environment pursues each kind of goals, see
            :class:`~torchrl_glam.envs.EnvDescription`. Default: None, unknown.

    Examples:
        >>> make_sampler(SACGLAMConfig(hindsight_ratio=0.3))
        HindsightRatioSampler(ratio=0.3)
    """
    if config.sampling == "uniform" or not config.hindsight:
        return RandomSampler()
    if config.sampling == "ratio":
        return HindsightRatioSampler(config.hindsight_ratio)
    ratio = config.hindsight_ratio if "ratio" in config.sampling else None
    return GoalKindSampler(goal_kind_prior, ratio)
