"""The tutorials run, and show what their texts say."""

import runpy
from pathlib import Path

import pytest
from run_metrics import metrics

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "recipes" / "tutorials"
SCRIPTS = sorted(FOLDER.glob("*.py"))
COUNT = 7


def run(name):
    [path] = FOLDER.glob(f"?_{name}.py")
    return runpy.run_path(str(path))


def test_every_tutorial_has_a_test_below():
    text = Path(__file__).read_text(encoding="utf-8")
    assert len(SCRIPTS) == COUNT and all(f'run("{path.stem[2:]}")' in text for path in SCRIPTS)


def test_environment_and_hindsight(capsys):
    """Five goals are named after two steps, and five after three: 3 + 5 * 2 + 5 * 3 rows."""
    names = run("environment_and_hindsight")
    rows, returns = names["rows"], names["returns"].tolist()
    assert len(rows) == 28 and rows["next", "reward"].sum() == 10
    assert sorted(round(value, 2) for value in returns) == (
        [0.0] * 3 + [0.81] * 5 + [0.9] * 10 + [1.0] * 10
    )
    assert names["batch"]["is_hindsight"].sum() == 4
    assert "Grasp any living_thing step reward 1.0 the end" in capsys.readouterr().out


def test_sac_glam_by_hand():
    names = run("sac_glam_by_hand")
    assert names["error"] < 1e-4
    assert sum(names["successes"][-3:]) / 3 > 0.6  # sampled without training: 0.2


def test_a_trained_agent():
    names = run("a_trained_agent")
    success = {result.policy: result.success for result in names["results"] if result.kind == "all"}
    assert success["oracle"] == 1 and success["agent, sampled"] > 0.7 > success["random play"] + 0.2
    assert "<html" in (names["folder"] / "episodes.html").read_text(encoding="utf-8")


def test_your_own_model():
    names = run("your_own_model")
    assert names["error"] < 1e-3 and names["values"].shape == (8, 5)
    assert names["entropies"]["sum"] < 0.5 < 0.9 < names["entropies"]["token_mean"]


def test_your_own_loss():
    successes = run("your_own_loss")["successes"]
    assert sum(successes[-3:]) / 3 > sum(successes[:3]) / 3 + 0.3


def test_hindsight_for_numeric_goals():
    names = run("hindsight_for_numeric_goals")
    assert names["hindsight"][-1] > 0.8 > 0.2 > names["plain"][-1]


def test_your_own_recipe(tmp_path, capsys):
    """A run that is resumed has the metrics of an unbroken one; its value head learns."""
    main = run("your_own_recipe")["main"]
    with pytest.raises(SystemExit):
        main(["gamma=2"])
    assert "ValueError: gamma (2.0) must be in [0, 1]\n" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["model=tiny"])
    error = capsys.readouterr().err
    assert "Key 'model' not in 'AWRConfig'" in error and "did you mean" not in error
    often = ["log_every=160", "eval_every=0", "checkpoint_every=320", "eval_episodes=100"]
    main([*often, "loggers=[]", f"output={tmp_path / 'unbroken'}", "total_steps=800"])
    main([*often, "loggers=[]", f"output={tmp_path / 'resumed'}", "total_steps=320"])
    main([*often, "loggers=[]", f"resume={tmp_path / 'resumed'}", "total_steps=480"])
    capsys.readouterr()
    main(
        ["resume=auto", f"output={tmp_path / 'unbroken'}", *often, "loggers=[]", "total_steps=800"]
    )
    assert "is done" in capsys.readouterr().out
    whole, again = metrics(tmp_path / "unbroken"), metrics(tmp_path / "resumed")
    losses = {row["step"]: row["loss_value"] for row in whole}
    assert all(row["loss_value"] == losses[row["step"]] for row in again) and len(again) > 2
    assert float(whole[-1]["loss_value"]) < float(whole[1]["loss_value"])
    assert "eval/train/greedy/success" in whole[-1]
    assert all((tmp_path / "unbroken" / name).exists() for name in ("report.html", "model"))
