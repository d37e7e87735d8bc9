"""Pre-training as a user runs it: any environment's random play becomes a model to train."""

import json

import pytest
import torch
from corridor import Corridor
from forked_recipe import Recipe
from run_metrics import read_csv
from torchrl.envs import TransformedEnv

from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.text import TokenizeText

pytestmark = pytest.mark.slow

SMALL = [
    *("num_batches=4", "batch_size=4", "log_every=2", "num_steps=64", "episodes=2"),
    *("d_model=16", "d_ff=16", "num_heads=2", "num_layers=1", "num_decoder_layers=1"),
    "entropy_states=8",
]


@pytest.fixture(scope="module")
def recipe():
    return Recipe("pretrain.py")


def test_random_play_of_a_game_becomes_a_model_that_reads_it(recipe, tmp_path):
    options = ["env=corridor:Corridor", "env.names_goals=true", f"output={tmp_path / 'model'}"]
    recipe.succeed(*SMALL, *options, log=tmp_path / "log")

    model, tokenizer = load_language_model(tmp_path / "model")
    assert tokenizer.tokenize(" Go to blue door") == [" Go", " to", " blue", " door"]
    env = TransformedEnv(Corridor(3), TokenizeText(tokenizer))
    scores = make_trunk(model, tokenizer)(env.reset())["log_likelihood"]
    assert scores.shape == (3, 3) and torch.isfinite(scores).all()

    assert model.config.pretraining == "64 steps of random play; no labels of the task"
    report = json.loads((tmp_path / "model" / "report.json").read_text())
    assert report["parameters"] == sum(p.numel() for p in model.parameters())
    assert 0 < report["train/entropy"] <= 1
    assert 0 <= report["train/zero_shot_success"] <= 1 >= report["train/random_success"] >= 0
    assert [row["batch"] for row in read_csv(tmp_path / "model" / "loss.csv")] == ["2", "4"]


@pytest.mark.parametrize("file", ["agent.json", "config.json"])
def test_what_something_else_made_is_not_overwritten(recipe, tmp_path, file):
    log = tmp_path / "log"
    (tmp_path / file).write_text("{}")
    assert recipe.run(*SMALL, f"output={tmp_path}", log=log) != 0
    assert f"holds a model or an agent ({file})" in log.read_text()
    assert (tmp_path / file).read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir()} == {file, "log"}


def test_a_model_whose_report_is_not_there_yet_is_made_again(recipe, tmp_path):
    """What a run that is killed leaves; the same command once more passes over the model."""
    for name in ("config.json", "loss.csv", "report.json"):
        (tmp_path / name).write_text("")
    options = [f"output={tmp_path}", "overwrite=false"]
    recipe.succeed(*SMALL, *options, log=tmp_path / "log")
    made = (tmp_path / "report.json").read_text()
    recipe.succeed(*SMALL, *options, log=tmp_path / "log")
    assert "is done" in (tmp_path / "log").read_text()
    assert (tmp_path / "report.json").read_text() == made != ""


@pytest.mark.parametrize("text", ["[]", "{", '{"settings": 3}'])
def test_a_file_that_is_no_report_is_named(recipe, tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    log = tmp_path / "log"
    assert recipe.run(*SMALL, f"output={tmp_path}", "overwrite=false", log=log) != 0
    last = log.read_text().splitlines()[-1]
    assert last.startswith("ValueError: ") and "report.json' is no report" in last
    assert (tmp_path / "report.json").read_text() == text


def test_the_embedded_model_is_one_of_its_configurations(recipe, tmp_path):
    options = [f"output={tmp_path / 'tiny'}", f"results={tmp_path}", "questions=1"]
    options += ["imitate_steps=128"]
    recipe.succeed(*SMALL, *options, "--config-name=tiny", log=tmp_path / "log")
    _, tokenizer = load_language_model(tmp_path / "tiny")
    _, embedded = load_language_model("tiny")
    assert tokenizer.get_vocab() == embedded.get_vocab()
    report = json.loads((tmp_path / "report.json").read_text())
    for split in ("simple", "train", "test"):
        assert len(report[f"{split}/imitation"]) == 1
