"""Pre-training as a user runs it: any environment's random play becomes a model to train."""

import json

import pytest
import torch
from corridor import Corridor
from run_metrics import read_csv
from torchrl.envs import TransformedEnv

from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.text import TokenizeText

pytestmark = pytest.mark.slow

SMALL = [
    *("num_batches=4", "batch_size=4", "log_every=2", "num_steps=64", "episodes=2"),
    *("d_model=16", "d_ff=16", "num_heads=2", "num_layers=1", "num_decoder_layers=1"),
    *("entropy_states=8", "output=model"),
]


def test_random_play_of_a_game_becomes_a_model_that_reads_it(succeeds, tmp_path):
    succeeds("pretrain", *SMALL, "env=corridor:Corridor", "env.names_goals=true")
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


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("agent.json", "{}", "an agent (agent.json)"),
        ("config.json", "{}", "an agent (config.json)"),
        ("report.json", '{"settings": 3}', "report.json' is no report"),
    ],
)
def test_what_something_else_made_is_not_overwritten(refused, tmp_path, file, text, message):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / file).write_text(text)
    last = refused("pretrain", *SMALL, "overwrite=false")
    assert last.startswith(("ValueError: ", "FileExistsError: ")) and message in last
    assert [path.name for path in (tmp_path / "model").iterdir()] == [file]
    assert (tmp_path / "model" / file).read_text() == text


def test_a_model_whose_report_is_not_there_yet_is_made_again(succeeds, tmp_path):
    """What a run that is killed leaves; the same command once more passes over the model."""
    (tmp_path / "model").mkdir()
    for name in ("config.json", "loss.csv", "report.json"):
        (tmp_path / "model" / name).write_text("")
    succeeds("pretrain", *SMALL, "overwrite=false")
    made = (tmp_path / "model" / "report.json").read_text()
    assert "is done" in succeeds("pretrain", *SMALL, "overwrite=false")
    assert (tmp_path / "model" / "report.json").read_text() == made != ""


def test_the_embedded_model_is_one_of_its_configurations(succeeds, tmp_path):
    options = ("results=model", "questions=1", "imitate_steps=128", "--config-name=tiny")
    succeeds("pretrain", *SMALL, *options)  # argparse wants all overrides in one row
    _, tokenizer = load_language_model(tmp_path / "model")
    _, embedded = load_language_model("tiny")
    assert tokenizer.get_vocab() == embedded.get_vocab()
    report = json.loads((tmp_path / "model" / "report.json").read_text())
    for split in ("simple", "train", "test"):
        assert len(report[f"{split}/imitation"]) == 1
