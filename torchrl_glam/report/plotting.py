"""Learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from torchrl_glam._files import open_below
from torchrl_glam.report.comparison import Curve, interquartile_mean
from torchrl_glam.runs.success import interval


def mean_and_interval(runs: Sequence[Curve]) -> tuple[np.ndarray, ...]:
    """Interquartile mean over runs and its 95 % bootstrap interval, where any run was measured.

    Between its measurements a run is a straight line. Places that some run did not reach are left
    out, for the mean of fewer runs would jump there.

    From x, ascending, and y of each run to x, mean, lower and upper end of the interval.
    """
    places = np.unique(np.concatenate([x for x, _ in runs]))
    first, last = max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)
    places = places[(places >= first) & (places <= last)]
    values = np.stack([np.interp(places, x, y) for x, y in runs])
    return places, interquartile_mean(values), *interval(values, interquartile_mean)


def plot_learning_curves(
    curves: Mapping[str, Sequence[Curve]],
    path: str | Path,
    *,
    references: Mapping[str, float] | None = None,
    x_label: str = "environment steps",
) -> None:
    """Draws success against environment steps (or seconds) into a PNG, one colour a label.

    Several runs of a label are thin lines, with what :func:`mean_and_interval` makes of them.
    ``references`` are heights of at most two lines by name, as of random play.
    """
    with rc_context({"text.parse_math": False}):  # a label with two $ is a label
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for index, (label, runs) in enumerate(curves.items()):
            colour, several = f"C{index}", len(runs) > 1
            for x, y in runs if several else ():
                axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
            x, mean, low, high = mean_and_interval(runs)
            axes.plot(x, mean, color=colour, label=label)
            if several:
                axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
        for style, (name, height) in zip(("--", ":"), (references or {}).items(), strict=False):
            axes.axhline(height, linestyle=style, linewidth=1, color="0.5", label=name)
        axes.set(xlabel=x_label, ylabel="success rate", ylim=(0, 1.08))
        axes.legend(loc="best", fontsize=8)
        path = Path(path)
        with open_below(path.parent, path.name, "wb") as file:
            figure.savefig(file, dpi=120, format="png")
