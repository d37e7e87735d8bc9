"""Draws the learning curves of several runs on the same axes, beside random play and the oracle.

    python recipes/compare.py --out results/quickstart \\
        "with hindsight" runs/a runs/b runs/c  --  "without" runs/d runs/e runs/f

Each group is a label and run folders, of any recipe. Writes steps.png, seconds.png (success of the
sampled policy against environment steps and against seconds, mean and standard deviation over the
runs) and success.csv (all measurements) to --out, and prints, for every run, when its success first
reached 90 %.
"""

from __future__ import annotations

import argparse
import csv
import sys
from itertools import groupby
from pathlib import Path

import torch
from omegaconf import OmegaConf

from torchrl_glam.envs import describe_env
from torchrl_glam.training.config import RecipeConfig
from torchrl_glam.training.environments import make_bare_env
from torchrl_glam.training.evaluation import evaluate
from torchrl_glam.training.plotting import plot_learning_curves

METRIC = "eval/train/sampled/success"
HELD_OUT = "eval/test/sampled/success"


def read(run: Path) -> list[dict[str, float]]:
    """The rows of a run in which success was measured; before any update, no time has passed."""
    with open(run / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[METRIC]]
    names = ("step", "seconds", METRIC, HELD_OUT)
    return [{name: float(row.get(name) or 0) for name in names} for row in rows]


def references(run: Path, episodes: int = 2000) -> dict[str, float]:
    """Success of random play, and of the shortest plan if known, in the environment of a run."""
    config = OmegaConf.load(run / "config.yaml")
    names = ("env_class", "env", "eval_splits")
    config = RecipeConfig(**OmegaConf.to_object(OmegaConf.masked_copy(config, names)))
    env = make_bare_env(config, episodes, 0, torch.device("cpu"))
    policies = {"random play": None}
    if (make_oracle := describe_env(env).make_oracle) is not None:
        policies["oracle"] = make_oracle()
    return {name: evaluate(p, env, seed=0)["success"] for name, p in policies.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("groups", nargs="+", help="LABEL RUN [RUN ...] [-- LABEL RUN ...]")
    # argparse takes "--" for itself, but here it parts the groups: it is replaced before parsing.
    arguments = parser.parse_args([a if a != "--" else "|" for a in sys.argv[1:]])
    groups = [list(part) for bar, part in groupby(arguments.groups, "|".__eq__) if not bar]
    runs = {label: [Path(path) for path in paths] for label, *paths in groups}
    missing = [str(p) for ps in runs.values() for p in ps if not (p / "metrics.csv").exists()]
    if missing or not all(runs.values()):
        parser.error(f"no run in {missing}" if missing else "every group needs a label and runs")

    rows = {label: [read(path) for path in paths] for label, paths in runs.items()}
    lines = references(next(iter(runs.values()))[0])
    arguments.out.mkdir(parents=True, exist_ok=True)
    for column, name, axis in (
        ("step", "steps", "environment steps"),
        ("seconds", "seconds", "seconds"),
    ):
        curves = {
            label: [([r[column] for r in run], [r[METRIC] for r in run]) for run in group]
            for label, group in rows.items()
        }
        path = arguments.out / f"{name}.png"
        plot_learning_curves(curves, path, references=lines, x_label=axis)
    with open(arguments.out / "success.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", "run", "step", "seconds", "success", "held_out_success"])
        for label, group in rows.items():
            for index, run in enumerate(group):
                writer.writerows([label, index, *map(round6, row.values())] for row in run)
    print(", ".join(f"{name} {height:.3f}" for name, height in lines.items()))
    for label, group in rows.items():
        for index, run in enumerate(group):
            first = next((row for row in run if row[METRIC] >= 0.9), None)
            when = (
                "never" if first is None else f"{first['step']:.0f} steps, {first['seconds']:.0f} s"
            )
            last = f"{run[-1][METRIC]:.3f}, held-out goals {run[-1][HELD_OUT]:.3f}"
            print(f"{label}, run {index}: 90 % after {when}; at the end {last}")


def round6(value: float) -> float:
    """Six digits are more than 500 episodes measure."""
    return round(value, 6)


if __name__ == "__main__":
    main()
