"""Draws and compares the learning curves of several runs, with random play and the oracle.

    python recipes/compare.py --out results/quickstart \\
        "with hindsight" runs/a runs/b runs/c  --  "without" runs/d runs/e runs/f
    python recipes/compare.py --out results/figure_9 multirun/figure_9
    python recipes/compare.py --out results/games_small multirun/games_small

Each group is a label and run folders, of any recipe. One folder alone is a figure's, in which each
arm has a folder of its runs. A run that diverged has success 0 from there on, as its label says.
A folder of games, each of which is such a figure, gives one table, games.csv and games.md: random
play, the pretrained model and every arm. Otherwise, to --out go

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

import argparse
import math
import sys
from collections.abc import Callable
from functools import cache
from itertools import combinations, groupby, pairwise
from pathlib import Path

import numpy as np
from results.tables import markdown, runs_of, write

from torchrl_glam.report import read_run
from torchrl_glam.report.comparison import (
    METRIC,
    comparison_table,
    probability_of_improvement,
    summarise,
)
from torchrl_glam.report.games import HELD_OUT, game_rows, read_report, unusual
from torchrl_glam.report.plotting import plot_learning_curves
from torchrl_glam.runs.config import ENVIRONMENT, RecipeConfig
from torchrl_glam.runs.environments import OWN_ENVS, make_reference_env, require_kinds
from torchrl_glam.runs.evaluation import play_randomly
from torchrl_glam.runs.files import reserved
from torchrl_glam.runs.run_folder import CONFIG, DIVERGED, METRICS, stored_settings
from torchrl_glam.runs.success import Result
from torchrl_glam.text import describe_env
from torchrl_glam.viewing import format_results, measure, write_results

FILES = ("success.csv", "comparison.csv", "comparison.md", "references.csv")
FILES += ("steps.png", "seconds.png")
# What runs of one arm may have of their own.
OWN = ("seed", "output", "resume", "device", "loggers", "checkpoint_every")
# What makes a game rather than a setting for it.
ABOUT_GAME = {*ENVIRONMENT, *OWN, "language_model", "results"} - {"memory"}

Run = list[dict[str, float]]  # measurements in order
read = cache(read_run)


def measurements(folder: Path) -> Run:
    """The evaluations of a run; seconds are interpolated between all rows that have them."""
    every = read(folder).rows
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
        last, end = rows[-1], stored_settings(folder).get("total_steps")
        if not isinstance(end, int):
            raise ValueError(
                f"total_steps ({end}) of the run ({str(folder)!r}) must be a whole number: it "
                f"diverged, and counts as failed until then. Mend its {CONFIG}, or leave it out"
            )
        pace = last["seconds"] / max(last["step"], 1)
        for step in (last["step"] + 1, max(float(end), last["step"] + 2)):
            held_out = 0.0 * last[HELD_OUT]  # NaN where there are none
            rows.append({"step": step, "seconds": pace * step, METRIC: 0.0, HELD_OUT: held_out})
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
    return {arm: [*runs] for arm, runs in groupby(runs_of(figure), lambda run: run.parts[-2])}


def require_label(label: str, runs: list[Path]) -> None:
    """Refuses a run in the place of a label, unless the label is that of this very run."""
    own = {path.resolve() for path in runs}
    if (Path(label) / METRICS).exists() and Path(label).resolve() not in own:
        raise ValueError(f"{label!r} is a run where a label should stand: give one before it")


def own_settings(run: Path) -> dict:
    """What runs of one arm share: all but what each may have of its own, as a model of its seed."""
    settings = stored_settings(run)
    model = str(settings.get("language_model")).removesuffix(f"/{settings.get('seed')}")
    return {k: v for k, v in {**settings, "language_model": model}.items() if k not in OWN}


def environment(run: Path) -> dict:
    """What a run's configuration says of its environment, and defaults where it says nothing."""
    config, default = stored_settings(run), RecipeConfig()
    told = {key: config.get(key, getattr(default, key)) for key in ENVIRONMENT}
    require_kinds(told, f"the run ({str(run)!r})")
    return told


