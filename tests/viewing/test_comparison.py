"""Statistics over runs against numbers worked out by hand, and the recipe that prints them."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from compare import measurements
from run_metrics import read_csv

from torchrl_glam.report.comparison import (
    METRIC,
    interquartile_mean,
    probability_of_improvement,
    summarise,
)
from torchrl_glam.report.games import game_rows, unusual
from torchrl_glam.report.plotting import mean_and_interval
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.run_folder import stored_settings
from torchrl_glam.runs.success import Result
from torchrl_glam.viewing import plot_results

from .records import SIMPLE, measured, write_run


def test_a_run_between_its_measurements_is_a_straight_line():
    run = measured((0, 0, 0.0), (10, 2, 0.4), (30, 7, 0.8))
    run = summarise(run, end=20, thresholds=[0.4, 0.5, 0.9])
    assert run.final == pytest.approx(0.6)
    # Triangle 10 * 0.4 / 2, then a trapezium 10 * (0.4 + 0.6) / 2, over 20 steps.
    assert run.area == pytest.approx((2 + 5) / 20)
    assert run.reached == {0.4: (10, 2), 0.5: (30, 7), 0.9: (math.inf, math.inf)}
    assert summarise(measured((5, 1, 0.4)), 5, []).area == pytest.approx(0.4)


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side():
    values = [0.0, 0.1, 0.5, 0.7, 0.9, 1.0, 0.2, 0.3]
    assert interquartile_mean(values) == pytest.approx((0.2 + 0.3 + 0.5 + 0.7) / 4)
    assert interquartile_mean(values[:3]) == pytest.approx(0.2)


def test_a_curve_ends_where_the_shortest_run_does_and_runs_are_straight_lines_between():
    runs = [([0, 10, 20], [0.0, 0.5, 1.0]), ([0, 20, 40], [0.5, 0.5, 0.5])]
    x, middle, _, _ = mean_and_interval(runs)
    assert (x.tolist(), middle.tolist()) == ([0, 10, 20], [0.25, 0.5, 0.75])
    runs = [([0, 10], [0.0, end]) for end in (0.0, 0.1, 0.3, 1.0)]
    x, middle, low, high = mean_and_interval(runs)  # the interquartile mean
    assert x.tolist() == [0, 10] and middle.tolist() == pytest.approx([0.0, 0.2])
    assert low[1] < 0.2 < high[1]


def test_one_run_beats_another_as_often_as_pairs_say():
    assert probability_of_improvement([3, 1], [2, 0]) == 3 / 4
    assert probability_of_improvement([1, 1], [1, 1]) == 0.5


REPORT = {"train/random_success": 0.25, "test/random_success": 0.2, "steps_of_play": 4096}


def test_a_game_has_a_row_for_chance_the_model_and_each_arm():
    fast = measured((0, 0, 0.3, 0.1), (100, 30, 0.6, 0.4), (200, 60, 0.9, 0.5))
    slow = measured((0, 0, 0.3, 0.1), (100, 50, 0.4, 0.2), (200, 120, 0.7, 0.3))
    poor = measured((0, 0, 0.3, 0.1), (400, 40, 0.2, 0.2))
    rows = game_rows({"sac": [fast, slow], "ppo": [poor]}, REPORT, thresholds=[0.5, 0.8])
    chance, before, sac, ppo = rows
    assert chance == {"agent": "random play", "success": 0.25, "new": 0.2}
    assert (before["agent"], before["runs"]) == ("pretrained", 2)  # models, one a seed
    assert (before["success"], before["new"]) == pytest.approx((0.3, 0.1))
    assert before["pretraining_steps"] == 4096
    # Of the four resamples of two runs one is twice the lower, one twice the higher: 25 % each.
    expected = {"success": 0.8, "success_low": 0.7, "success_high": 0.9}
    expected |= {"new": 0.4, "new_low": 0.3, "new_high": 0.5, "runs": 2, "steps": 200}
    expected |= {"steps_to_0.5": (100 + 200) / 2, "seconds_to_0.5": (30 + 120) / 2}
    expected |= {"minutes": (60 + 120) / 2 / 60, "pretraining_steps": 4096}
    # Half of the runs do not come to 0.8.
    expected |= {"steps_to_0.8": math.inf, "seconds_to_0.8": math.inf}
    assert {key: sac[key] for key in expected} == pytest.approx(expected)
    assert (ppo["steps"], ppo["steps_to_0.5"], ppo["success"]) == (400, math.inf, 0.2)
    assert math.isnan(ppo["success_low"])
    # A game without new ones
    run = measured((0, 0, 0.3, math.nan), (8, 1, 0.6, math.nan))
    rows = game_rows({"sac": [run]}, {"train/random_success": 0.25, "steps_of_play": 8})
    assert all(math.isnan(row["new"]) for row in rows)


def test_unusual_settings_are_those_of_few_games():
    told = {"memory": 0, "gamma": 0.9, "sizes": [4, 4]}
    games = {"a": told, "b": {**told, "gamma": 0.95}, "c": {**told, "sizes": [8]}, "d": {}}
    assert unusual(games) == {"a": [], "b": ["gamma=0.95"], "c": ["sizes=[8]"], "d": []}


def test_a_measurement_between_two_rows_that_tell_the_time_has_a_time_between_theirs(tmp_path):
    rows = ("step,seconds,eval/train/sampled/success", "0,,0.1", "40,,0.5", "80,8,", "100,12,0.9")
    (tmp_path / "metrics.csv").write_text("\n".join(rows) + "\n")
    assert [row["seconds"] for row in measurements(tmp_path)] == [0, 4, 12]


def a_run(folder, success, **settings):
    return write_run(folder, success, **{"env": SIMPLE, **settings})


def test_the_recipe_writes_curves_and_tables(tmp_path, succeeds, refused):
    whole = {key: getattr(RecipeConfig(), key) for key in ("env_class", "eval_splits")}
    ends = [(0.9, {}), (1.0, whole)]
    first = [a_run(tmp_path / f"a{i}", [0.2, 0.9, end], **m) for i, (end, m) in enumerate(ends)]
    other = a_run(tmp_path / "b", [0.2, 0.3, 0.4, 0.5])
    (tmp_path / "a1" / "run.json").write_text('{"starts": [{"pretraining": "words, labels"}]}')
    (tmp_path / "b" / "run.json").write_text('{"starts": [3]}')
    given = ("--threshold", "0.9", "--threshold", "0.5", "good", *first, "--", "poor", other)
    said = succeeds("compare", "--out", "out", *given)
    assert "language model trained on: not known; or words, labels\n" in said
    assert "good, a0: reached 90% after 100 steps, 1 s; at the end 0.900" in said
    assert "a run of 'good' beats one of 'poor' in 100% of the pairs" in said
    out = tmp_path / "out"
    for name in ("steps.png", "seconds.png"):
        assert (out / name).stat().st_size > 1000
    good, poor = read_csv(out / "comparison.csv")
    expected = {"step": 200, "mean": 0.95, "mean_low": 0.9, "mean_high": 1.0, "area": 0.7375}
    expected |= {"steps_to_0.9": 100, "seconds_to_0.9": 1, "reached_0.9": 2, "reached_0.5": 2}
    assert {key: float(good[key]) for key in expected} == pytest.approx(expected)
    expected = {"iqm": 0.4, "reached_0.9": 0, "reached_0.5": 1, "steps_to_0.5": 300}
    assert {key: float(poor[key]) for key in expected} == pytest.approx(expected)
    table = (out / "comparison.md").read_text()
    assert "| good | 2 | 0.950 (0.900 to 1.000) | 0.738 (0." in table and table in said
    rows = (out / "success.csv").read_text().splitlines()
    assert rows[0] == "label,run,step,seconds,success,held_out_success"
    assert rows[1] == "good,0,0.0,0.0,0.2,0.1" and len(rows) == 1 + 3 + 3 + 4
    chance, oracle = read_csv(out / "references.csv")
    assert int(chance["episodes"]) >= 2000 and float(oracle["success"]) == 1.0
    assert float(chance["low"]) < float(chance["success"]) < float(chance["high"])
    last = refused("compare", "--out", "other", *first)
    assert f"{first[0]!r} is a run where a label should stand" in last
    last = refused("compare", "--out", "out", "good", *first)
    assert "success.csv' is there, and would be overwritten: give another `--out`" in last


@pytest.mark.hostile
def test_a_figure_has_a_line_for_each_arm_and_says_what_diverged(tmp_path, succeeds, refused):
    for arm, ends in (("n1", (0.6, 0.8)), ("n3", (0.4, 0.9))):
        for seed, end in enumerate(ends):
            a_run(tmp_path / "figure" / arm / str(seed), [0.2, end, end], total_steps=200)
    broken = a_run(tmp_path / "figure" / "n3" / "2", [0.2, 0.6], total_steps=200, seed=2)
    (Path(broken) / "diverged.txt").write_text("update 7 at step 104: loss is nan")
    a_run(tmp_path / "n1", [0.2])  # a run of its own, and no label of the figure's
    succeeds("compare", "--out", "out", "figure")
    one, three = read_csv(tmp_path / "out" / "comparison.csv")
    assert (one["label"], three["label"]) == ("n1", "n3 (1 diverged)")
    assert float(one["step"]) == 200 and float(three["mean"]) == pytest.approx((0.4 + 0.9) / 3)
    assert (one["reached_0.5"], one["reached_0.8"]) == ("2", "1")
    a_run(tmp_path / "figure" / "n1" / "3", [0.2, 0.9], total_steps=200, gamma=0.5)
    last = refused("compare", "--out", "again", "figure")
    assert "differ by their seed alone: gamma is None in" in last
    for seed, settings in enumerate(({"gamma": 0.5}, {})):  # of which the later one says nothing
        a_run(tmp_path / "back" / "n1" / str(seed), [0.2, 0.9], total_steps=200, **settings)
    assert "gamma is 0.5 in" in refused("compare", "--out", "again", "back")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        assert f"{name}' holds no run of an arm" in refused("compare", "--out", "again", name)
    (Path(broken) / "config.yaml").write_text("{seed: 2}")
    last = refused("compare", "--out", "again", "n3", broken)
    assert "total_steps (None) of the run" in last and "must be a whole number" in last


def a_game(folder, *runs, lr=1.0, **settings):
    """Runs of one arm, each with the success that it measured, and their models."""
    for seed, ends in enumerate(runs):
        model, own = folder / "model" / str(seed), {"seed": seed, **settings}
        write_run(folder / "lr0.1" / str(seed), ends, language_model=str(model), **own)
        model.mkdir(parents=True)
        report = {**REPORT, "settings": {"seed": seed, "lr": lr}}
        (model / "report.json").write_text(json.dumps(report))


@pytest.mark.hostile
def test_the_table_names_what_a_game_has_of_its_own_and_reads_no_pipe(tmp_path, succeeds, refused):
    for game, gamma, lr in (("chess", 0.9, 1.0), ("go", 0.9, 2.0), ("ha|noi", 0.95, 1.0)):
        own = {"gamma": gamma, "lr": lr, "env_class": f"its:{game}", "total_steps": 200}
        a_game(tmp_path / "games" / game, [0.2, 0.6], [0.2, 0.6], **own)
    (tmp_path / "games" / "go" / "lr0.1" / "1" / "diverged.txt").write_text("loss is nan")
    said = succeeds("compare", "--out", "out", "games")
    table = (tmp_path / "out" / "games.md").read_text()
    assert table in said
    unknown = " | –" * 7  # when it came to each threshold, steps and minutes
    for row in (
        f"| chess | random play | – | 0.250 | 0.200{unknown} |  |",
        "| chess | lr0.1 | 2 | 0.600 (0.600 to 0.600) | 0.300 (0.300 to 0.300) | 100 | 1 | – | – "
        "| 4,096 | 100 | 0.0 |  |",
        r"| ha\|noi | pretrained | 2 | 0.200 (",
    ):
        assert f"\n{row}" in table
    rows = [row for row in read_csv(tmp_path / "out" / "games.csv") if row["agent"] == "lr0.1"]
    assert [row["changed"] for row in rows] == ["", "lr=2.0", "gamma=0.95"]
    # A run that diverged counts as a failure, on new games too.
    success = [(float(row["success"]), float(row["new"])) for row in rows[:2]]
    assert success == [pytest.approx((0.6, 0.3)), pytest.approx((0.6 / 2, 0.3 / 2))]
    report = tmp_path / "games" / "chess" / "model" / "0" / "report.json"
    for text, message in (
        ("[]", "chess/model/0/report.json' is no report of pretrain.py"),
        ("[" * 100_000, "nested too deeply"),
    ):
        report.write_text(text)
        assert message in refused("compare", "--out", "other", "games")
    report.unlink()
    os.mkfifo(report)
    assert "is a pipe" in refused("compare", "--out", "other", "games")
    shutil.rmtree(report.parents[1])
    last = refused("compare", "--out", "other", "games")
    assert "chess' has no model/<seed>/report.json, which pretrain.py writes" in last
    assert not (tmp_path / "other").exists()


@pytest.mark.hostile
def test_a_run_from_elsewhere_makes_no_environment_of_its_choice(tmp_path, succeeds):
    called = {"env_class": "os:system", "env": {"command": f"touch {tmp_path / 'called'}"}}
    run = a_run(tmp_path / "a", [0.2, 0.9], **called)
    assert "names an environment of its own" in succeeds("compare", "--out", "out", "a", run)
    assert not (tmp_path / "called").exists()


def test_dollars_in_labels_are_no_formula(tmp_path, succeeds):
    run = a_run(tmp_path / "a", [0.2, 0.9])
    succeeds("compare", "--out", "out", "5$ and \\\\frac$", run)
    kinds = [Result("$a", "train", 0, kind, 10, 5, 4.0) for kind in ("all", "1$ or 2$_")]
    plot_results(kinds, tmp_path / "kinds.png")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("metrics.csv", os.mkfifo, "metrics.csv' is a pipe, socket or device"),
        ("config.yaml", "a: &a [1]\nb: [*a, *a]\n", "has aliases"),
        ("config.yaml", "[" * 60_000, "is no configuration of a"),
        ("config.yaml", "seed: !!bool maybe", "is no configuration of a"),
        ("config.yaml", "env: 3", "env (3) of the run"),
        ("config.yaml", "eval_splits: {}", "split (train) must be one of []"),
        ("config.yaml", lambda path: path.symlink_to("/etc/passwd"), "is a symbolic link"),
        ("metrics.csv", f"step,{METRIC}\n0,{'1' * 200_000}\n", "metrics.csv' is no table"),
        ("metrics.csv", f"step,{METRIC}\n1e18,7\n", "impossible row"),
        ("metrics.csv", f"step,{METRIC}\n8,1\n8,1\n", "not ascend"),
    ],
)
def test_runs_of_strangers_are_data(name, damage, message, tmp_path, refused):
    path = Path(a_run(tmp_path / "a", [0.2, 0.9])) / name
    path.unlink()
    damage(path) if callable(damage) else path.write_text(damage)
    last = refused("compare", "--out", "out", "a", path.parent)
    assert message in last and "root:" not in last
    assert not (tmp_path / "out").exists()


@pytest.mark.hostile
def test_settings_of_strangers_are_not_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "geheim")
    (tmp_path / "config.yaml").write_text("env: {level: '${oc.env:SECRET}'}\n")
    assert stored_settings(tmp_path) == {"env": {"level": "${oc.env:SECRET}"}}


def test_the_recipe_refuses_what_cannot_be_compared(tmp_path, refused):
    run, offline = (a_run(tmp_path / name, [0.2, 0.9]) for name in "ac")
    other = a_run(tmp_path / "b", [0.2, 0.9], env=SIMPLE | {"num_objects": 6})
    (tmp_path / "c" / "run.json").write_text('{"unit": "updates"}')
    for runs, message in (
        ((run, "--", "b", other), "runs of different environments cannot be compared: env is"),
        ((run, "--", "a", run), "every group needs a label of its own"),
        ((run, "--", "x", run), "a run is given twice"),
        ((run, "--", "x", offline), "they count different steps: unit is environment steps in"),
    ):
        assert message in refused("compare", "--out", "out", "a", *runs)
    assert not (tmp_path / "out").exists()
