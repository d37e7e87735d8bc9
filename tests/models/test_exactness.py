"""Checks that a trunk reads its model as the model does, and passes gradients on as it does."""

import copy
import warnings

import pytest
import torch
from architectures import make_architecture
from families import ACTIONS, FAMILIES, assert_plain, make_model, make_states, outputs_and_gradients
from peft import LoraConfig
from torch import nn

from torchrl_glam.models import (
    InexactTrunkError,
    check_gradients,
    load_language_model,
    make_trunk,
    score_error,
)
from torchrl_glam.models.trunks.gradients import _check_quantised, checkpoint_layers


def test_what_the_model_does_between_tokens_is_seen_at_fresh_weights(tokenizer):
    """Mixing by position at the head, one hundredth: the trunk's nodes have other neighbours."""
    model = make_architecture("gpt2", tokenizer)
    model.lm_head.register_forward_pre_hook(lambda _, read: read[0] + 0.01 * read[0].roll(1, 1))
    message = r"model \(GPT2LMHeadModel\) cannot be read by DecoderOnlyTrunk"
    with pytest.raises(InexactTrunkError, match=message):
        make_trunk(model, tokenizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["t5", "gpt2", "bart"])
def test_a_check_leaves_everything_as_it_was(family, tokenizer, dtype):
    model = make_model(family, tokenizer).to(dtype).train()
    before = {name: (p, p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    generator = torch.get_rng_state()
    trunk = make_trunk(model, tokenizer)
    score_error(trunk, make_states(tokenizer))
    check_gradients(trunk)
    assert torch.equal(torch.get_rng_state(), generator)
    for name, parameter in model.named_parameters():
        same, place, value = before[name]
        assert parameter is same and parameter.data_ptr() == place and parameter.grad is None
        assert torch.equal(parameter, value) and parameter.dtype == dtype
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_cap_on_logits_is_seen_at_fresh_weights(tokenizer, monkeypatch):
    """Gemma 2, read by a trunk that does not know the cap of its configuration."""
    trunk = make_trunk(make_architecture("gemma2", tokenizer), tokenizer)
    head = trunk.base_model.get_output_embeddings()
    monkeypatch.setattr(trunk, "_logits", lambda hidden: head(hidden))
    with pytest.raises(InexactTrunkError, match="logits differ"):
        trunk.check_exactness()


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_checks_are_repeated_when_weights_are_loaded(family, tokenizer, monkeypatch):
    trunk, seen = make_trunk(make_model(family, tokenizer), tokenizer), []
    monkeypatch.setattr(type(trunk), "check_exactness", lambda self: seen.append(self))
    trunk.load_state_dict(trunk.state_dict())
    nn.Sequential(trunk).load_state_dict(nn.Sequential(trunk).state_dict())
    assert seen == [trunk, trunk]
    other = copy.deepcopy(trunk)
    other.load_state_dict(trunk.state_dict())
    assert seen[-1] is other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["t5", "gpt2", "qwen2"])
def test_the_score_error_is_rounding_where_all_is_well(family, tokenizer, dtype):
    trunk = make_trunk(make_model(family, tokenizer).to(dtype), tokenizer)
    states = make_states(tokenizer, masked=((0, 1),))
    states["action_mask"][2] = False  # the shortest, which is passed over
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert score_error(trunk, states, rows=9) < 1e-4
        assert score_error(trunk, states, rows=1) < 1e-4
        assert score_error(trunk, states[1]) < 1e-4  # without a batch dimension
        assert score_error(trunk, torch.stack([states, states])) < 1e-4
    states["action_mask"][:] = False
    with pytest.raises(ValueError, match="states: none has an admissible candidate"):
        score_error(trunk, states)


def test_the_score_error_is_the_difference_in_nats(tokenizer, monkeypatch):
    """A head that the trunk scales by 1.5: by hand from the model's own logits."""
    trunk = make_trunk(make_model("gpt2", tokenizer), tokenizer)
    logits, states = trunk._logits, make_states(tokenizer)
    right = trunk(states.clone())["log_likelihood"]
    monkeypatch.setattr(trunk, "_logits", lambda hidden: 1.5 * logits(hidden))
    wrong = trunk(states.clone())["log_likelihood"]
    with pytest.warns(UserWarning, match="differ by .* nats .*GPT2LMHeadModel's own forward"):
        error = score_error(trunk, states, rows=3)
    assert error == pytest.approx(float((wrong - right).detach().abs().max()), rel=1e-4)


@pytest.mark.parametrize("key", ["goal_tokens", "observation_tokens", "action_tokens"])
@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_tokens_beyond_the_vocabulary_are_named(family, key, tokenizer):
    trunk, states = make_trunk(make_model(family, tokenizer), tokenizer), make_states(tokenizer)
    states[key].view(-1)[0] = 70_000
    with pytest.raises(ValueError, match=f"'{key}' holds the token 70000, and the model has the"):
        trunk(states)


def test_weights_that_get_no_gradient_are_named(tokenizer):
    model = make_model("gpt2", tokenizer)
    model.unused = nn.Linear(2, 2)
    message = r"2 of \d+ trainable weights .* \(unused.weight, unused.b"
    with pytest.raises(ValueError, match=message):
        check_gradients(make_trunk(model, tokenizer))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="has no weights to train"):
        check_gradients(make_trunk(model, tokenizer))