def require_alike(runs: list[Path], settings: Callable[[Path], dict], why: str) -> None:
    """Refuses runs whose settings are not those of the first."""
    first = settings(runs[0])
    for run in runs[1:]:
        other = settings(run)
        for key in first | other:
            if first.get(key) != other.get(key):
                raise ValueError(
                    f"{why}: {key} is {first.get(key)} in {str(runs[0])!r}, and {other.get(key)} "
                    f"in {str(run)!r}"
                )


def require_comparable(runs: list[Path]) -> str:
    """Refuses runs that cannot stand in one figure; what the steps of all of them count."""
    require_alike(runs, environment, "runs of different environments cannot be compared")
    require_alike(runs, lambda run: {"unit": read(run).unit}, "they count different steps")
    if len({path.resolve() for path in runs}) < len(runs):
        raise ValueError("a run is given twice, which would count it as two")
    return read(runs[0]).unit


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


def columns(rates: dict[str, str], thresholds: list[float]) -> dict[str, str]:
    """Columns of a table: rates with their intervals, and when runs came to each threshold."""
    rate = "{NAME:.3f} ({NAME_low:.3f} to {NAME_high:.3f})"
    when = [f"{of} to {threshold:g}" for threshold in thresholds for of in ("steps", "seconds")]
    out = {name: rate.replace("NAME", of) for name, of in rates.items()}
    return out | {name: f"{{{name.replace(' ', '_')}:,.0f}}" for name in when}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    about = "of success; may be repeated (default: 0.9, of a figure and of games 0.5 and 0.8)"
    parser.add_argument("--threshold", type=float, action="append", help=about)
    parser.add_argument("groups", nargs="+", help="LABEL RUN [RUN ...] [-- ...] | FIGURE | GAMES")
    # argparse takes "--" for itself, but here it parts the groups: it is replaced before parsing.
    arguments = parser.parse_args([a if a != "--" else "|" for a in sys.argv[1:]])
    figure = Path(arguments.groups[0]) if len(arguments.groups) == 1 else None
    thresholds = sorted(set(arguments.threshold or ([0.5, 0.8] if figure else [0.9])))
    if not all(0.0 < threshold <= 1.0 for threshold in thresholds):
        parser.error(f"--threshold ({thresholds}) is a success, above 0 and at most 1")
    groups = [list(part) for bar, part in groupby(arguments.groups, "|".__eq__) if not bar]
    runs = {label: [Path(path) for path in paths] for label, *paths in groups}
    games = sorted({path.parents[2] for path in figure.glob(f"*/*/*/{METRICS}")} if figure else ())
    try:
        if games:
            with reserved(arguments.out, "games.csv", "games.md", key="--out"):
                return compare_games(arguments.out, games, thresholds)
        if figure is not None:
            runs = arms_of(figure)
        elif not (all(runs.values()) and 0 < len(groups) <= len(runs)):
            raise ValueError("every group needs a label of its own and runs")
        else:
            for label, paths in runs.items():
                require_label(label, paths)
        rows = {label: [measurements(path) for path in paths] for label, paths in runs.items()}
        require_comparable([path for paths in runs.values() for path in paths])
        for paths in runs.values() if figure else ():
            require_alike(paths, own_settings, "runs of an arm differ by their seed alone")
        groups = {told(label, runs[label]): (runs[label], rows[label]) for label in runs}
        with reserved(arguments.out, *FILES, key="--out"):
            compare(arguments.out, groups, thresholds)
    except (ValueError, OSError) as error:
        parser.error(str(error)[:2_000])


