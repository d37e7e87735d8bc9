"""Agents read back from their exports score and value as they did in their runs."""

import json
import shutil

import pytest
import torch
from families import make_model, make_states
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    AgentCard,
    CandidateActor,
    ValueHead,
    export_agent,
    load_agent,
    load_language_model,
    load_tokenizer,
    make_critic,
    make_trunk,
    zero_shot_agent,
)
from torchrl_glam.models.card import CARD, HEADS
from torchrl_glam.objectives import SACGLAMLoss
from torchrl_glam.text import PromptTemplate, TokenizeText

TEMPLATE = PromptTemplate("Task: {goal}\n{observation}\nAction:")
LORA = LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False)
NUM_ACTIONS = 5


@pytest.fixture(scope="module")
def states():
    env = PlaygroundTextEnv(4, num_objects=3, sequential=False, seed=0)
    tokenizer = load_tokenizer("tiny")
    return TransformedEnv(env, TokenizeText(tokenizer, template=TEMPLATE)).reset()


def make_loss(card, lora=None):
    """An agent as a run has it, with weights that no other agent has."""
    model, tokenizer = load_language_model("tiny", lora=lora, load_in_4bit=card.load_in_4bit)
    trunk = make_trunk(model, tokenizer, card.template, normalisation=card.normalisation)
    sizes = {"num_actions": NUM_ACTIONS, "hidden_sizes": card.hidden_sizes}
    made = [make_critic(trunk, card.critic, **sizes) for _ in range(card.num_critics)]
    critics = [critic for _, critic in made]
    loss = SACGLAMLoss(made[0][0], CandidateActor(), critics, num_actions=NUM_ACTIONS)
    with torch.no_grad():
        for parameter in loss.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.03)
    return loss, model, tokenizer


def a_card(**settings):
    defaults = {"template": TEMPLATE, "hidden_sizes": (8, 6), "num_actions": NUM_ACTIONS}
    return AgentCard(**(defaults | settings))


@pytest.mark.parametrize(
    "settings, lora, kind",
    [
        ({"normalisation": "token_mean", "num_critics": 2}, None, "auto"),
        ({"critic": "observation"}, LORA, "adapter"),
        ({"critic": "encoded-action"}, LORA, "merged"),
        ({"load_in_4bit": True}, LORA, "adapter"),
    ],
    ids=["two critics", "adapter", "merged", "adapter on 4 bits"],
)
def test_an_agent_read_back_scores_and_values_as_before(settings, lora, kind, states, tmp_path):
    card = a_card(environment={"num_objects": 3, "name": "playground"}, **settings)
    loss, model, tokenizer = make_loss(card, lora)
    with torch.no_grad():
        probability, value = loss.policy_and_values(states)
    critics = loss.qvalue_network_params
    export_agent(tmp_path / "model", model, tokenizer, critics, card=card, kind=kind)
    agent = load_agent(tmp_path)  # the run's folder, whose export is `model`
    assert agent.card == card and agent.template.text.startswith("Task:")
    read = agent.read(states)
    mask = states["action_mask"]
    torch.testing.assert_close(read["probability"], probability, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(
        read["action_value"][mask], value[mask], atol=2e-3 * float(value.abs().max()), rtol=0
    )
    plain = load_agent(tmp_path / "model", device="cpu").policy(states.copy())["action"]
    assert mask.gather(-1, plain.unsqueeze(-1)).all()


def test_a_state_value_head_is_read_back(states, tmp_path):
    model, tokenizer = load_language_model("tiny")
    trunk = make_trunk(model, tokenizer, TEMPLATE)
    head = ValueHead(trunk.embedding_dim, (8,))
    card = a_card(critic="state", hidden_sizes=(8,), num_actions=None)
    critics = TensorDict.from_module(head).unsqueeze(0)
    export_agent(tmp_path, model, tokenizer, critics, card=card)
    with torch.no_grad():
        expected = head(trunk(states.copy()))["state_value"]
    torch.testing.assert_close(load_agent(tmp_path).read(states)["state_value"], expected)


def test_values_by_slot_are_left_out_where_slots_are_others(tmp_path):
    card = a_card(critic="observation")
    loss, model, tokenizer = make_loss(card)
    export_agent(tmp_path, model, tokenizer, loss.qvalue_network_params, card=card)
    agent = load_agent(tmp_path)
    tokenize = TokenizeText(tokenizer, template=agent.template)
    env = TransformedEnv(PlaygroundTextEnv(2, num_objects=6), tokenize)
    read = agent.read(env.reset())
    assert read["probability"].shape == (2, 8) and "action_value" not in read.keys()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    card = a_card()
    loss, model, tokenizer = make_loss(card)
    folder = tmp_path_factory.mktemp("exported")
    return export_agent(folder, model, tokenizer, loss.qvalue_network_params, card=card)


@pytest.fixture
def export(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "model")


def test_what_is_missing_is_named_with_the_remedy(export, tmp_path):
    (export / HEADS).rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match=r"holds no heads.safetensors.*set num_critics"):
        load_agent(export)
    (tmp_path / "away").rename(export / HEADS)
    (export / CARD).unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no agent.json.* resume its run.*AgentCard"):
        load_agent(export)
    message = "is not there; an agent is in the folder of a run"
    with pytest.raises(FileNotFoundError, match=message):
        load_agent(tmp_path / "nowhere")
    (export.parent / "run.lock").touch()  # which a run holds as long as it goes
    for folder in (export.parent, export):
        with pytest.raises(FileNotFoundError, match="a run that has not ended.*wait for its end"):
            load_agent(folder)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_sizes": [8, 7]}, r"heads.safetensors' does not hold the value heads .*\[8, 7\]"),
        ({"num_critics": 2}, r"does not hold the value heads .*\(2 of input"),
        ({"hidden_sizes": [0]}, r"agent.json' is damaged \(hidden_sizes \(\[0\]\) must be"),
        ({"critic": "all"}, r"damaged \(critic \('all'\) must be one of"),
        ({"load_in_4bit": "no"}, r"damaged \(load_in_4bit \('no'\) must be true or false"),
        ({"template": {"text": "{goal}"}}, r"damaged \(text \('\{goal\}'\) has the slots"),
        ({"template": {"words": "{goal}"}}, r"damaged .*words"),
        ({"format": 2}, r"format \(2\) must be 1: a later version"),
        ({"colour": "red"}, r"entries \['colour'\] are missing or unknown"),
        ({"num_critics": 10**8}, r"num_critics \(100000000\) must be a whole number from 0 to 64"),
        ({"num_critics": True}, r"num_critics \(True\) must be a whole number"),
        ({"hidden_sizes": [8] * 10**5}, r"hidden_sizes \(\[8, .{,90}\) must be a list of at most"),
        ({"hidden_sizes": [2**20] * 2}, r"does not hold the value heads"),  # 4 TB, if it did
        ({"num_actions": 1e300}, r"num_actions \(1e\+300\) must be"),
        ({"model": ["tiny"]}, r"model \(\['tiny'\]\) must be text"),
        ({"model": "\x1b[2J"}, r"model \('\\x1b\[2J'\) must be text .*control characters"),
        ({"model": "\ud800"}, r"model \('.*'\) must be text"),  # half a character
        ({"environment": {"a": "\x1b]0;a\x07"}}, r"environment .* must be a dictionary of text"),
        ({"environment": {"a": {"a": [[[[[[[[[0]]]]]]]]]}}}, r"at most eight deep"),
        ({"template": {"text": " " * 300_000}}, r"template.text \('\) must be text of 20,000"),
        ({"template": {"special_tokens": "no"}}, r"special_tokens \('no'\) must be true or false"),
        ({"template": [1]}, r"template \(\[1\]\) must have entries"),
    ],
)
def test_a_card_that_does_not_fit_is_refused(changes, message, export):
    path = export / CARD
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        load_agent(export)


