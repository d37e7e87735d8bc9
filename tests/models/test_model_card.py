"""The README.md of an export."""

import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig

from torchrl_glam.models import AgentCard, export_agent, load_language_model, write_model_card
from torchrl_glam.runs.success import Result

GAME = {"env_class": "torchrl_glam.envs:PlaygroundTextEnv", "env": {"num_objects": 3}}
# 27 of 30: by Wilson's formula with z = 1.96, 0.8546 less and plus 0.1108.
GREEDY = Result("greedy", "test", 0, "all", episodes=30, successes=27, length=4.2)


def export(folder, lora=None, **settings):
    model, tokenizer = load_language_model("tiny", lora=lora)
    card = AgentCard(**({"environment": GAME, "num_critics": 0, "model": "tiny"} | settings))
    return export_agent(folder, model, tokenizer, card=card)


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def test_the_metadata_are_what_hubs_read(tmp_path):
    export(tmp_path, model="google/flan-t5-base")
    origin = {"command": "python recipes/sac_glam.py seed=1", "commit": "0123abc"}
    options = {"results": [GREEDY], "origin": origin, "license": "apache-2.0"}
    with pytest.raises(FileExistsError, match="README.md' is there: remove it, or give overwrite"):
        write_model_card(tmp_path, **options)
    path = write_model_card(tmp_path, **options, overwrite=True)
    front = yaml.safe_load(path.read_text(encoding="utf-8").split("---")[1])
    assert front["base_model"] == "google/flan-t5-base" and front["license"] == "apache-2.0"
    assert front["library_name"] == "torchrl_glam"
    assert front["pipeline_tag"] == "reinforcement-learning"
    [result] = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "PlaygroundTextEnv" and result["dataset"]["split"] == "test"
    [metric] = result["metrics"]
    assert metric["value"] == 0.9
    assert metric["args"] == {"episodes": 30, "low": 0.7438, "high": 0.9654}
    text = ModelCard.load(path).text
    assert "| test | all | greedy | 0.900 | 0.744 to 0.965 | 30 |" in text
    assert "- command: `python recipes/sac_glam.py seed=1`\n- commit: `0123abc`" in text
    [settings] = blocks(path, "yaml")
    assert yaml.safe_load(settings) == GAME and "Licence" not in text


def test_the_code_of_a_card_loads_the_agent(tmp_path, monkeypatch):
    folder = export(tmp_path / "agent")
    monkeypatch.chdir(tmp_path)
    with_us, without_us = blocks(folder / "README.md", "python")
    names = {}
    exec(with_us, names)
    assert names["agent"].card.environment == GAME
    exec(without_us, names)
    assert names["model"].config.model_type == "t5"


@pytest.mark.parametrize("model", ["tiny", "google/flan-t5-base"])
def test_adapters_have_our_card_and_no_path_of_this_machine(model, tmp_path):
    """``peft`` writes a card of its own, with the folder that the base model lay in."""
    lora = LoraConfig(r=2, target_modules=["q"])
    folder = export(tmp_path, lora, model=model, pretraining="labels of the task")
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "torchrl_glam" and "peft" in card.data.tags
    assert "The base model was pretrained on: labels of the task." in card.text
    assert "/torchrl_glam/" not in str(card) and "More Information" not in str(card)
    with_us, *without_us = blocks(folder / "README.md", "python")
    assert "load_agent" in with_us
    if model == "tiny":  # which no hub has
        assert not without_us
    else:
        assert card.data.base_model == model
        assert "PeftModel.from_pretrained(model, " in without_us[0]
        assert f'from_pretrained("{model}")' in without_us[0]


@pytest.mark.parametrize("model", ["tiny", "", "here/model", "a" * 300])
def test_a_base_model_that_no_hub_has_is_not_named_to_hubs(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/model").mkdir(parents=True)
    AgentCard(environment=GAME, model=model).write(tmp_path)
    card = ModelCard.load(write_model_card(tmp_path))
    assert card.data.base_model is None and card.data.eval_results is None
    assert "here/" not in card.text
    assert (card.data.license == "mit") == (model == "tiny")
    assert ("The licence of the base model applies" in card.text) == (model != "tiny")


def test_an_export_without_a_card_has_no_readme_nor_keeps_an_earlier_one(tmp_path):
    export(tmp_path)
    export_agent(tmp_path, *load_language_model("tiny"), overwrite=True)
    assert not (tmp_path / "README.md").exists()
    with pytest.raises(FileNotFoundError, match=r"holds no agent.json.*AgentCard"):
        write_model_card(tmp_path)


def test_the_embedded_agent_gets_no_card(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened to write"))
        for folder in ("tiny", Path("tiny")):
            with pytest.raises(ValueError, match=r"folder \('tiny'\) is the embedded agent"):
                write_model_card(folder, overwrite=True)
    monkeypatch.chdir(tmp_path)
    AgentCard(environment=GAME).write("tiny")  # a folder of one's own
    assert write_model_card("tiny").resolve() == tmp_path / "tiny/README.md"


@pytest.mark.hostile
def test_a_card_is_not_written_through_a_link(tmp_path):
    folder = export(tmp_path / "agent")
    (tmp_path / "secrets").write_text("mine")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "secrets")
    with pytest.raises(ValueError, match=r"README.md' is a symbolic link"):
        write_model_card(folder, overwrite=True)
    assert (tmp_path / "secrets").read_text() == "mine"
