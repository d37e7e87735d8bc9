"""The table of several games, with numbers worked out by hand."""

import json
import math
import os
import shutil

import pytest
from results.tables import markdown
from run_metrics import read_csv

from torchrl_glam.report.games import HELD_OUT, METRIC, game_rows, unusual

from .records import write_run


def a_run(*rows):
    return [dict(zip(("step", "seconds", METRIC, HELD_OUT), row, strict=True)) for row in rows]


REPORT = {"train/random_success": 0.25, "test/random_success": 0.2, "steps_of_play": 4096}


def test_a_game_has_a_row_for_chance_the_model_and_each_arm():
    fast = a_run((0, 0, 0.3, 0.1), (100, 30, 0.6, 0.4), (200, 60, 0.9, 0.5))
    slow = a_run((0, 0, 0.3, 0.1), (100, 50, 0.4, 0.2), (200, 120, 0.7, 0.3))
    poor = a_run((0, 0, 0.3, 0.1), (400, 40, 0.2, 0.2))
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
    assert {key: sac[key] for key in expected} == pytest.approx(expected)
    assert sac["steps_to_0.8"] == math.inf  # half of the runs do not come to it
    assert (ppo["steps"], ppo["steps_to_0.5"], ppo["success"]) == (400, math.inf, 0.2)
    assert math.isnan(ppo["success_low"])


def test_a_game_without_new_games_has_none():
    run = a_run((0, 0, 0.3, math.nan), (8, 1, 0.6, math.nan))
    rows = game_rows({"sac": [run]}, {"train/random_success": 0.25, "steps_of_play": 8})
    assert all(math.isnan(row["new"]) for row in rows)


def test_unusual_settings_are_those_of_few_games():
    told = {"memory": 0, "gamma": 0.9, "sizes": [4, 4]}
    games = {"a": told, "b": {**told, "gamma": 0.95}, "c": {**told, "sizes": [8]}, "d": {}}
    assert unusual(games) == {"a": [], "b": ["gamma=0.95"], "c": ["sizes=[8]"], "d": []}


def test_cells_that_are_not_known_are_dashes():
    columns = {
        "game": "{game}",
        "rate": "{mean:.2f} ({low:.2f} to {high:.2f})",
        "steps": "{n:,.0f}",
    }
    rows = [
        {"game": "a", "mean": 0.5, "low": 0.25, "high": 0.75, "n": 1234.0},
        {"game": "b", "mean": 0.5, "low": math.nan, "high": math.nan, "n": math.inf},
        {"game": "c|d"},
    ]
    assert markdown(columns, rows).splitlines() == [
        "| game | rate | steps |",
        "|---|---|---|",
        "| a | 0.50 (0.25 to 0.75) | 1,234 |",
        "| b | 0.50 | – |",
        r"| c\|d | – | – |",
    ]


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
    for game, gamma, lr in (("chess", 0.9, 1.0), ("go", 0.9, 2.0), ("hanoi", 0.95, 1.0)):
        own = {"gamma": gamma, "lr": lr, "env_class": f"its:{game}"}
        a_game(tmp_path / "games" / game, [0.2, 0.6], [0.2, 0.6], **own)
    said = succeeds("compare", "--out", "out", "games")
    assert (tmp_path / "out" / "games.md").read_text() in said
    row = "| chess | lr0.1 | 2 | 0.600 (0.600 to 0.600) | 0.300 (0.300 to 0.300) | 100 | 1 |"
    assert row in said
    rows = [row for row in read_csv(tmp_path / "out" / "games.csv") if row["agent"] == "lr0.1"]
    assert [row["changed"] for row in rows] == ["", "lr=2.0", "gamma=0.95"]
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


def test_a_run_that_diverged_counts_as_a_failure_on_new_games_too(tmp_path, succeeds):
    a_game(tmp_path / "games" / "chess", [0.2, 0.6, 0.8], [0.2, 0.6], total_steps=200)
    (tmp_path / "games" / "chess" / "lr0.1" / "1" / "diverged.txt").write_text("loss is nan")
    succeeds("compare", "--out", "out", "games")
    *_, row = read_csv(tmp_path / "out" / "games.csv")
    assert float(row["success"]) == pytest.approx(0.8 / 2)
    assert float(row["new"]) == pytest.approx(0.4 / 2)
