"""Draws and compares the learning curves of several runs, with random play and the oracle.

    python recipes/compare.py --out results/quickstart \\
        "with hindsight" runs/a runs/b runs/c  --  "without" runs/d runs/e runs/f
    python recipes/compare.py --out results/figure_9 multirun/figure_9

Each group is a label and run folders, of any recipe. One folder alone is a figure's, in which each
arm has a folder of its runs. A run that diverged has success 0 from there on, as its label says.
To --out go

    steps.png, seconds.png   success of the sampled policy against environment steps and seconds:
                             the runs, their interquartile mean, and its 95 % interval
    success.csv              all measurements
    references.csv           random play and the oracle, with their intervals
    comparison.csv           for every group, at the last step that all runs reached: mean,
                             interquartile mean and area under the curve with intervals, steps and
                             seconds to each threshold
    comparison.md            the same as a table to read

and the table is printed, with when each run first reached the highest threshold.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, groupby, pairwise
from pathlib import Path

import numpy as np

from torchrl_glam.report import read_run
from torchrl_glam.report.comparison import (
    comparison_table,
    probability_of_improvement,
    summarise,
)
from torchrl_glam.report.plotting import plot_learning_curves
from torchrl_glam.runs.config import ENVIRONMENT, RecipeConfig
from torchrl_glam.runs.environments import OWN_ENVS, make_reference_env
from torchrl_glam.runs.evaluation import play_randomly
from torchrl_glam.runs.files import reserved
from torchrl_glam.runs.run_folder import DIVERGED, METRICS, stored_settings
from torchrl_glam.runs.success import Result
from torchrl_glam.text import describe_env
from torchrl_glam.viewing import format_results, measure, write_results

FILES = ("success.csv", "comparison.csv", "comparison.md", "references.csv")
FILES += ("steps.png", "seconds.png")
# What runs of one arm may have of their own.
OWN = ("seed", "output", "resume", "device", "loggers", "checkpoint_every")
METRIC = "eval/train/sampled/success"
HELD_OUT = "eval/test/sampled/success"

read = cache(read_run)


def measurements(folder: Path) -> list[dict[str, float]]:
    """The rows of a run in which success was measured; the time is told in others too."""
    every = [{"step": 0.0, **row} for row in read(folder).rows]
    told = [(0.0, 0.0), *((row["step"], row["seconds"]) for row in every if "seconds" in row)]
    rows = [
        {
            "step": row["step"],
            "seconds": float(np.interp(row["step"], *zip(*told, strict=True))),
            METRIC: row[METRIC],
            HELD_OUT: row.get(HELD_OUT, math.nan),
        }
        for row in every
        if METRIC in row
    ]
    if not rows:
        raise ValueError(f"run ({str(folder)!r}) has no evaluation in its metrics.csv yet")
    for row in rows:
        if not (0 <= row[METRIC] <= 1 and 0 <= row["seconds"] < math.inf):
            raise ValueError(f"run ({str(folder)!r}) has an impossible row in metrics.csv: {row}")
    if any(last["step"] >= row["step"] for last, row in pairwise(rows)):
        raise ValueError(f"run ({str(folder)!r}) has steps in metrics.csv that do not ascend")
    if diverged(folder):
        last, end = rows[-1], stored_settings(folder)["total_steps"]
        pace = last["seconds"] / max(last["step"], 1)
        for step in (last["step"] + 1, max(float(end), last["step"] + 2)):
            rows.append({"step": step, "seconds": pace * step, METRIC: 0.0, HELD_OUT: math.nan})
    return rows


def diverged(run: Path) -> bool:
    """Whether numbers that are not finite ended a run."""
    return (run / DIVERGED).exists()


def told(label: str, runs: list[Path]) -> str:
    """The label, with how many of its runs diverged."""
    number = sum(map(diverged, runs))
    return f"{label} ({number} diverged)" if number else label


def arms_of(figure: Path) -> dict[str, list[Path]]:
    """The runs of each arm of a figure."""
    runs: dict[str, list[Path]] = {}
    for path in sorted(figure.glob(f"*/*/{METRICS}")):
        runs.setdefault(path.parts[-3], []).append(path.parent)
    return runs


def own_settings(run: Path) -> dict:
    """What runs of one arm share: all but what each may have of its own."""
    return {key: value for key, value in stored_settings(run).items() if key not in OWN}


def environment(run: Path) -> dict:
    """What a run's configuration says of its environment, and defaults where it says nothing."""
    config, default = stored_settings(run), RecipeConfig()
    return {key: config.get(key, getattr(default, key)) for key in ENVIRONMENT}


def require_alike(runs: list[Path], settings: Callable[[Path], dict], why: str) -> None:
    """Refuses runs whose settings are not those of the first."""
    first = settings(runs[0])
    for run in runs[1:]:
        for key, value in settings(run).items():
            if first.get(key) != value:
                raise ValueError(
                    f"{why}: {key} is {first.get(key)} in {str(runs[0])!r}, and {value} in "
                    f"{str(run)!r}"
                )


def references(run: Path) -> list[Result]:
    """Success of random play, and of the shortest plan if known, in the environment of a run."""
    config = RecipeConfig(**environment(run))
    if config.env_class not in OWN_ENVS:
        print(f"No line of random play: {run} names an environment of its own")
        return []
    env = make_reference_env(config)
    results = [play_randomly(env)]
    if (make_oracle := describe_env(env).make_oracle) is not None:
        results.append(measure(make_oracle(), env, "oracle", split="train", objects=0, seed=0)[0])
    return results


