"""What the runs of figure=goals, goals_no_hindsight, goals_ppo and exchange measured on the way.

    python recipes/results/goals.py goals multirun/figure_goals
    python recipes/results/goals.py goals_ppo multirun/figure_goals_ppo
    python recipes/results/goals.py exchange multirun/figure_exchange

Columns of metrics.csv become curves.csv, a row where at least one was measured. Of these, exchange/
gets exchange.csv, a row a run, and the others families.csv, a row an arm.
"""

import math
import sys
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean

from tables import RESULTS, runs_of, write

from torchrl_glam.report import read_run

SUCCESS = "eval/train/sampled/success"
COLUMNS = {
    "exchange": {"success": "success", "episodes": "episodes"},
    "goals": {
        "success": SUCCESS,
        "grasp": f"{SUCCESS}/grasp",
        "grow": f"{SUCCESS}/grow",
        "impossible": "kinds/pursued/impossible",
        "error": "goals/error",
    },
}
"""The names in curves.csv of the columns of metrics.csv."""
COLUMNS["goals_ppo"] = COLUMNS["goals_no_hindsight"] = COLUMNS["goals"]
ENOUGH = 0.8  # share of the goals pursued
HALVES = 6400  # steps before the exchange, and after it
PART = 0.75  # of a run, before its last quarter

Rows = list[dict[str, str]]


def curves(name: str, figure: Path) -> Rows:
    """What the runs of a figure measured, ``nan`` where a row has no value."""
    rows = []
    for run in runs_of(figure):
        for line in read_run(run).rows:
            values = {k: line.get(column, math.nan) for k, column in COLUMNS[name].items()}
            if not all(map(math.isnan, values.values())):
                row = {"label": run.parts[-2], "seed": run.name, "step": f"{line['step']:.0f}"}
                rows.append(row | {k: f"{value:.4f}" for k, value in values.items()})
    return rows


def exchange(lines: Rows) -> Rows:
    """Steps until four in five pursued goals are reached, from the start and from the exchange.

    Counted are the episodes that end in 320 steps, two rows, on the same side of the exchange.
    """
    rows = []
    for (label, seed), run in groupby(lines, lambda line: (line["label"], line["seed"])):
        told = [(int(x["step"]), float(x["success"]), float(x["episodes"])) for x in run]
        row = {"label": label, "seed": seed}
        for column, start in (("first", 0), ("recovery", HALVES)):
            part = [x for x in told if start < x[0] <= start + HALVES and x[2] > 0]
            done = (
                step - start
                for (_, before, few), (step, success, more) in pairwise(part)
                if before * few + success * more >= ENOUGH * (few + more)
            )
            row[column] = f"{next(done, math.nan)}"
        rows.append({**row, "share": f"{float(row['recovery']) / float(row['first']):.3f}"})
    return rows


def families(lines: Rows) -> Rows:
    """Means over an arm's runs at the end; the share of impossible goals is the last quarter's."""
    rows = []
    for label, arm in groupby(lines, lambda line: line["label"]):
        row = {"label": label}
        runs = [list(run) for _, run in groupby(arm, lambda line: line["seed"])]
        for column in COLUMNS["goals"]:
            means = []
            for run in runs:
                values = [(float(x["step"]), float(x[column])) for x in run]
                values = [(step, value) for step, value in values if math.isfinite(value)]
                if values:
                    late = PART * float(run[-1]["step"])
                    begin = late if column == "impossible" else values[-1][0]
                    means.append(fmean(value for step, value in values if step >= begin))
            row[column] = f"{fmean(means):.3f}" if means else "nan"
        rows.append(row)
    return rows


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, figure = sys.argv[1:]
    lines = curves(name, Path(figure))
    sum_up = exchange if name == "exchange" else families
    write(RESULTS / name / "curves.csv", lines)
    write(RESULTS / name / f"{sum_up.__name__}.csv", sum_up(lines))
