"""The loss on language models: inputs of the critic, backpropagation, adapters, passes."""

import copy

import pytest
import torch
from families import (
    ACTIONS,
    GOALS,
    OBSERVATIONS,
    make_model,
    make_states,
    make_transitions,
    outputs_and_gradients,
    plain_score,
)
from peft import LoraConfig
from tensordict import assert_close
from tensordict.nn import TensorDictModule

from torchrl_glam.models import load_language_model, make_critic, make_trunk

from . import reference, toy

GAMMA = 0.9


class Plain:
    """A language model as the reference reads it: one candidate at a time, from text."""

    def __init__(self, model, tokenizer, critic_input):
        self.model, self.tokenizer, self.known = model, tokenizer, {}
        self.encodes_actions = critic_input == "encoded-action"

    def score(self, state, candidate):
        row = state["row"].item()
        if (row, candidate) not in self.known:
            text = (GOALS[row], OBSERVATIONS[row], ACTIONS[row][candidate])
            total, last, first = plain_score(self.model, self.tokenizer, *text)
            last = self.encoded_action(*text) if self.encodes_actions else last
            self.known[row, candidate] = total, last, first
        return self.known[row, candidate]

    def encoded_action(self, goal, observation, action):
        """Decoder's first hidden state where the encoder reads prompt and action."""
        words = f"Goal: {goal}\n{observation}\nAction: {action}"
        out = self.model(
            input_ids=torch.tensor([self.tokenizer(words).input_ids]),
            decoder_input_ids=torch.tensor([[self.model.config.decoder_start_token_id]]),
            output_hidden_states=True,
        )
        return out.decoder_hidden_states[-1][0, 0]


def make_loss(family, tokenizer, critic_input, critic_backprop):
    """A loss, and the models and perceptrons that it and its targets equal."""
    model = make_model(family, tokenizer)
    trunk = make_trunk(model, tokenizer)
    torch.manual_seed(1)
    trunk, critic = make_critic(trunk, critic_input, num_actions=5, hidden_sizes=(8,))
    options = {"num_actions": 5, "alpha_init": 0.2, "critic_backprop": critic_backprop}
    loss = toy.make_loss(trunk, critic, GAMMA, **options).float()
    mlp = critic.module.mlp  # the loss has a copy of it
    behind, target_mlp = copy.deepcopy((model, mlp))
    for each in (loss.trunk_parameters(), loss.critic_parameters(), mlp.parameters()):
        for parameter in each:
            parameter.data.mul_(1.1)
    plain = [Plain(each, tokenizer, critic_input) for each in (model, behind)]
    return loss, plain, ([mlp], [target_mlp])


def make_batch(tokenizer):
    """Three transitions, each to another state; the second terminates."""
    states = make_states(tokenizer).set("row", torch.arange(3))
    terminated = torch.tensor([[False], [True], [False]])
    reward = torch.tensor([[0.1], [1.0], [-0.3]])
    ends = {"reward": reward, "done": terminated, "terminated": terminated}
    following = states[[1, 2, 0]].update(ends)
    steps = {"action": torch.tensor([2, 0, 1]), "steps_to_next_obs": torch.ones(3, 1).long()}
    return states.update(steps | {"next": following})


@pytest.mark.parametrize("critic_backprop", [True, False], ids=["backprop", "no backprop"])
@pytest.mark.parametrize(
    ("family", "critic_input"),
    [
        *(("flan-t5", name) for name in ("observation-action", "observation", "encoded-action")),
        *(("gpt2", name) for name in ("observation-action", "observation")),
        ("bart", "encoded-action"),
    ],
)
def test_losses_and_gradients_are_the_plain_ones(family, critic_input, critic_backprop, tokenizer):
    loss, models, heads = make_loss(family, tokenizer, critic_input, critic_backprop)
    batch = make_batch(tokenizer)
    expected, _, _ = reference.sac_losses(
        models, heads, loss.log_alpha, batch, GAMMA, 0.01, critic_backprop
    )
    terms = loss(batch)
    parameters = list(models[0].model.parameters())
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, atol=1e-4, rtol=1e-4)
        if name == "loss_alpha":
            continue
        ours, theirs = (
            torch.autograd.grad(total, parameters, retain_graph=True, materialize_grads=True)
            for total in (terms[name], value)
        )
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
        reaches = any(gradient.abs().sum() > 0 for gradient in ours)
        assert reaches == (critic_backprop or name == "loss_actor")


