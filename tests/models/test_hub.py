"""The README.md of an export, and its way to a hub, which is a server of this test's own."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig
from tensordict import TensorDict

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    AgentCard,
    CandidateCritic,
    export_agent,
    load_agent,
    load_language_model,
    make_trunk,
    push_agent,
    write_model_card,
)
from torchrl_glam.runs.config import SACGLAMConfig
from torchrl_glam.runs.records.metrics import MetricsTable
from torchrl_glam.runs.results import save_results
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


def test_what_the_base_model_was_trained_on_is_named(tmp_path):
    folder = export(tmp_path, pretraining="labels of the task")
    assert AgentCard.read(folder).pretraining == "labels of the task"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "The base model was pretrained on: labels of the task." in text


def test_adapters_of_the_embedded_model_need_this_package(tmp_path):
    folder = export(tmp_path, LoraConfig(r=2, target_modules=["q"]))
    [code] = blocks(folder / "README.md", "python")
    assert "load_agent" in code


def test_adapters_have_our_card_and_no_path_of_this_machine(tmp_path):
    """``peft`` writes a card of its own, with the folder that the base model lay in."""
    folder = export(tmp_path, LoraConfig(r=2, target_modules=["q"]), model="google/flan-t5-base")
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "torchrl_glam" and "peft" in card.data.tags
    assert card.data.base_model == "google/flan-t5-base"
    assert "PeftModel.from_pretrained(model, " in card.text
    assert "from_pretrained('google/flan-t5-base')" in card.text
    assert "/torchrl_glam/" not in str(card) and "More Information" not in str(card)


@pytest.mark.parametrize("model", ["tiny", "", "here/model"])
def test_a_base_model_that_no_hub_has_is_not_named_to_hubs(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/model").mkdir(parents=True)
    AgentCard(environment=GAME, model=model).write(tmp_path)
    card = ModelCard.load(write_model_card(tmp_path))
    assert card.data.base_model is None and card.data.eval_results is None
    assert "here/" not in card.text
    assert (card.data.license == "mit") == (model == "tiny")
    assert ("The licence of the base model applies" in card.text) == (model != "tiny")


def test_an_export_without_agent_json_gets_no_card(tmp_path):
    export_agent(tmp_path, *load_language_model("tiny"))
    assert not (tmp_path / "README.md").exists()
    for act in (write_model_card, lambda folder: push_agent(folder, "me/agent", token="x")):
        with pytest.raises(FileNotFoundError, match=r"a language model and no agent.json.*AgentC"):
            act(tmp_path)


def test_another_export_replaces_the_card(tmp_path):
    export(tmp_path)
    export_agent(tmp_path, *load_language_model("tiny"), overwrite=True)
    assert not (tmp_path / "README.md").exists()


# --- the hub


class Hub(ThreadingHTTPServer):
    """Answers what is asked to make a repository and to commit files, and keeps these."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.status, self.files, self.asked, self.tokens = 200, {}, [], set()


class Answers(BaseHTTPRequestHandler):
    def do_POST(self):
        hub, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        hub.asked.append(self.path)
        hub.tokens.add(self.headers["Authorization"])
        answer = {}
        if self.path == "/api/repos/create":
            answer = {"url": f"{hub.url}/me/agent"}
        elif self.path.endswith("/preupload/main"):
            answer["files"] = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitUrl": f"{hub.url}/me/agent/commit/1", "commitOid": "1"}
        text = json.dumps(answer).encode()
        self.send_response(hub.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Nothing: pytest's output is for tests."""


@pytest.fixture
def hub(monkeypatch):
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()
    server.server_close()


def test_what_is_pushed_is_the_export_and_nothing_else(hub, tmp_path):
    folder = export(tmp_path / "run" / "model")
    (folder / "README.md").unlink()
    (folder / "notes.py").write_text("mine")
    (folder / "optimizer.pt").write_bytes(b"mine")
    assert push_agent(tmp_path / "run", "me/agent") == f"{hub.url}/me/agent"
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("notes.py", "optimizer.pt"):
        del expected[name]
    assert hub.files == expected and hub.tokens == {"Bearer hf_test"}
    assert {"README.md", "agent.json", "model.safetensors", "tokenizer.json"} <= hub.files.keys()


@pytest.mark.hostile
def test_a_linked_file_is_neither_pushed_nor_written_through(hub, tmp_path):
    folder = export(tmp_path / "agent")
    (tmp_path / "secrets").write_text("mine")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "secrets")
    with pytest.raises(ValueError, match=r"holds 'README.md', which is a symbolic link"):
        push_agent(folder, "me/agent")
    with pytest.raises(ValueError, match=r"README.md' is a symbolic link"):
        write_model_card(folder, overwrite=True)
    assert not hub.files and (tmp_path / "secrets").read_text() == "mine"


@pytest.mark.slow
def test_a_run_ends_with_card_and_push(hub, tmp_path):
    model, tokenizer = load_language_model("tiny")
    critic = CandidateCritic(make_trunk(model, tokenizer).embedding_dim, (8,))
    config = SACGLAMConfig(eval_episodes=30, critic_hidden_sizes=[8])
    table = MetricsTable(tmp_path)
    final = {"eval/test/sampled/success": 0.8, "eval/test/greedy/success": 0.9}
    table.add(64, final | {"eval/test/sampled/length": 5.0, "eval/test/greedy/length": 4.0})
    critics = TensorDict.from_module(critic).unsqueeze(0)
    env = PlaygroundTextEnv(num_envs=2, num_objects=3, sequential=False)
    save_results(tmp_path, table, model, tokenizer, env, critics, config)
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "| test | all | greedy | 0.900 | 0.744 to 0.965 | 30 |" in text
    assert re.search(r"- command: `.*\S.*`", text)
    push_agent(tmp_path, "me/agent")
    assert hub.files["README.md"] == text.encode()
    assert load_agent(tmp_path).critics


@pytest.mark.parametrize("status, error", [(403, PermissionError), (500, ConnectionError)])
def test_a_refusal_of_the_hub_says_so_and_leaves_the_export(status, error, hub, tmp_path):
    folder = export(tmp_path)
    hub.status = status
    match = rf"repo_id \('me/agent'\) .* (at|by) {hub.url} .*as before: push_agent\('{folder}', 'm"
    with pytest.raises(error, match=match):
        push_agent(folder, "me/agent")
    assert load_agent(folder).card.model == "tiny"


def test_no_network(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"could not be written to at http://127.0.0.1:9"):
        push_agent(export(tmp_path), "me/agent")
    assert not hub.asked


@pytest.mark.parametrize("repo_id", ["agent", "me/", "me/my agent", "a/b/c", "", "me/x--y"])
def test_what_is_no_repository_is_refused(repo_id, hub, tmp_path):
    with pytest.raises(ValueError, match=r"repo_id \('.*'\) must be '<user or organisation>/<name"):
        push_agent(tmp_path, repo_id)


def test_push_needs_a_token(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(PermissionError, match=r"repo_id \('me/agent'\) needs a token"):
        push_agent(export(tmp_path), "me/agent")
    assert not hub.asked
