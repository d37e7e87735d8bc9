"""Gradient checkpointing: the same gradients from fewer kept activations."""

import copy

import pytest
import torch
from families import FAMILIES, make_model, make_states
from peft import LoraConfig

from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.models.trunks.gradients import checkpoint_layers


def backward(trunk, states):
    """Gradients of all trained weights, and bytes of the tensors kept for them."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.nbytes) or t, lambda t: t
    ):
        out = trunk(states.clone())
        value = out["log_likelihood"].sin().sum() + out["action_embedding"].sin().sum()
    value.backward()
    gradients = {n: p.grad.clone() for n, p in trunk.named_parameters() if p.grad is not None}
    trunk.zero_grad()
    return gradients, sum(kept)


def compare(plain, checkpointed, states):
    expected, held = backward(plain, states)
    gradients, kept = backward(checkpointed, states)
    assert gradients.keys() == expected.keys() and expected
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)
    assert kept < 0.6 * held


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:BartForConditionalGeneration takes no token trie")
def test_gradients_are_the_same(family, tokenizer):
    plain = make_trunk(make_model(family, tokenizer), tokenizer)
    model = make_model(family, tokenizer)
    checkpoint_layers(model)
    compare(plain, make_trunk(model, tokenizer), make_states(tokenizer))


def test_a_copy_computes_with_its_own_weights(tokenizer):
    model = make_model("t5", tokenizer)
    checkpoint_layers(model)
    copied = copy.deepcopy(model)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    plain = make_trunk(make_model("t5", tokenizer), tokenizer)
    compare(plain, make_trunk(copied, tokenizer), make_states(tokenizer))


@pytest.mark.parametrize("in_4bit", [False, True], ids=["float32", "4-bit"])
def test_adapters_get_their_gradients(in_4bit, flan_t5):
    trunks = []
    for gradient_checkpointing in (False, True):
        torch.manual_seed(0)
        model, tokenizer = load_language_model(
            flan_t5,
            lora=LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False),
            load_in_4bit=in_4bit,
            compute_dtype=torch.float32,
            gradient_checkpointing=gradient_checkpointing,
        )
        assert not model.training
        trunks.append(make_trunk(model, tokenizer))
    compare(*trunks, make_states(tokenizer))


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="gradient_checkpointing .* for Linear"):
        checkpoint_layers(torch.nn.Linear(2, 2))
