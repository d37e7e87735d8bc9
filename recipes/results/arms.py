"""Sums up the runs of each arm of an experiment: ends.csv becomes arms.csv.

    python recipes/results/arms.py figure_2

``ends.csv`` has a row a run: its success by 1,000 episodes, and the steps of its first evaluation
that has a share of the goals. An arm has the median of these steps over its runs, where more than
half of them have it.
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
    rows = []
    for label, arm in groupby(read(folder / "ends.csv"), lambda row: row["label"]):
        runs = list(arm)
        row = {"label": label, "runs": f"{len(runs)}", "steps": runs[0]["steps"]}
        for name, short in (("success", "success"), ("held_out_success", "held_out")):
            values = [float(run[name]) for run in runs]
            row[name] = f"{statistics.mean(values):.3f}"
            row |= {f"{short}_min": f"{min(values):.3f}", f"{short}_max": f"{max(values):.3f}"}
        for threshold in THRESHOLDS:
            column = f"steps_to_{threshold}"
            firsts = [float(run[column].replace("nan", "inf")) for run in runs]  # inf: never
            done = [first for first in firsts if first < math.inf]
            row[f"reached_{threshold}"] = f"{len(done)}"
            row[column] = f"{statistics.median(firsts):.0f}".replace("inf", "nan")
            row[f"{column}_min"] = f"{min(done, default=math.nan):.0f}"
            row[f"{column}_max"] = f"{max(done, default=math.nan):.0f}"
        rows.append(row)
    return rows


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(RESULTS / name / "arms.csv", sum_up(RESULTS / name))
