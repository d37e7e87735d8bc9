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
from collections import defaultdict
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
HINDSIGHT = "relabelled"  # stands among the kinds


def shares(runs: list[Path]) -> dict[tuple[str, str], dict[float, list[float]]]:
    """The shares of all runs, by panel and kind, and by step."""
    found = defaultdict(lambda: defaultdict(list))
    for run in runs:
        rows = [row for row in read_run(run).rows if "hindsight_in_buffer" in row]
        if not rows:
            raise ValueError(f"run ({str(run)!r}) measured no kinds of goals in a replay buffer")
        stored = "kinds/buffer/"
        kinds = [name.removeprefix(stored) for name in rows[-1] if name.startswith(stored)]
        columns = {(of, kind): f"kinds/{of}/{kind}" for of in PANELS for kind in kinds}
        columns |= {(of, HINDSIGHT): f"hindsight_in_{of}" for of in ("buffer", "batch")}
        for row in rows:
            for place, column in columns.items():  # a kind that none pursued has no cell
                found[place][row["step"]].append(row.get(column, 0.0))
    common = {
        place: {step: some for step, some in sorted(by_step.items()) if len(some) == len(runs)}
        for place, by_step in found.items()
    }
    if not all(common.values()):
        raise ValueError(f"runs ({', '.join(map(str, runs))}) measured no step in common")
    return common


def draw(groups: dict[str, dict], unit: str, path: Path) -> None:
    """Stacks the kinds of every panel to 1."""
    figure = Figure(figsize=(3 * len(PANELS), 0.6 + 2.2 * len(groups)), layout="constrained")
    rows = figure.subplots(len(groups), len(PANELS), sharex=True, sharey=True, squeeze=False)
    for axes, title in zip(rows[0], PANELS.values(), strict=True):
        axes.set_title(title)
    for (label, found), panels in zip(groups.items(), rows, strict=True):
        for of, axes in zip(PANELS, panels, strict=True):
            means = {
                kind: ([*by_step], [np.mean(values) for values in by_step.values()])
                for (panel, kind), by_step in found.items()
                if panel == of
            }
            dashed = means.pop(HINDSIGHT, None)
            steps = next(iter(means.values()))[0]
            axes.stackplot(steps, [mean for _, mean in means.values()], labels=means, alpha=0.8)
            if dashed:
                axes.plot(*dashed, "k--", linewidth=1, label=HINDSIGHT)
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
            for label, found in groups.items():
                for (of, kind), by_step in found.items():
                    for step, some in by_step.items():
                        told = {"share": np.mean(some), "smallest": min(some), "largest": max(some)}
                        row = {"label": label, "of": of, "kind": kind, "step": f"{step:.0f}"}
                        rows.append({**row, **{name: f"{x:.4f}" for name, x in told.items()}})
            with rc_context({"text.parse_math": False}):  # a label with two $ is a label
                draw(groups, unit, arguments.out / FILES[1])
            write(arguments.out / FILES[0], rows)
    except (ValueError, OSError) as error:
        parser.error(str(error)[:2_000])


if __name__ == "__main__":
    main()