def write_table(folder: Path, name: str, names: list[str], rows: list[list]) -> None:
    """Six digits are more than 500 episodes measure."""
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([round(v, 6) if isinstance(v, float) else v for v in row] for row in rows)


def markdown(table: list[dict], thresholds: list[float]) -> Iterator[str]:
    """The groups' figures as a table; a dash where half of the runs do not come to a threshold."""
    named = [f"{of} to {t:g}" for t in thresholds for of in ("steps", "seconds")]
    head = ["", "runs", f"success at {table[0]['step']:,.0f} steps", "area", *named]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in table:
        cells = [row["label"], str(row["runs"])]
        for name in ("iqm", "area"):
            low, high = row[f"{name}_low"], row[f"{name}_high"]
            bounds = "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"
            cells.append(f"{row[name]:.3f}{bounds}")
        reached = [row[f"{of}_to_{t:g}"] for t in thresholds for of in ("steps", "seconds")]
        cells += [f"{value:,.0f}" if math.isfinite(value) else "–" for value in reached]
        yield f"| {' | '.join(cells)} |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--threshold",
        type=float,
        action="append",
        help="of success; may be repeated (default: 0.9, of a figure 0.5 and 0.8)",
    )
    parser.add_argument("groups", nargs="+", help="LABEL RUN [RUN ...] [-- LABEL RUN ...] | FIGURE")
    # argparse takes "--" for itself, but here it parts the groups: it is replaced before parsing.
    arguments = parser.parse_args([a if a != "--" else "|" for a in sys.argv[1:]])
    figure = Path(arguments.groups[0]) if len(arguments.groups) == 1 else None
    thresholds = sorted(set(arguments.threshold or ([0.5, 0.8] if figure else [0.9])))
    if not all(0.0 < threshold <= 1.0 for threshold in thresholds):
        parser.error(f"--threshold ({thresholds}) is a success, above 0 and at most 1")
    groups = [list(part) for bar, part in groupby(arguments.groups, "|".__eq__) if not bar]
    runs = {label: [Path(path) for path in paths] for label, *paths in groups}
    if figure is not None:
        groups = runs = arms_of(figure)
    missing = [str(p) for ps in runs.values() for p in ps if not (p / "metrics.csv").exists()]
    if missing or not runs or not all(runs.values()) or len(runs) < len(groups):
        parser.error(
            f"no run in {missing}" if missing else "every group needs a label of its own and runs"
        )
    try:
        every = [path for paths in runs.values() for path in paths]
        require_alike(every, environment, "runs of different environments cannot be compared")
        for paths in runs.values() if figure else ():
            require_alike(paths, own_settings, "runs of an arm differ by their seed alone")
        runs = {told(label, paths): paths for label, paths in runs.items()}
        rows = {label: [measurements(path) for path in paths] for label, paths in runs.items()}
        with reserved(arguments.out, *FILES, key="--out"):
            compare(arguments.out, runs, rows, thresholds)
    except (ValueError, OSError) as error:
        parser.error(str(error)[:2_000])


def compare(
    out: Path,
    runs: dict[str, list[Path]],
    rows: dict[str, list[list[dict[str, float]]]],
    thresholds: list[float],
) -> None:
    """Prints and writes what the runs of each label give."""
    # 1. In words
    curves = {
        axis: {
            label: [([r[axis] for r in run], [r[METRIC] for r in run]) for run in group]
            for label, group in rows.items()
        }
        for axis in ("step", "seconds")
    }
    end = min(run[-1]["step"] for group in rows.values() for run in group)
    summaries = {
        label: [
            summarise(curve, seconds, end, thresholds)
            for curve, (seconds, _) in zip(group, curves["seconds"][label], strict=True)
        ]
        for label, group in curves["step"].items()
    }
    for label, group in rows.items():
        for path, run, summary in zip(runs[label], group, summaries[label], strict=True):
            steps, seconds = summary.reached[thresholds[-1]]
            when = f"{steps:.0f} steps, {seconds:.0f} s" if math.isfinite(steps) else "not"
            held_out = run[-1][HELD_OUT]
            also = "" if math.isnan(held_out) else f", held-out goals {held_out:.3f}"
            print(
                f"{label}, {path.name}: reached {thresholds[-1]:.0%} after {when}; at the end "
                f"{run[-1][METRIC]:.3f}{also}"
            )
        before = sorted({read(path).pretraining for path in runs[label]})
        print(f"  language model trained on: {'; or '.join(before)}")
    table = comparison_table(summaries, end)
    shown = "\n".join(markdown(table, thresholds))
    print(shown)
    final = {label: [run.final for run in runs] for label, runs in summaries.items()}
    for first, second in combinations(final, 2):
        chance = probability_of_improvement(final[first], final[second])
        print(f"a run of {first!r} beats one of {second!r} in {chance:.0%} of the pairs")

    # 2. Tables
    names = ["label", "run", "step", "seconds", "success", "held_out_success"]
    measured = [
        [label, index, *row.values()]
        for label, group in rows.items()
        for index, run in enumerate(group)
        for row in run
    ]
    write_table(out, "success.csv", names, measured)
    write_table(out, "comparison.csv", list(table[0]), [list(row.values()) for row in table])
    (out / "comparison.md").write_text(shown, encoding="utf-8")
    lines = references(next(iter(runs.values()))[0])
    write_results(lines, out / "references.csv")
    print(format_results(lines))

    # 3. Curves
    for axis, label in (("step", "environment steps"), ("seconds", "seconds")):
        path = out / ("steps.png" if axis == "step" else "seconds.png")
        heights = {line.policy: line.success for line in lines}
        plot_learning_curves(curves[axis], path, references=heights, x_label=label)


if __name__ == "__main__":
    main()
