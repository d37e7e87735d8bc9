"""Statistics over runs against numbers worked out by hand, and the recipe that prints them."""

import csv
import json
import math
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from torchrl_glam.report.comparison import (
    comparison_table,
    interquartile_mean,
    probability_of_improvement,
    summarise,
)
from torchrl_glam.report.plotting import mean_and_interval
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.run_folder import stored_settings
from torchrl_glam.runs.success import Result, interval
from torchrl_glam.viewing import plot_results

METRIC = "eval/train/sampled/success"
COMPARE = Path(__file__).parents[2] / "recipes" / "compare.py"


def test_a_run_between_its_measurements_is_a_straight_line():
    run = summarise(([0, 10, 30], [0.0, 0.4, 0.8]), [0, 2, 7], end=20, thresholds=[0.4, 0.5, 0.9])
    assert run.final == pytest.approx(0.6)
    # Triangle 10 * 0.4 / 2, then a trapezium 10 * (0.4 + 0.6) / 2, over 20 steps.
    assert run.area == pytest.approx((2 + 5) / 20)
    assert run.reached == {0.4: (10, 2), 0.5: (30, 7), 0.9: (math.inf, math.inf)}
    assert summarise(([5], [0.4]), [1], 5, []).area == pytest.approx(0.4)


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side():
    values = np.array([0.0, 0.1, 0.5, 0.7, 0.9, 1.0, 0.2, 0.3])
    assert interquartile_mean(values) == pytest.approx((0.2 + 0.3 + 0.5 + 0.7) / 4)
    assert interquartile_mean(values[:3]) == pytest.approx(0.2)


def test_a_bootstrap_interval_of_two_runs_goes_from_one_to_the_other():
    """Of the four resamples of two runs one is twice the lower, one twice the higher: 25 % each."""
    low, high = interval([0.25, 0.75])
    assert (low, high) == (0.25, 0.75)
    low, high = interval([[0.5, 0.1], [0.5, 0.3]])
    assert low.tolist() == pytest.approx([0.5, 0.1]) and high.tolist() == pytest.approx([0.5, 0.3])
    assert np.isnan(interval([0.3])).all()


def test_the_curve_of_several_runs_leaves_out_a_quarter_on_either_side():
    runs = [([0, 10], [0.0, end]) for end in (0.0, 0.1, 0.3, 1.0)]
    x, middle, low, high = mean_and_interval(runs)
    assert x.tolist() == [0, 10] and middle.tolist() == pytest.approx([0.0, 0.2])
    assert low[1] < 0.2 < high[1]


def test_one_run_beats_another_as_often_as_pairs_say():
    assert probability_of_improvement([3, 1], [2, 0]) == 3 / 4
    assert probability_of_improvement([1, 1], [1, 1]) == 0.5


def test_a_threshold_that_half_of_the_runs_miss_has_no_median():
    curves = [([0, 10], [0.0, 1.0]), ([0, 10], [0.0, 0.2])]
    runs = [summarise(curve, [0, 3], end=10, thresholds=[0.1, 0.9]) for curve in curves]
    (row,) = comparison_table({"a": runs}, step=10)
    assert row["reached_0.9"] == 1 and row["steps_to_0.9"] == row["seconds_to_0.9"] == math.inf
    assert (row["reached_0.1"], row["steps_to_0.1"], row["seconds_to_0.1"]) == (2, 10, 3)
    assert row["mean"] == pytest.approx(0.6) and (row["mean_low"], row["mean_high"]) == (0.2, 1.0)


def a_run(folder, success, objects=3, **more):
    folder.mkdir(parents=True)
    names = "step,seconds,eval/train/sampled/success,eval/test/sampled/success\n"
    rows = [f"{100 * i},{i},{value},{value / 2}\n" for i, value in enumerate(success)]
    (folder / "metrics.csv").write_text(names + "50,0.5,,\n".join(rows))
    settings = {"num_objects": objects, "sequential": False, "max_steps": 10}
    settings = json.dumps({"env": settings} | more)
    (folder / "config.yaml").write_text(settings)
    return str(folder)