def compare(out: Path, groups: dict[str, tuple[list[Path], list[Run]]], thresholds) -> None:
    """Prints and writes what the runs of each label, folders and measurements, give."""
    # 1. In words
    end = min(run[-1]["step"] for _, runs in groups.values() for run in runs)
    summaries = {
        label: [summarise(run, end, thresholds) for run in runs]
        for label, (_, runs) in groups.items()
    }
    for label, (paths, runs) in groups.items():
        for path, run, summary in zip(paths, runs, summaries[label], strict=True):
            steps, seconds = summary.reached[thresholds[-1]]
            when = f"after {steps:.0f} steps, {seconds:.0f} s" if math.isfinite(steps) else "never"
            held_out = run[-1][HELD_OUT]
            also = "" if math.isnan(held_out) else f", held-out goals {held_out:.3f}"
            print(
                f"{label}, {path.name}: reached {thresholds[-1]:.0%} {when}; at the end "
                f"{run[-1][METRIC]:.3f}{also}"
            )
        before = sorted({read(path).pretraining for path in paths})
        print(f"  language model trained on: {'; or '.join(before)}")
    table = comparison_table(summaries, end)
    rates = {f"success at {end:,.0f} steps": "iqm", "area": "area"}
    head = {"": "{label}", "runs": "{runs}", **columns(rates, thresholds)}
    shown = markdown(head, table)
    print(shown)
    final = {label: [run.final for run in runs] for label, runs in summaries.items()}
    for first, second in combinations(final, 2):
        chance = probability_of_improvement(final[first], final[second])
        print(f"a run of {first!r} beats one of {second!r} in {chance:.0%} of the pairs")

    # 2. Tables
    lines = references(paths[0])
    names = ("step", "seconds", "success", "held_out_success")
    measured = [
        {"label": label, "run": index, **dict(zip(names, row.values(), strict=True))}
        for label, (_, runs) in groups.items()
        for index, run in enumerate(runs)
        for row in run
    ]
    write(out / "success.csv", measured)
    write(out / "comparison.csv", table)
    (out / "comparison.md").write_text(shown, encoding="utf-8")
    write_results(lines, out / "references.csv")
    print(format_results(lines))

    # 3. Curves
    heights = {line.policy: line.success for line in lines}
    for axis, name, x_label in (
        ("step", "steps.png", read(paths[0]).unit),
        ("seconds", "seconds.png", "seconds"),
    ):
        curves = {
            label: [([row[axis] for row in run], [row[METRIC] for row in run]) for run in runs]
            for label, (_, runs) in groups.items()
        }
        plot_learning_curves(curves, out / name, references=heights, x_label=x_label)


def read_game(game: Path, thresholds: list[float]) -> tuple[list[dict], dict]:
    """A game's rows of the table of games, and the settings of its arms, as "arm/key"."""
    reports = sorted(game.glob("model/*/report.json"))
    if not reports:
        raise ValueError(f"{str(game)!r} has no model/<seed>/report.json, which pretrain.py writes")
    report, arms = read_report(reports[0]), arms_of(game)
    settings = {"model": report["settings"]}
    for arm, runs in arms.items():
        require_alike(runs, own_settings, "runs of an arm differ by their seed alone")
        settings[arm] = own_settings(runs[0])
    rows = {arm: [measurements(run) for run in runs] for arm, runs in arms.items()}
    learned = {
        f"{arm}/{key}": some[key]
        for arm, some in settings.items()
        for key in some
        if key not in ABOUT_GAME
    }
    return game_rows(rows, report, thresholds), learned


def compare_games(out: Path, games: list[Path], thresholds: list[float]) -> None:
    """Prints and writes the table of several games."""
    found = {game.name: read_game(game, thresholds) for game in games}
    table = []
    for name, keys in unusual({name: settings for name, (_, settings) in found.items()}).items():
        changed = ", ".join(dict.fromkeys(key.split("/", 1)[1] for key in keys))
        table += [{"game": name, **row, "changed": changed} for row in found[name][0]]
    write(out / "games.csv", table)
    head = {"game": "{game}", "agent": "{agent}", "runs": "{runs}"}
    head |= columns({"training games": "success", "new games": "new"}, thresholds)
    head |= {"steps of random play": "{pretraining_steps:,.0f}", "steps": "{steps:,.0f}"}
    shown = markdown({**head, "minutes": "{minutes:.1f}", "changed": "{changed}"}, table)
    (out / "games.md").write_text(shown, encoding="utf-8")
    print(shown)


if __name__ == "__main__":
    main()
