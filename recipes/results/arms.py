"""Sums up the runs of each arm of an experiment: ends.csv and success.csv become arms.csv.

    python recipes/results/arms.py figure_2

``ends.csv`` has a row a run, its success by 1,000 episodes; ``success.csv``, of compare.py, every
evaluation. Steps to a share of the goals are those of a run's first evaluation that has it; an arm
has their median over its runs, where more than half of them have it.
"""

import math
import statistics
import sys
from itertools import groupby
from pathlib import Path

from tables import RESULTS, read, write

THRESHOLDS = (0.5, 0.8)


def sum_up(folder: Path) -> list[dict[str, str]]:
    """The rows of ``arms.csv``."""
    ends, evaluations = read(folder / "ends.csv"), read(folder / "success.csv")
    rows = []
    for label, arm in groupby(ends, lambda row: row["label"]):
        runs = list(arm)
        row = {"label": label, "runs": f"{len(runs)}", "steps": runs[0]["steps"]}
        for name, short in (("success", "success"), ("held_out_success", "held_out")):
            values = [float(run[name]) for run in runs]
            row[name] = f"{statistics.mean(values):.3f}"
            row |= {f"{short}_min": f"{min(values):.3f}", f"{short}_max": f"{max(values):.3f}"}
        own = [line for line in evaluations if line["label"] == label]
        curves = [list(lines) for _, lines in groupby(own, lambda line: line["run"])]
        if len(curves) != len(runs):
            raise ValueError(f"{label} has {len(runs)} runs in ends.csv, {len(curves)} curves")
        for threshold in THRESHOLDS:
            row |= reached(curves, threshold)
        rows.append(row)
    return rows


def reached(curves: list[list[dict[str, str]]], threshold: float) -> dict[str, str]:
    """After how many steps runs reach a threshold, and how many do."""
    firsts = [
        next((float(line["step"]) for line in c if float(line["success"]) >= threshold), math.inf)
        for c in curves
    ]
    done = [first for first in firsts if math.isfinite(first)]
    column = f"steps_to_{threshold}"
    median = {column: f"{statistics.median(firsts):.0f}".replace("inf", "nan")}
    least, most = (f"{of(done, default=math.nan):.0f}" for of in (min, max))
    number = {f"reached_{threshold}": f"{len(done)}"}
    return number | median | {f"{column}_min": least, f"{column}_max": most}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(RESULTS / name / "arms.csv", sum_up(RESULTS / name))
