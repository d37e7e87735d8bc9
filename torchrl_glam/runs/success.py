"""Success rates and their intervals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

ALL = "all"
"""The goal kind that stands for all of them together."""


@dataclass(frozen=True)
class Result:
    """Success of a policy on goals of one kind.

    Args:
        policy: its name.
        split: of the goals.
        objects: in a scene; 0 where there is no such number.
        kind: of the goals, or ``"all"``.
        episodes, successes: numbers of them.
        length: mean steps of an episode.
        by_agent: success of each of several agents that this is the mean of. Default: of one.

    Examples:
        >>> result = Result("agent", "train", 3, "all", episodes=10, successes=9, length=4.2)
        >>> result.success, [round(end, 3) for end in result.interval]
        (0.9, [0.596, 0.982])
    """

    policy: str
    split: str
    objects: int
    kind: str
    episodes: int
    successes: int
    length: float
    by_agent: tuple[float, ...] = ()

    @property
    def success(self) -> float:
        """Share of the episodes that reached their goal."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate.

        For one agent over the episodes it might have played (Wilson, 1927); for several over the
        agents that training might have given (bootstrap).
        """
        if self.by_agent:
            low, high = interval(self.by_agent)
        else:
            from scipy.stats import binomtest  # slow to import

            low, high = binomtest(self.successes, self.episodes).proportion_ci(method="wilson")
        return float(low), float(high)


def interval(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[..., np.ndarray] = np.mean,
) -> tuple[np.ndarray, np.ndarray]:
    """95 % bootstrap interval of a statistic over runs, by percentiles.

    Args:
        values: of the runs, along the first dimension.
        statistic: takes the values and ``axis``. Default: the mean.

    Returns:
        Lower and upper end; NaN for a single run.
    """
    from scipy.stats import bootstrap  # slow to import, and needed for several runs alone

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        nothing = np.full(values.shape[1:], math.nan)
        return nothing, nothing
    options = {"axis": 0, "vectorized": True, "method": "percentile", "random_state": 0}
    result = bootstrap((values,), statistic, confidence_level=0.95, **options)
    return result.confidence_interval.low, result.confidence_interval.high
