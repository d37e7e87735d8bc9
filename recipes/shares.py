"""Draws which kinds of goals are pursued, named in hindsight, stored and learned from, over a run.

    python recipes/shares.py --out results/figure_4 "SAC-GLAM with hindsight" runs/a runs/b
    python recipes/shares.py --out results/figure_7 multirun/figure_7

The runs are of recipes with a replay buffer: those of one label, or of every arm of a figure. The
shares of each are means over its runs. To --out go

    shares.csv    for every label, step and kind: the mean share, the smallest and the largest
    shares.png    a row of panels a label; a dashed line is the share of relabelled transitions

Shares of goals pursued and named are those of the steps since the row before.
"""

import argparse
from pathlib import Path
from textwrap import fill

import numpy as np
from compare import arms_of, require_comparable, require_label
from matplotlib import rc_context
from matplotlib.figure import Figure
from results.tables import write

from torchrl_glam.report import read_run
from torchrl_glam.runs.files import reserved

PANELS = {"pursued": "pursued", "named": "named in hindsight"}
PANELS |= {"buffer": "in the replay buffer", "batch": "in batches"}
FILES = ("shares.csv", "shares.png")
STORED = "kinds/buffer/"
HINDSIGHT = "relabelled"  # stands among the kinds


def kinds_stored(row: dict[str, float]) -> list[str]:
    """The kinds of goals whose shares in the replay buffer stand in a row of metrics."""
    return [name.removeprefix(STORED) for name in row if name.startswith(STORED)]


def shares(runs: list[Path]) -> tuple[list[float], dict[tuple[str, str], np.ndarray]]:
    """Steps that all runs measured, and by panel and kind the shares there, ``[steps, runs]``."""
    measured = []
    for run in runs:
        rows = {row["step"]: row for row in read_run(run).rows if kinds_stored(row)}
        if not rows:
            raise ValueError(f"run ({str(run)!r}) measured no kinds of goals in a replay buffer")
        measured.append(rows)
    steps = sorted(set.intersection(*map(set, measured)))
    if not steps:
        raise ValueError(f"runs ({', '.join(map(str, runs))}) measured no step in common")
    kinds = kinds_stored(measured[0][steps[-1]])
    columns = {(of, kind): f"kinds/{of}/{kind}" for of in PANELS for kind in kinds}
    columns |= {(of, HINDSIGHT): f"hindsight_in_{of}" for of in ("buffer", "batch")}
    return steps, {  # a kind that none pursued has no cell
        place: np.array([[rows[step].get(column, 0.0) for rows in measured] for step in steps])
        for place, column in columns.items()
    }


def draw(groups: dict[str, tuple], unit: str, path: Path) -> None:
    """Stacks the kinds of every panel to 1."""
    figure = Figure(figsize=(3 * len(PANELS), 0.6 + 2.2 * len(groups)), layout="constrained")
    rows = figure.subplots(len(groups), len(PANELS), sharex=True, sharey=True, squeeze=False)
    for axes, title in zip(rows[0], PANELS.values(), strict=True):
        axes.set_title(title)
    for (label, (steps, found)), panels in zip(groups.items(), rows, strict=True):
        for of, axes in zip(PANELS, panels, strict=True):
            means = {kind: some.mean(1) for (panel, kind), some in found.items() if panel == of}
            dashed = means.pop(HINDSIGHT, None)
            axes.stackplot(steps, *means.values(), labels=means, alpha=0.8)
            if dashed is not None:
                axes.plot(steps, dashed, "k--", linewidth=1, label=HINDSIGHT)
            axes.set(ylim=(0, 1), xlim=(0, max(steps)))
        panels[0].set_ylabel(fill(label, 24))
    for axes in rows[-1]:
        axes.set_xlabel(unit)
    figure.legend(*rows[0][-1].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("runs", nargs="+", help="LABEL RUN [RUN ...] | FIGURE")
    arguments = parser.parse_args()
    label, *paths = arguments.runs
    try:
        runs = {label: [Path(path) for path in paths]} if paths else arms_of(Path(label))
        require_label(label, runs.get(label, []))
        unit = require_comparable([path for paths in runs.values() for path in paths])
        groups = {label: shares(paths) for label, paths in runs.items()}
        with reserved(arguments.out, *FILES, key="--out"):
            rows = []
            for label, (steps, found) in groups.items():
                for (of, kind), values in found.items():
                    for step, some in zip(steps, values, strict=True):
                        told = {"share": some.mean(), "smallest": some.min(), "largest": some.max()}
                        row = {"label": label, "of": of, "kind": kind, "step": f"{step:.0f}"}
                        rows.append({**row, **{name: f"{x:.4f}" for name, x in told.items()}})
            with rc_context({"text.parse_math": False}):  # a label with two $ is a label
                draw(groups, unit, arguments.out / FILES[1])
            write(arguments.out / FILES[0], rows)
    except (ValueError, OSError) as error:
        parser.error(str(error)[:2_000])


if __name__ == "__main__":
    main()
