"""How each run of a figure ended: its folder, and 1,000 episodes of its agent, become ends.csv.

    for run in multirun/figure_6/*/*; do
        python recipes/evaluate.py agent=$run env=playground_simple episodes=1000 seed=20000 \\
            output=evaluated/$run
    done
    python recipes/results/ends.py figure_6 multirun/figure_6 evaluated/multirun/figure_6

``figure_6`` is a folder beside this file; the others have a folder an arm, and in it one a seed.
Success, by kind of goal as well, is that of evaluate.py, ``nan`` where that did not play; a run
that diverged has none and counts as 0. The rest is what the run itself measured last: ``plan`` is
the share of the states of shortest plans in which the critic's largest value is on such a plan,
``q_error`` Q of the actions taken less the discounted return that followed, ``entropy`` in nats.
"""

import math
import sys
from pathlib import Path

from arms import THRESHOLDS
from tables import RESULTS, read, runs_of, write

from torchrl_glam.report import read_run
from torchrl_glam.report.games import METRIC
from torchrl_glam.runs.run_folder import DIVERGED

POLICIES = {"": "agent, sampled", "greedy_": "agent, greedy"}
SPLITS = {"": "train", "held_out_": "test"}
MEASURED = {
    "entropy": ("entropy", 3),
    "q_error": ("probe/q_error", 3),
    "plan": ("probe/plan/critic", 3),
    "seconds": ("seconds", 0),
}
"""The column of metrics.csv and the digits of each."""


def end(run: Path, evaluated: Path) -> dict[str, str]:
    """The row of a run."""
    rows = read_run(run).rows
    row = {"label": run.parts[-2], "seed": run.name, "steps": f"{rows[-1]['step']:.0f}"}
    for threshold in THRESHOLDS:
        steps = (line["step"] for line in rows if line.get(METRIC, -1.0) >= threshold)
        row[f"steps_to_{threshold}"] = f"{next(steps, math.nan):.0f}"
    diverged = (run / DIVERGED).exists()
    results = [] if diverged else read(evaluated / "results.csv")
    success = {(line["policy"], line["split"], line["kind"]): line["success"] for line in results}
    for held_out, split in SPLITS.items():
        for greedy, policy in POLICIES.items():
            value = 0.0 if diverged else float(success.get((policy, split, "all"), math.nan))
            row[f"{held_out}{greedy}success"] = f"{value:.3f}"
    for (policy, split, kind), value in success.items():
        if (policy, split) == ("agent, sampled", "train") and kind != "all":
            row[kind] = f"{float(value):.3f}"
    for name, (metric, digits) in MEASURED.items():
        value = next((line[metric] for line in reversed(rows) if metric in line), math.nan)
        row[name] = f"{value:.{digits}f}"
    return row


def write_ends(folder: Path, figure: Path, evaluated: Path) -> None:
    rows = [end(run, evaluated / run.relative_to(figure)) for run in runs_of(figure)]
    write(folder / "ends.csv", rows)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    name, figure, evaluated = sys.argv[1:]
    write_ends(RESULTS / name, Path(figure), Path(evaluated))
