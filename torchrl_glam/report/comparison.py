"""Statistics of several runs: means with intervals, and how soon they learned.

The estimators are those of Agarwal et al., 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.integrate import trapezoid
from scipy.stats import mannwhitneyu, trim_mean

from torchrl_glam.runs.success import interval

Curve = tuple[Sequence[float], Sequence[float]]
"""Environment steps or seconds, ascending, and success there."""

METRIC = "eval/train/sampled/success"
"""Success on training games, of the sampled policy."""


@dataclass
class RunSummary:
    """One run: success at the last step that all runs reached, and how it got there.

    Attributes:
        final: success at that step.
        area: mean success up to it, by the trapezoidal rule: the normalised area under the curve.
        reached: environment steps and seconds of the first measurement of at least each threshold,
            by threshold; ``inf`` if there is none.
    """

    final: float
    area: float
    reached: dict[float, tuple[float, float]]


def summarise(
    run: Sequence[Mapping[str, float]], end: float, thresholds: Sequence[float]
) -> RunSummary:
    """Summarises one run; success between its measurements is interpolated linearly.

    Args:
        run: its measurements in order, each with ``step``, ``seconds`` and :data:`METRIC`.
        end: the step up to which runs are compared, at most the run's own last one.
        thresholds: of success.

    Examples:
        >>> rows = [(0, 0, 0.0), (10, 1, 0.5), (20, 2, 1.0), (30, 3, 1.0)]
        >>> run = [{"step": step, "seconds": at, METRIC: value} for step, at, value in rows]
        >>> summarise(run, end=20, thresholds=[0.9])
        RunSummary(final=1.0, area=0.5, reached={0.9: (20, 2)})
    """
    x, y = (np.array([row[key] for row in run], dtype=float) for key in ("step", METRIC))
    final = float(np.interp(end, x, y))
    within = x < end
    area = trapezoid([*y[within], final], [*x[within], end])
    length = end - x[0]
    reached = {}
    for threshold in thresholds:
        after = ((row["step"], row["seconds"]) for row in run if row[METRIC] >= threshold)
        reached[threshold] = next(after, (math.inf, math.inf))
    return RunSummary(final, float(area / length) if length else final, reached)


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean without the lowest and the highest quarter; of fewer than four values, of all."""
    return trim_mean(values, 0.25, axis=axis)


def probability_of_improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """Share of the pairs of runs in which the first group's is better; equal ones count half."""
    pairs = len(first) * len(second)
    return float(mannwhitneyu(first, second, method="asymptotic").statistic) / pairs


def with_interval(
    name: str, values: Sequence[float], statistic: Callable[..., np.ndarray] = np.mean
) -> dict[str, float]:
    """A statistic over runs by its name, with the ends ``_low`` and ``_high`` of its interval."""
    whole, ends = statistic(np.asarray(values), axis=0), interval(values, statistic)
    return {name: float(whole), f"{name}_low": float(ends[0]), f"{name}_high": float(ends[1])}


def comparison_table(groups: Mapping[str, Sequence[RunSummary]], step: float) -> list[dict]:
    """A row of figures for every group of runs.

    Args:
        groups: the runs of every label, as :func:`summarise` has them.
        step: up to which they were summarised.

    Returns:
        Rows with ``label``, ``runs``, ``step``; ``mean`` and ``iqm`` of success there, each with
        ``_low`` and ``_high``; the same of ``area``; and for every threshold, such as 0.9,
        ``reached_0.9`` (how many runs came to it), ``steps_to_0.9`` and ``seconds_to_0.9``, medians
        over all runs, ``inf`` where half of them did not.
    """
    rows = []
    for label, runs in groups.items():
        row = {"label": label, "runs": len(runs), "step": step}
        final, area = [run.final for run in runs], [run.area for run in runs]
        row |= with_interval("mean", final) | with_interval("iqm", final, interquartile_mean)
        row |= with_interval("area", area)
        for threshold in runs[0].reached:
            steps, seconds = zip(*(run.reached[threshold] for run in runs), strict=True)
            row[f"reached_{threshold:g}"] = sum(map(math.isfinite, steps))
            row[f"steps_to_{threshold:g}"] = float(np.median(steps))
            row[f"seconds_to_{threshold:g}"] = float(np.median(seconds))
        rows.append(row)
    return rows
