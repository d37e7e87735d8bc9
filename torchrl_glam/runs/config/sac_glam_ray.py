"""Types and ranges of the configuration of SAC-GLAM with collectors apart from the learner."""

import math
from dataclasses import dataclass

import torch.distributed as dist

from torchrl_glam.runs.config.sac_glam import SACGLAMConfig


@dataclass
class SACGLAMRayConfig(SACGLAMConfig):
    """Configuration of ``recipes/sac_glam_ray.py``: that of ``sac_glam.py``, and the keys below.

    ``num_envs`` and ``update_every`` are each collector's. ``max_policy_lag`` left None becomes
    twice what collectors that are faster than the learner lag behind.

    Examples:
        >>> config = SACGLAMRayConfig(num_collectors=3, num_updates=8)
        >>> config.check()
        >>> config.max_policy_lag
        48
        >>> SACGLAMRayConfig(collector_gpus=1.5).check()
        Traceback (most recent call last):
            ...
        ValueError: collector_gpus (1.5) must be at most 1, or a whole number
    """

    # Collectors that work at a time, each with a language model and environments of its own.
    num_collectors: int = 2
    # Most updates that the learner has made since a batch's weights when it stores the batch.
    max_policy_lag: int | None = None
    # CPUs that Ray sets aside for a collector, whose threads these are unless OMP_NUM_THREADS says.
    collector_cpus: float = 1.0
    # The same of GPUs, such as 0.25 for a quarter of one; 0: its language model is on the CPU.
    collector_gpus: float = 0.0
    # Seconds that a collector may take to start, or for a batch, before it is given up for lost.
    collector_timeout: float = 300.0
    # A Ray cluster that runs: host:port, or "auto" for this machine's. null: one is started.
    ray_address: str | None = None

    @property
    def may_change(self) -> tuple[str, ...]:
        """Keys that may differ where a run is resumed, such as where steps are collected."""
        own = ("num_collectors", "max_policy_lag", "collector_cpus", "collector_gpus")
        return (*super().may_change, *own, "collector_timeout", "ray_address")

    def check(self) -> None:
        """Fills in what depends on other keys; see ``RecipeConfig.check``."""
        super().check()
        if dist.is_torchelastic_launched():
            raise ValueError(
                "torchrun starts several learners, and there is one here: start the recipe without "
                "it; num_collectors says how many processes play"
            )
        expected = "be uniform: collectors end episodes that no sampler here is told of"
        self.require("goals", self.goals == "uniform", expected)
        self.require("goal_words", not self.goal_words, expected.replace("uniform", "[]"))
        expected = "be partner: collectors play steps that no judge here learns from"
        self.require("hindsight_by", self.hindsight_by == "partner", expected)
        self.at_least(1, "num_collectors")
        self.at_least(0, "collector_gpus")
        self.above(0, "collector_cpus")
        least = self.num_collectors * self.num_updates
        if self.max_policy_lag is None:
            self.max_policy_lag = 2 * least
        expected = f"be at least num_collectors times num_updates ({least})"
        self.require("max_policy_lag", self.max_policy_lag >= least, expected)
        for key in ("collector_cpus", "collector_gpus"):
            value = getattr(self, key)
            whole = math.isfinite(value) and (value <= 1 or value == int(value))
            self.require(key, whole, "be at most 1, or a whole number")
        expected = "be above 0; inf for no limit"
        self.require("collector_timeout", self.collector_timeout > 0, expected)
        self.filled("ray_address")
