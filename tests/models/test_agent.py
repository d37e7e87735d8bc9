"""Agents read back from their exports score and value as they did in their runs."""

import json
import shutil

import pytest
import torch
from families import make_states
from peft import LoraConfig
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


def start(tokenizer, num_objects=3):
    """First states as agents of this file read them, of two candidates more than objects."""
    env = PlaygroundTextEnv(4, num_objects=num_objects, sequential=False, seed=0)
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
def test_an_agent_read_back_scores_and_values_as_before(settings, lora, kind, tokenizer, tmp_path):
    card = a_card(environment={"num_objects": 3, "name": "playground"}, **settings)
    loss, model, _ = make_loss(card, lora)
    states = start(tokenizer)
    with torch.no_grad():
        probability, value = loss.policy_and_values(states)
    critics = loss.qvalue_network_params
    export_agent(tmp_path / "model", model, tokenizer, critics, card=card, kind=kind)
    agent = load_agent(tmp_path)  # the run's folder, whose export is `model`
    assert agent.card == card
    read = agent.read(states)
    mask = states["action_mask"]
    torch.testing.assert_close(read["probability"], probability, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(
        read["action_value"][mask], value[mask], atol=2e-3 * float(value.abs().max()), rtol=0
    )
    plain = load_agent(tmp_path / "model", device="cpu").policy(states.copy())["action"]
    assert mask.gather(-1, plain.unsqueeze(-1)).all()
    # Values by slot are left out where slots are others.
    others = agent.read(start(tokenizer, num_objects=6))
    assert others["probability"].shape == (4, 8)
    assert ("action_value" in others.keys()) == (card.critic != "observation")


def test_a_state_value_head_is_read_back(tokenizer, tmp_path):
    model, _ = load_language_model("tiny")
    trunk, states = make_trunk(model, tokenizer, TEMPLATE), start(tokenizer)
    head = ValueHead(trunk.embedding_dim, (8,))
    card = a_card(critic="state", hidden_sizes=(8,), num_actions=None)
    critics = TensorDict.from_module(head).unsqueeze(0)
    export_agent(tmp_path, model, tokenizer, critics, card=card)
    with torch.no_grad():
        expected = head(trunk(states.copy()))["state_value"]
    torch.testing.assert_close(load_agent(tmp_path).read(states)["state_value"], expected)


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
    (export / HEADS).unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no heads.safetensors.*set num_critics"):
        load_agent(export)
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
        ({"template": {"words": "{goal}"}}, r"template \(.*words.*\) must have entries"),
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
        ({"template": ["text"]}, r"template \(\['text'\]\) must have entries"),
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


def test_keys_of_the_trunk_reach_actor_and_heads(tokenizer):
    keys = {"log_likelihood_key": ("out", "ll"), "mask_key": ("text", "mask")}
    agent = zero_shot_agent("tiny", **keys)
    states = make_states(tokenizer).rename_key_("action_mask", ("text", "mask"))
    assert agent.policy(states.clone())["action"].shape == (3,)
    assert agent.read(states)["probability"].sum(-1).tolist() == pytest.approx([1.0] * 3)