@pytest.mark.hostile
def test_damaged_files_are_refused(export):
    (export / HEADS).write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(ValueError, match="does not hold the value heads"):
        load_agent(export)
    for text in ("[" * 10**5, " " * 2**21, '{"format": 1}', "[1"):
        (export / CARD).write_text(text)
        with pytest.raises(ValueError, match="agent.json' is damaged") as caught:
            load_agent(export)
        assert len(str(caught.value)) < 600


@pytest.fixture
def adapters(tmp_path):
    model, tokenizer = load_language_model("tiny", lora=LORA)
    return export_agent(tmp_path / "adapters", model, tokenizer)


@pytest.mark.hostile
def test_adapters_of_another_model_are_refused(adapters, tmp_path):
    make_model("gpt2", load_tokenizer("tiny")).save_pretrained(tmp_path / "other")
    config = json.loads((adapters / "adapter_config.json").read_text())

    def on(base):
        changes = {"base_model_name_or_path": base}
        (adapters / "adapter_config.json").write_text(json.dumps(config | changes))

    for base, kind, message in (
        (str(tmp_path / "other"), ValueError, "adapters of another model than GPT2LMHeadModel"),
        ("/nowhere/at/all", FileNotFoundError, "'/nowhere/at/all', which is not there: write"),
        (None, ValueError, "adapters that name no base model"),
    ):
        on(base)
        with pytest.raises(kind, match=message):
            load_language_model(adapters)
    on("/elsewhere/torchrl_glam/assets/tiny")  # the embedded model of another installation
    load_language_model(adapters)
    weights = load_file(adapters / "adapter_model.safetensors")
    weights.popitem()
    save_file(weights, adapters / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="is in one of them alone"):
        load_language_model(adapters)
    (adapters / "adapter_model.safetensors").rename(adapters / "adapter_model.bin")
    with pytest.raises(ValueError, match="a pickle .*which may run code and is not opened"):
        load_language_model(adapters)


def test_keys_of_the_trunk_reach_actor_and_heads(tokenizer):
    keys = {"log_likelihood_key": ("out", "ll"), "mask_key": ("text", "mask")}
    agent = zero_shot_agent("tiny", **keys)
    states = make_states(tokenizer).rename_key_("action_mask", ("text", "mask"))
    assert agent.policy(states.clone())["action"].shape == (3,)
    assert agent.read(states)["probability"].sum(-1).tolist() == pytest.approx([1.0] * 3)
