"""The compiled trunk: equal values and gradients, and few graphs for many shapes."""

import copy

import pytest
import torch
from families import make_model, make_nine_states, make_states

from torchrl_glam.models import load_tokenizer, make_trunk

ONE_LAYER = {"t5": {"num_layers": 1}, "qwen2": {"num_hidden_layers": 1}}


class CountingBackend:
    """Runs graphs as they are, and counts how many there were."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    assert torch._functorch.config.donated_buffer, "torch's default, which is the process's"
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def batches(tokenizer):
    """Numbers of states from 2 to 5, prompts and candidates of other lengths each time."""
    states = make_nine_states(tokenizer)
    for rows in ([0, 1], [2, 5], [1, 0, 2], [2, 1, 4, 0], [0, 3, 6, 2, 1]):
        yield states[torch.tensor(rows)]


@pytest.mark.parametrize("family", ["t5", "qwen2"])
def test_a_compiled_trunk_is_equal_and_compiles_once(family, tokenizer):
    model, backend = make_model(family, tokenizer, **ONE_LAYER[family]), CountingBackend()
    plain = make_trunk(model, tokenizer)
    trunk = make_trunk(model, tokenizer, compile={"backend": backend}, pad_to_multiple_of=32)
    graphs = []
    with torch.no_grad():
        for states in batches(tokenizer):
            ours, expected = trunk(states.clone()), plain(states.clone())
            mask = states["action_mask"]
            for key in trunk.out_keys:
                rows = ... if key == "prompt_embedding" else mask
                torch.testing.assert_close(ours[key][rows], expected[key][rows], atol=1e-4, rtol=0)
            graphs.append(backend.graphs)
    assert graphs[0] > 0 and len(set(graphs)) == 1, graphs


def test_gradients_and_copies(tokenizer):
    plain = make_trunk(make_model("qwen2", tokenizer, **ONE_LAYER["qwen2"]), tokenizer)
    trunk = make_trunk(plain.model, tokenizer, compile={"backend": "eager"}, pad_to_multiple_of=32)
    states, gradients = make_states(tokenizer), []
    for module in (plain, trunk):
        value = module(states.clone())["log_likelihood"].sin().sum()
        gradients.append(torch.autograd.grad(value, list(module.parameters()), allow_unused=True))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    moved = copy.deepcopy(trunk)
    with torch.no_grad():
        moved.base_model.lm_head.weight.mul_(0)
        uniform = moved(states.clone(), only="scores")["log_likelihood"]
        kept = trunk(states.clone(), only="scores")["log_likelihood"]
    assert not torch.allclose(uniform, kept)
    assert uniform[0, 2] == pytest.approx(-torch.tensor(float(len(tokenizer))).log())


@pytest.mark.slow
def test_two_losses_are_back_propagated_through_one_pass(tokenizer):
    """As an optimizer with a state for each loss does: the graph is walked twice."""
    own = torch._functorch.config.patch(donated_buffer=False)  # as SharedTrunkOptimizer has it
    plain = make_trunk(make_model("t5", tokenizer, **ONE_LAYER["t5"]), tokenizer)
    trunk = make_trunk(plain.model, tokenizer, compile={"backend": "aot_eager"})
    parameters, gradients = list(plain.parameters()), []
    for module in (plain, trunk):
        out = module(make_states(tokenizer))
        losses = out["log_likelihood"].sin().sum(), out["prompt_embedding"].sin().sum()
        for loss, again in zip(losses, (True, False), strict=True):
            with own:
                gradients.append(torch.autograd.grad(loss, parameters, retain_graph=again))
    for expected, ours in zip(gradients[:2], gradients[2:], strict=True):
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
