"""The critic's inputs, with and without backpropagation, one candidate at a time from text."""

import copy

import pytest
import torch
from families import ACTIONS, GOALS, OBSERVATIONS, make_model, make_states, plain_score
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, load_tokenizer, make_critic, make_trunk
from torchrl_glam.objectives import SACGLAMLoss

GAMMA, ALPHA, TAKEN = 0.9, 0.2, [2, 0, 1]
NEXT = [1, 2, 0]  # row i goes to state NEXT[i]; row 1 terminates
REWARDS = [0.1, 1.0, -0.3]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def make_loss(family, tokenizer, critic_input, critic_backprop, behind):
    """A loss; with ``behind``, also copies of model and critic that its targets equal."""
    model = make_model(family, tokenizer)
    trunk = make_trunk(model, tokenizer)
    torch.manual_seed(1)
    trunk, critic = make_critic(trunk, critic_input, num_actions=5, hidden_sizes=(8,))
    loss = SACGLAMLoss(
        trunk,
        CandidateActor(),
        critic,
        num_actions=5,
        alpha_init=ALPHA,
        critic_backprop=critic_backprop,
    )
    loss.make_value_estimator(gamma=GAMMA)
    SoftUpdate(loss, tau=0.1)
    behind.update(model=copy.deepcopy(model), mlp=copy.deepcopy(critic.module.mlp))
    for parameter in (*loss.trunk_parameters(), *loss.critic_parameters()):
        parameter.data.mul_(1.1)
    mlp = copy.deepcopy(critic.module.mlp)
    for parameter in mlp.parameters():
        parameter.data.mul_(1.1)
    return loss, model, mlp


def make_batch(tokenizer):
    states = make_states(tokenizer)
    terminated = torch.tensor([[False], [True], [False]])
    reward = torch.tensor(REWARDS).unsqueeze(-1)
    ends = {"reward": reward, "done": terminated, "terminated": terminated}
    following = states[torch.tensor(NEXT)].update(TensorDict(ends, batch_size=[3]))
    return states.update({"action": torch.tensor(TAKEN), "next": following})


def encoded_action(model, tokenizer, state, text):
    """Decoder's first hidden state where the encoder reads prompt and action."""
    words = f"Goal: {GOALS[state]}\n{OBSERVATIONS[state]}\nAction: {text}"
    out = model(
        input_ids=torch.tensor([tokenizer(words).input_ids]),
        decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id]]),
        output_hidden_states=True,
    )
    return out.decoder_hidden_states[-1][0, 0]


def plain_values(model, mlp, tokenizer, critic_input, state, detach=False):
    """Log-probabilities and Q-values of a state's candidates, ``[K]`` each."""
    scores, values = [], []
    for index, text in enumerate(text for text in ACTIONS[state] if text):
        total, last, first = plain_score(model, tokenizer, GOALS[state], OBSERVATIONS[state], text)
        embedding = {"observation-action": last, "observation": first}.get(critic_input)
        if embedding is None:
            embedding = encoded_action(model, tokenizer, state, text)
        output = mlp(embedding.detach() if detach else embedding)
        scores.append(total)
        values.append(output[index if critic_input == "observation" else 0])
    return torch.stack(scores).log_softmax(0), torch.stack(values)


def plain_losses(online, behind, tokenizer, critic_input, critic_backprop):
    total_q, total_actor = 0.0, 0.0
    for row, action in enumerate(TAKEN):
        target = torch.tensor(REWARDS[row])
        if row != 1:
            with torch.no_grad():
                log_prob, _ = plain_values(*online, tokenizer, critic_input, NEXT[row])
                _, value = plain_values(*behind, tokenizer, critic_input, NEXT[row])
                target = target + GAMMA * (log_prob.exp() * (value - ALPHA * log_prob)).sum()
        log_prob, value = plain_values(*online, tokenizer, critic_input, row, not critic_backprop)
        total_q = total_q + (value[action] - target) ** 2 / 3
        total_actor = total_actor + (log_prob.exp() * (ALPHA * log_prob - value.detach())).sum() / 3
    return {"loss_qvalue": total_q, "loss_actor": total_actor}