@pytest.mark.parametrize(
    ("critic_input", "passes"),
    [
        ("observation-action", [None, "scores", "embeddings"]),
        ("observation", ["scores", "scores", "prompt"]),
    ],
)
def test_actor_and_critic_share_the_pass(critic_input, passes, tokenizer, monkeypatch):
    loss, _, _ = make_loss("flan-t5", tokenizer, critic_input, critic_backprop=True)
    asked, score = [], loss.trunk.score
    monkeypatch.setattr(loss.trunk, "score", lambda *args: asked.append(args[-1]) or score(*args))
    loss(make_batch(tokenizer))
    assert asked == passes


def test_encoded_actions_in_passes_have_values_and_gradients_of_the_whole(tokenizer):
    trunk = make_trunk(make_model("flan-t5", tokenizer), tokenizer).double()
    encoded, _ = make_critic(trunk, "encoded-action", num_actions=5, hidden_sizes=(8,))
    found = []
    for tokens in (None, 100):
        trunk.max_tokens_per_pass = tokens
        found.append(outputs_and_gradients(encoded, make_states(tokenizer), "embeddings"))
    assert len(found[0][1]) > 10
    torch.testing.assert_close(*found)


def test_tokens_of_encoded_actions_by_hand(tokenizer):
    """The prompt once to score, and once more with each admissible action."""
    trunk = make_trunk(make_model("flan-t5", tokenizer), tokenizer)
    scored = trunk.count_tokens(states := make_states(tokenizer))
    sizes = {"num_actions": 5, "hidden_sizes": (8,)}
    encoded, _ = make_critic(trunk, "encoded-action", **sizes)
    encoded, _ = make_critic(encoded, "encoded-action", **sizes)  # for a second critic
    assert make_critic(encoded, **sizes)[0] is trunk
    prompts, nodes = encoded.count_tokens(states)
    for row, state in enumerate(states):
        actions = state["action_tokens"][state["action_mask"]]
        with_actions = [int(scored[0][row]) + int((tokens != 0).sum()) for tokens in actions]
        assert int(prompts[row]) == int(scored[0][row]) + sum(with_actions)
    assert torch.equal(nodes, scored[1])


@pytest.fixture
def with_adapters():
    """A loss on an embedded model with low-rank adapters that do something."""
    lora = LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False)
    trunk = make_trunk(*load_language_model("tiny", lora=lora))
    trunk, critic = make_critic(trunk, num_actions=5, hidden_sizes=(8,))
    return toy.make_loss(trunk, critic, num_actions=5).float()


def test_target_pass_of_adapters_equals_a_copy_that_stayed_behind(with_adapters):
    loss, trunk, behind = with_adapters, with_adapters.trunk, copy.deepcopy(with_adapters.trunk)
    state = make_transitions().select(*trunk.in_keys)
    for parameter in loss.trunk_parameters():
        parameter.data.add_(torch.randn_like(parameter))
    with torch.no_grad():
        target, expected = loss._run_trunk(state, loss._heads, target=True), behind(state.clone())
        moved = trunk(state.clone())
    mask = state["action_mask"]
    for key in ("log_likelihood", "action_embedding"):
        torch.testing.assert_close(target[key][mask], expected[key][mask])
        assert not torch.allclose(moved[key][mask], expected[key][mask])


def test_a_critic_on_scores_asks_for_scores_alone(with_adapters, monkeypatch):
    trunk, batch = with_adapters.trunk, make_transitions()
    critic = TensorDictModule(torch.nn.Linear(5, 5), ["log_likelihood"], ["action_value"])
    loss = toy.make_loss(trunk, critic, num_actions=5).float()
    asked, score = [], trunk.score
    monkeypatch.setattr(trunk, "score", lambda *args: asked.append(args[-1]) or score(*args))
    sparing = loss(batch.clone())
    monkeypatch.setattr("torchrl_glam.objectives.sac.enough", lambda trunk, heads: None)
    assert_close(sparing, loss(batch.clone()), atol=1e-4, rtol=1e-4)
    assert asked == [*["scores"] * 3, *[None] * 3]


def test_what_cannot_be_is_refused(tokenizer):
    trunk = make_trunk(make_model("gpt2", tokenizer), tokenizer)
    with pytest.raises(ValueError, match="without an encoder.*'observation-action'"):
        make_critic(trunk, "encoded-action", num_actions=5)
    with pytest.raises(ValueError, match=r"critic_input \('state'\) must be one of"):
        make_critic(trunk, "state", num_actions=5)