def test_4_bit_weights_that_pass_no_gradient_on_are_named(flan_t5, monkeypatch):
    """As bitsandbytes' kernel for repacked weights does, if nothing keeps it from repacking."""
    from bitsandbytes.nn import Linear4bit

    lora = LoraConfig(r=2, target_modules=["q", "v"])
    model, tokenizer = load_language_model(flan_t5, lora=lora, load_in_4bit=True)
    trunk, forward = make_trunk(model, tokenizer), Linear4bit.forward
    monkeypatch.setattr(Linear4bit, "forward", lambda self, x: forward(self, x).detach())
    with pytest.raises(ValueError, match="get no gradient"):
        check_gradients(trunk)
    with pytest.raises(ValueError, match="pass on no right gradient"):
        _check_quantised(model)


def backward(trunk, states):
    """Gradients of all trained weights, and bytes of the tensors kept for them."""
    kept = []
    hooks = (lambda tensor: kept.append(tensor.nbytes) or tensor, lambda tensor: tensor)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        _, gradients = outputs_and_gradients(trunk, states)
    return gradients, sum(kept)


def compare(plain, checkpointed, states):
    expected, held = backward(plain, states)
    gradients, kept = backward(checkpointed, states)
    torch.testing.assert_close(gradients, expected, atol=1e-5, rtol=1e-4)
    assert expected and kept < 0.6 * held


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointed_gradients_are_the_same_and_a_copy_has_weights_of_its_own(family, tokenizer):
    plain, model = (make_model(family, tokenizer) for _ in range(2))
    checkpoint_layers(model)
    copied, plain = copy.deepcopy(model), make_trunk(plain, tokenizer)
    compare(plain, make_trunk(model, tokenizer), make_states(tokenizer))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    compare(plain, make_trunk(copied, tokenizer), make_states(tokenizer))


@pytest.mark.parametrize("in_4bit", [False, True], ids=["float32", "4-bit"])
def test_adapters_get_their_gradients(in_4bit, flan_t5):
    lora = LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False)
    options = {"lora": lora, "load_in_4bit": in_4bit, "compute_dtype": torch.float32}
    trunks = []
    for again in (False, True):
        torch.manual_seed(0)
        model, tokenizer = load_language_model(flan_t5, gradient_checkpointing=again, **options)
        assert not model.training
        trunks.append(make_trunk(model, tokenizer))
    compare(*trunks, make_states(tokenizer))


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="gradient_checkpointing .* for Linear"):
        checkpoint_layers(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(("backend", "chosen"), [("cuda", "tf32"), ("mkldnn", "bf16")])
def test_reduced_precision_is_put_aside_and_back(backend, chosen, tokenizer):
    matmul = getattr(torch.backends, backend).matmul
    before, matmul.fp32_precision = matmul.fp32_precision, chosen
    try:
        make_trunk(make_model("t5", tokenizer), tokenizer)
        assert matmul.fp32_precision == chosen
    finally:
        matmul.fp32_precision = before


@torch.no_grad()
def test_positions_of_padding_are_those_of_no_other_state(tokenizer):
    """M2M100 gives padding a position of its own; the first state has the smallest trie."""
    trunk = make_trunk(make_architecture("m2m_100", tokenizer, scale=4.0), tokenizer)
    actions = [["Grasp", "", "", "", ""], *ACTIONS[:2]]
    states = trunk(make_states(tokenizer, actions=actions))
    assert_plain(trunk, tokenizer, states, actions=actions)


def test_a_head_of_another_precision_than_its_input_scores(tokenizer):
    """The last layer of opt-350m is a matrix, whose output autocast makes bfloat16."""
    model = make_architecture("opt-350m", tokenizer)
    half, whole = (make_trunk(model, tokenizer, autocast=t) for t in (torch.bfloat16, None))
    scores = [trunk(make_states(tokenizer))["log_likelihood"] for trunk in (half, whole)]
    assert (scores[0] - scores[1])[make_states(tokenizer)["action_mask"]].abs().max() < 0.2
