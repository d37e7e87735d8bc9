"""Rounding up states, tokens and scored positions: fewer shapes, the same numbers."""

import pytest
import torch
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.text import TokenizeText


@pytest.fixture(scope="module")
def states():
    _, tokenizer = load_language_model("tiny")
    env = TransformedEnv(PlaygroundTextEnv(num_envs=75, seed=0), TokenizeText(tokenizer))
    return env.rollout(6, break_when_any_done=False)


@pytest.fixture(scope="module")
def trunks():
    model, tokenizer = load_language_model("tiny")
    return [make_trunk(model, tokenizer, pad_to_multiple_of=multiple) for multiple in (1, 4)]


def read(trunk, states, only=None):
    """Outputs, and the gradient of a number that hangs on all of them."""
    trunk.zero_grad(set_to_none=True)
    out = trunk(states.clone(), only=only).select(*trunk.written_keys(only))
    mask = states["action_mask"]
    weights = {"log_likelihood": mask, "action_embedding": mask.unsqueeze(-1)}
    total = sum((value.square() * weights.get(key, 1)).sum() for key, value in out.items())
    total.backward()
    grads = [p.grad.clone() for p in trunk.parameters() if p.grad is not None]
    return out.detach(), grads


@pytest.mark.parametrize("only", [None, "scores", "embeddings", "prompt"])
@pytest.mark.parametrize("number", [1, 13, 75])
def test_outputs_and_gradients_are_the_same(trunks, states, only, number):
    states = states[:number, -1]
    plain, rounded = (read(trunk, states, only) for trunk in trunks)
    mask = states["action_mask"]
    for key, value in plain[0].items():
        other = rounded[0][key]
        if key == "action_embedding":
            value, other = value[mask], other[mask]
        torch.testing.assert_close(other, value, rtol=1e-4, atol=1e-4)
    for one, other in zip(plain[1], rounded[1], strict=True):
        scale = one.abs().max().clamp_min(1e-6)
        torch.testing.assert_close(other / scale, one / scale, rtol=1e-3, atol=1e-4)


def test_states_of_any_number_have_few_shapes(trunks, states, monkeypatch):
    shapes = {1: set(), 4: set()}
    for trunk, seen in zip(trunks, shapes.values(), strict=True):
        inner = type(trunk)._read

        def watched(self, prompt, mask, trie, inner=inner, seen=seen):
            seen.add((*prompt.shape, *trie.tokens.shape))
            return inner(self, prompt, mask, trie)

        monkeypatch.setattr(type(trunk), "_read", watched)
        with torch.no_grad():
            for number in range(65, 76):
                trunk(states[:number, -1].clone())
        monkeypatch.undo()
    assert len(shapes[1]) > 10
    assert len(shapes[4]) <= 2