def trunk_gradients(loss, parameters):
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.parametrize("critic_backprop", [True, False], ids=["backprop", "no backprop"])
@pytest.mark.parametrize(
    ("family", "critic_input"),
    [
        *(("flan-t5", name) for name in ("observation-action", "observation", "encoded-action")),
        *(("gpt2", name) for name in ("observation-action", "observation")),
        ("bart", "encoded-action"),
    ],
)
@pytest.mark.filterwarnings("ignore:BartForConditionalGeneration takes no token trie")
def test_losses_and_gradients_are_the_plain_ones(family, critic_input, critic_backprop, tokenizer):
    behind = {}
    loss, model, mlp = make_loss(family, tokenizer, critic_input, critic_backprop, behind)
    expected = plain_losses(
        (model, mlp), (behind["model"], behind["mlp"]), tokenizer, critic_input, critic_backprop
    )
    terms = loss(make_batch(tokenizer))
    parameters = list(model.parameters())
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, atol=1e-4, rtol=1e-4)
        ours = trunk_gradients(terms[name], parameters)
        theirs = trunk_gradients(value, parameters)
        for gradient, plain in zip(ours, theirs, strict=True):
            torch.testing.assert_close(gradient, plain, atol=1e-4, rtol=1e-3)
        reaches = any(gradient.abs().sum() > 0 for gradient in ours)
        assert reaches == (critic_backprop or name == "loss_actor")


@pytest.mark.parametrize("critic_backprop", [True, False])
@pytest.mark.parametrize(
    ("critic_input", "passes"),
    [
        ("observation-action", [None, "scores", "embeddings"]),
        ("observation", ["scores", "scores", "prompt"]),
    ],
)
def test_actor_and_critic_share_the_pass(
    critic_input, passes, critic_backprop, tokenizer, monkeypatch
):
    loss, _, _ = make_loss("flan-t5", tokenizer, critic_input, critic_backprop, {})
    asked, score = [], loss.trunk.score
    monkeypatch.setattr(loss.trunk, "score", lambda *args: asked.append(args[-1]) or score(*args))
    loss(make_batch(tokenizer))
    assert asked == passes


def test_encoded_actions_in_passes_have_values_and_gradients_of_the_whole(tokenizer):
    trunk = make_trunk(make_model("flan-t5", tokenizer), tokenizer).double()
    encoded, _ = make_critic(trunk, "encoded-action", num_actions=5, hidden_sizes=(8,))
    weights = [p for p in trunk.parameters() if p.requires_grad]
    found, embeddings = [], []
    for tokens in (None, 100):
        trunk.max_tokens_per_pass = tokens
        embedding = encoded(make_states(tokenizer), only="embeddings")["action_embedding"]
        embeddings.append(embedding)
        found.append(torch.autograd.grad(embedding.sin().sum(), weights, allow_unused=True))
    reached = [(whole, part) for whole, part in zip(*found, strict=True) if whole is not None]
    assert len(reached) > 10
    torch.testing.assert_close(*embeddings)
    for whole, part in reached:
        torch.testing.assert_close(part, whole)


def test_tokens_of_encoded_actions_by_hand(tokenizer):
    """The prompt once to score, and once more with each admissible action."""
    trunk = make_trunk(make_model("flan-t5", tokenizer), tokenizer)
    scored = trunk.count_tokens(states := make_states(tokenizer))
    encoded, _ = make_critic(trunk, "encoded-action", num_actions=5, hidden_sizes=(8,))
    prompts, nodes = encoded.count_tokens(states)
    for row, state in enumerate(states):
        actions = state["action_tokens"][state["action_mask"]]
        with_actions = [int(scored[0][row]) + int((tokens != 0).sum()) for tokens in actions]
        assert int(prompts[row]) == int(scored[0][row]) + sum(with_actions)
    assert torch.equal(nodes, scored[1])


def test_what_cannot_be_is_refused(tokenizer):
    trunk = make_trunk(make_model("gpt2", tokenizer), tokenizer)
    with pytest.raises(ValueError, match="without an encoder.*'observation-action'"):
        make_critic(trunk, "encoded-action", num_actions=5)
    with pytest.raises(ValueError, match=r"critic_input \('state'\) must be one of"):
        make_critic(trunk, "state", num_actions=5)
