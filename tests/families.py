"""Tiny language models of every family, and the plain computation that trunks must equal.

The plain computation reads one candidate of one state at a time, from text, with nothing of the
library but the words of the prompt.
"""

import copy
import functools

import torch
from architectures import make_architecture
from tensordict import TensorDict

from torchrl_glam.models import load_tokenizer, make_trunk

FAMILIES = ("t5", "flan-t5", "bart", "gpt2", "llama", "qwen2")

GOALS = ["Grasp red lion", "Grow any plant then grasp blue door", "Grow green rose"]
OBSERVATIONS = [
    "You see: red lion, blue cat\nYou are on: nothing",
    "You see: green rose, blue door, red water\nYou are on: green rose\nYou are holding: nothing",
    "You see: red food",
]
# "Go to" is a prefix of other candidates, slots may be empty.
ACTIONS = [
    ["Go to red lion", "Go to red food", "Grasp", "Release", "Go to blue cat"],
    ["Go to green rose", "Go to", "Grasp", "Release", "Go to green rose rose"],
    ["Go to red food", "Grasp", "Release", "", ""],
]


def make_model(family, tokenizer, seed=0, attention="sdpa", **overrides):
    """One of the architectures, its weights larger than usual, so that a wrong mask shows."""
    size = {"bart": {"init_std": 0.3}}.get(family, {"initializer_range": 0.3})
    size = {} if "t5" in family else size
    model = make_architecture(family, tokenizer, seed=seed, **(size | overrides))
    model.set_attn_implementation(attention)
    if family == "bart":
        torch.nn.init.normal_(model.final_logits_bias)
    return model


def token_rows(tokenizer, texts, width, lead):
    """Right-padded tokens, one row a text."""
    rows = [tokenizer(lead + t, add_special_tokens=False).input_ids if t else [] for t in texts]
    return torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])


def make_states(tokenizer, masked=(), goals=GOALS, observations=OBSERVATIONS, actions=ACTIONS):
    mask = torch.tensor([[text != "" for text in row] for row in actions])
    for state, action in masked:
        mask[state, action] = False
    action_tokens = [token_rows(tokenizer, row, 24, " ") for row in actions]
    return TensorDict(
        {
            "goal_tokens": token_rows(tokenizer, goals, 40, " "),
            "observation_tokens": token_rows(tokenizer, observations, 100, "\n"),
            "action_tokens": torch.stack(action_tokens),
            "action_mask": mask,
        },
        batch_size=[len(goals)],
    )


def make_nine_states(tokenizer, times=(1, 1, 1)):
    """Every goal in every scene, whose text stands there so many times."""
    scenes = [" ".join([text] * number) for text, number in zip(OBSERVATIONS, times, strict=True)]
    return torch.cat([make_states(tokenizer, goals=[g] * 3, observations=scenes) for g in GOALS])


def make_transitions():
    """Nine transitions, two of them terminal."""
    draw = torch.Generator().manual_seed(0)
    states = make_nine_states(load_tokenizer("tiny"))
    terminated = (torch.arange(len(states)) % 5 == 1).unsqueeze(-1)
    following = states[torch.arange(len(states)) - 1]
    reward = torch.rand(terminated.shape, generator=draw)
    ends = {"terminated": terminated, "done": terminated, "reward": reward}
    action = states["action_mask"].float().multinomial(1, generator=draw).squeeze(-1)
    return states.update({"action": action, "next": following.update(ends)})


@functools.cache
def _checked_trunk(family):
    tokenizer = load_tokenizer("tiny")
    return make_trunk(make_model(family, tokenizer), tokenizer)


def fresh_trunk(family, autocast=None):
    """A trunk on the CPU, with the same weights each time."""
    trunk = copy.deepcopy(_checked_trunk(family))
    trunk.autocast = autocast
    return trunk


def outputs_and_gradients(trunk, states, only=None):
    """What a trunk writes of admissible candidates; gradients of a number that hangs on all of it.

    Both by name, for weights that are reached.
    """
    out, mask = trunk(states.clone(), only=only), states["action_mask"]
    keys = trunk.written_keys(only)
    found = {key: out[key] if key == "prompt_embedding" else out[key][mask] for key in keys}
    total = sum(value.sin().sum() for value in found.values())
    weights = {name: p for name, p in trunk.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    reached = {n: g for n, g in zip(weights, gradients, strict=True) if g is not None}
    return {key: value.detach() for key, value in found.items()}, reached


def plain_score(model, tokenizer, goal, observation, action):
    """Log-likelihood, hidden state after the last token, and hidden state before the first."""
    prompt = f"Goal: {goal}\n{observation}\nAction:"
    candidate = tokenizer(" " + action, add_special_tokens=False).input_ids
    if model.config.is_encoder_decoder:
        before = [model.config.decoder_start_token_id]
        out = model(
            input_ids=torch.tensor([tokenizer(prompt).input_ids]),
            decoder_input_ids=torch.tensor([before + candidate]),
            output_hidden_states=True,
        )
        hidden = out.decoder_hidden_states[-1][0]
    else:
        before = tokenizer(prompt, add_special_tokens=False).input_ids
        out = model(input_ids=torch.tensor([before + candidate]), output_hidden_states=True)
        hidden = out.hidden_states[-1][0]
    first = len(before) - 1
    log_probs = out.logits[0].log_softmax(-1)
    total = sum(log_probs[first + i, token] for i, token in enumerate(candidate))
    return total, hidden[-1], hidden[first]


def assert_plain(trunk, tokenizer, states, goals=GOALS, observations=OBSERVATIONS, actions=ACTIONS):
    """A trunk's outputs for states of these texts are those of the plain computation."""
    for state, action in states["action_mask"].nonzero().tolist():
        total, last, first = plain_score(
            trunk.base_model, tokenizer, goals[state], observations[state], actions[state][action]
        )
        for value, expected in (
            (states["log_likelihood"][state, action], total),
            (states["action_embedding"][state, action], last),
            (states["prompt_embedding"][state], first),
        ):
            torch.testing.assert_close(value, expected, atol=1e-4, rtol=0)
    assert (states["log_likelihood"][~states["action_mask"]] == 0).all()


def passes_of(trunk, monkeypatch):
    """A list to which every pass adds the shapes of the prompts and tries that are read."""
    shapes, read = [], trunk._read

    def spy(prompt, mask, trie):
        shapes.append((*prompt.shape, *trie.tokens.shape))
        return read(prompt, mask, trie)

    monkeypatch.setattr(trunk, "_read", spy)
    return shapes