@pytest.fixture
def compare(monkeypatch, capsys):
    """Runs the recipe in this process; returns its exit status, and what it wrote."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(COMPARE), *arguments])
        try:
            runpy.run_path(str(COMPARE), run_name="__main__")
            status = 0
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run


def test_the_recipe_writes_curves_and_tables(tmp_path, compare):
    whole = {key: getattr(RecipeConfig(), key) for key in ("env_class", "eval_splits")}
    ends = [(0.9, {}), (1.0, whole)]
    first = [a_run(tmp_path / f"a{i}", [0.2, 0.9, end], **m) for i, (end, m) in enumerate(ends)]
    other = a_run(tmp_path / "b", [0.2, 0.3, 0.4, 0.5])
    (tmp_path / "a1" / "run.json").write_text('{"starts": [{"pretraining": "words, labels"}]}')
    (tmp_path / "b" / "run.json").write_text('{"starts": [3]}')
    out = str(tmp_path / "out")
    thresholds = ("--threshold", "0.9", "--threshold", "0.5")
    status, said, wrong = compare("--out", out, *thresholds, "good", *first, "--", "poor", other)
    assert status == 0, wrong
    assert "good (2 runs), at 200 steps: mean 0.950 [0.900, 1.000]" in said
    assert "language model trained on: not known; or words, labels\n" in said
    assert "good, a0: reached 90% after 100 steps, 1 s; at the end 0.900" in said
    assert "a run of 'good' beats one of 'poor' in 100% of the pairs" in said
    for name in ("steps.png", "seconds.png"):
        assert (tmp_path / "out" / name).stat().st_size > 1000
    with open(tmp_path / "out" / "comparison.csv", newline="") as file:
        good, poor = csv.DictReader(file)
    assert (float(good["area"]), float(poor["iqm"])) == (pytest.approx(0.7375), 0.4)
    assert "2 of 2 reached 50% (median 100 steps, 1 s), 2 of 2 reached 90%" in said
    assert (good["steps_to_0.9"], good["seconds_to_0.9"], poor["reached_0.9"]) == (
        "100.0",
        "1.0",
        "0",
    )
    assert (poor["reached_0.5"], poor["steps_to_0.5"]) == ("1", "300.0")
    rows = (tmp_path / "out" / "success.csv").read_text().splitlines()
    assert rows[0] == "label,run,step,seconds,success,held_out_success"
    assert rows[1] == "good,0,0.0,0.0,0.2,0.1" and len(rows) == 1 + 3 + 3 + 4
    with open(tmp_path / "out" / "references.csv", newline="") as file:
        chance, oracle = csv.DictReader(file)
    assert int(chance["episodes"]) >= 2000 and float(oracle["success"]) == 1.0
    assert float(chance["low"]) < float(chance["success"]) < float(chance["high"])
    status, _, wrong = compare("--out", out, "good", *first)
    assert (
        status == 2
        and "success.csv' is there, and would be overwritten: give another `--out`" in wrong
    )


@pytest.mark.hostile
def test_a_figure_has_a_line_for_each_arm_and_says_what_diverged(tmp_path, compare):
    for arm, ends in (("n1", (0.6, 0.8)), ("n3", (0.4, 0.9))):
        for seed, end in enumerate(ends):
            a_run(tmp_path / "figure" / arm / str(seed), [0.2, end, end], total_steps=200)
    broken = a_run(tmp_path / "figure" / "n3" / "2", [0.2, 0.6], total_steps=200, seed=2)
    (Path(broken) / "diverged.txt").write_text("update 7 at step 104: loss is nan")
    out = tmp_path / "out"
    status, said, wrong = compare("--out", str(out), str(tmp_path / "figure"))
    assert status == 0, wrong
    with open(out / "comparison.csv", newline="") as file:
        one, three = csv.DictReader(file)
    assert (one["label"], three["label"]) == ("n1", "n3 (1 diverged)")
    assert float(one["step"]) == 200 and float(three["mean"]) == pytest.approx((0.4 + 0.9) / 3)
    assert (one["reached_0.5"], one["reached_0.8"]) == ("2", "1")
    head, _, first, second = (out / "comparison.md").read_text().splitlines()
    assert head.count("|") == first.count("|") == 9 and "steps to 0.5 | seconds to 0.5" in head
    assert first.startswith("| n1 | 2 | 0.700 (0.600 to 0.800) | 0.") and "n3 (1 div" in second
    a_run(tmp_path / "figure" / "n1" / "3", [0.2, 0.9], total_steps=200, gamma=0.5)
    status, _, wrong = compare("--out", str(tmp_path / "again"), str(tmp_path / "figure"))
    assert status == 2 and "differ by their seed alone: gamma is None in" in wrong
    (tmp_path / "empty").mkdir()
    assert compare("--out", str(tmp_path / "again"), str(tmp_path / "empty"))[0] == 2


def test_a_run_from_elsewhere_makes_no_environment_of_its_choice(tmp_path, compare):
    """Its configuration would have any function called, with any arguments."""
    called = {"env_class": "os:system", "env": {"command": f"touch {tmp_path / 'called'}"}}
    run = a_run(tmp_path / "a", [0.2, 0.9], **called)
    status, said, wrong = compare("--out", str(tmp_path / "out"), "a", run)
    assert status == 0, wrong
    assert "names an environment of its own" in said and not (tmp_path / "called").exists()


def test_dollars_in_labels_are_no_formula(tmp_path, compare):
    run = a_run(tmp_path / "a", [0.2, 0.9])
    status, _, wrong = compare("--out", str(tmp_path / "out"), "5$ and \\\\frac$", run)
    assert status == 0, wrong
    kinds = [Result("$a", "train", 0, kind, 10, 5, 4.0) for kind in ("all", "1$ or 2$_")]
    plot_results(kinds, tmp_path / "kinds.png")


@pytest.mark.hostile
@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda run: os.mkfifo(run / "metrics.csv"), "metrics.csv is a pipe, socket or device"),
        (lambda run: os.mkfifo(run / "config.yaml"), "is a pipe, socket or device"),
        (lambda run: (run / "config.yaml").write_text("a: &a [1]\nb: [*a, *a]\n"), "has aliases"),
        (lambda run: (run / "config.yaml").write_text("[" * 60_000), "is no configuration of a"),
        (lambda run: (run / "config.yaml").symlink_to("/etc/passwd"), "is a symbolic link"),
        (
            lambda run: (run / "metrics.csv").write_text(f"step,{METRIC}\n1e18,7\n"),
            "impossible row",
        ),
        (lambda run: (run / "metrics.csv").write_text(f"step,{METRIC}\n8,1\n8,1\n"), "not ascend"),
    ],
)
def test_runs_of_strangers_are_data(damage, message, tmp_path, compare):
    run = Path(a_run(tmp_path / "a", [0.2, 0.9]))
    name = "metrics.csv" if "metrics" in message or "row" in message else "config.yaml"
    (run / ("metrics.csv" if "ascend" in message else name)).unlink()
    damage(run)
    status, _, wrong = compare("--out", str(tmp_path / "out"), "a", str(run))
    assert status == 2 and message in wrong and "root:" not in wrong
    assert not (tmp_path / "out").exists()


@pytest.mark.hostile
def test_settings_of_strangers_are_not_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "geheim")
    (tmp_path / "config.yaml").write_text("env: {level: '${oc.env:SECRET}'}\n")
    assert stored_settings(tmp_path) == {"env": {"level": "${oc.env:SECRET}"}}


@pytest.mark.hostile
def test_output_is_opened_first_and_through_no_link(tmp_path, compare):
    run = a_run(tmp_path / "a", [0.2, 0.9])
    (tmp_path / "file").write_text("mine")
    status, said, wrong = compare("--out", str(tmp_path / "file"), "a", run)
    assert status == 2 and "is a file: give a folder" in wrong and not said
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "steps.png").symlink_to(tmp_path / "elsewhere")
    status, said, wrong = compare("--out", str(tmp_path / "out"), "a", run)
    assert status == 2 and "is a symbolic link" in wrong and not said
    assert not (tmp_path / "elsewhere").exists()


def test_the_recipe_refuses_what_cannot_be_compared(tmp_path, compare):
    run, other = a_run(tmp_path / "a", [0.2, 0.9]), a_run(tmp_path / "b", [0.2, 0.9], objects=6)
    out, begun = str(tmp_path / "out"), a_run(tmp_path / "c", [])
    for runs, message in (
        ((run, "--", "b", other), "runs of different environments cannot be compared"),
        ((begun,), "has no rows yet"),
        ((str(tmp_path / "nowhere"),), "no run in"),
        ((run, "--", "a", run), "every group needs a label of its own"),
        ((run, "--threshold", "80"), "--threshold ([80.0]) is a success"),
    ):
        status, _, wrong = compare("--out", out, "a", *runs)
        assert status == 2 and message in wrong
    assert not (tmp_path / "out").exists()
