"""Learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure


def plot_learning_curves(
    curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]],
    path: str | Path,
    *,
    references: Mapping[str, float] | None = None,
    x_label: str = "environment steps",
    y_label: str = "success rate",
) -> None:
    """Draws success against environment steps (or seconds), one colour a label, one line a run.

    Args:
        curves: for every label of the legend, x and y of each of its runs.
        path: PNG to write; its folder is made if need be.
        references: heights of dashed lines, by name (random play, the oracle). Default: none.
        x_label, y_label: names of the axes.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "curve.png"
        >>> plot_learning_curves({"sac": [([0, 100], [0.2, 0.9])]}, path, references={"oracle": 1})
        >>> path.exists()
        True
    """
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for index, (label, runs) in enumerate(curves.items()):
        for run, (x, y) in enumerate(runs):
            axes.plot(x, y, color=f"C{index}", alpha=0.8, label=None if run else label)
    for name, height in (references or {}).items():
        axes.axhline(height, linestyle="--", linewidth=1, color="0.5")
        axes.annotate(name, (0, height), xycoords=("axes fraction", "data"), va="bottom")
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, 1.08))
    axes.legend(loc="lower right")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
