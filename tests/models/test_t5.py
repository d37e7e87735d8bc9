"""T5 read by our own passes, against the model's own forward."""

from unittest import mock

import pytest
import torch
from families import make_model, make_nine_states, outputs_and_gradients
from peft import LoraConfig, get_peft_model
from pretend_card import PretendCard
from torch.utils._python_dispatch import TorchDispatchMode

from torchrl_glam.models import make_trunk
from torchrl_glam.models.trunks import encoder_decoder, t5
from torchrl_glam.models.trunks.gradients import checkpoint_layers
from torchrl_glam.models.trunks.t5 import LONGEST, can_read


def read(trunk, states):
    """All outputs, and all gradients."""
    parts = outputs_and_gradients(trunk, states)
    return [torch.cat([value.flatten() for value in part.values()]) for part in parts]


@pytest.mark.parametrize("times", [(1, 1, 1), (10, 1, 18)], ids=["short", "of three lengths"])
@pytest.mark.parametrize("family", ["t5", "flan-t5"])
def test_in_bfloat16_it_rounds_as_the_model_does(family, times, tokenizer, monkeypatch):
    """Over four models, as what rounding does to one differs from processor to processor."""
    states, errors = make_nine_states(tokenizer, times), []
    for seed in range(4):
        model = make_model(family, tokenizer, seed=seed)
        exact = read(make_trunk(model, tokenizer), states)
        trunk = make_trunk(model, tokenizer, autocast=torch.bfloat16)
        ours = read(trunk, states)
        with monkeypatch.context() as patch:
            patch.setattr(encoder_decoder, "can_read", lambda *_: False)
            theirs = read(trunk, states)
        for one, other, right in zip(ours, theirs, exact, strict=True):
            assert not torch.equal(one, other) and not torch.equal(one, right)
            errors.append([(x - right).norm() / right.norm() for x in (one, other)])
    for own, models in (torch.tensor(errors[of::2]).T for of in (0, 1)):
        assert own.square().mean().sqrt() < 1.25 * models.square().mean().sqrt()
        assert own.max() < 0.05


class Operations(TorchDispatchMode):
    """Counts what is computed, backward passes included."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("family", ["t5", "flan-t5"])
def test_on_a_card_it_takes_fewer_kernels(family, adapters, tokenizer, monkeypatch):
    model = make_model(family, tokenizer)
    if adapters:
        lora = LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False)
        model = get_peft_model(model, lora).eval()
    states, watched = make_nine_states(tokenizer), mock.Mock(wraps=t5.scaled_dot_product_attention)
    monkeypatch.setattr(t5, "scaled_dot_product_attention", watched)
    with PretendCard():
        trunk = make_trunk(model.to("cuda"), tokenizer)
        watched.reset_mock()
        with Operations() as ours:
            found = read(trunk, states.to("cuda"))
        monkeypatch.setattr(encoder_decoder, "can_read", lambda *_: False)
        with Operations() as theirs:
            expected = read(trunk, states.to("cuda"))
        for one, other in zip(found, expected, strict=True):
            assert (one - other).norm() < 1e-4 * other.norm()
    assert ours.number < theirs.number
    # Fused attention takes no other order of dimensions.
    masks = [call.args[3] for call in watched.call_args_list]
    assert len(masks) == 6 and all(mask.is_contiguous() for mask in masks)


def test_under_autocast_adapters_read_what_they_are_given(tokenizer):
    base = make_model("t5", tokenizer).to(torch.bfloat16)
    trunk, given = make_trunk(get_peft_model(base, LoraConfig(target_modules=["q"])), tokenizer), []
    adapted = trunk.base_model.encoder.block[0].layer[0].SelfAttention.q
    adapted.lora_A.default.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            adapted(torch.ones(2, adapted.in_features, dtype=torch.bfloat16))
    # As given: autocast would cast it back. As the adapter's weights are: nothing else casts it.
    assert [value.dtype for value in given] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.decoder.block[0].register_forward_hook(lambda *_: None),
        lambda model: get_peft_model(model, LoraConfig(r=2, target_modules=["q", "v"])),
        *(torch.nn.Module.double, torch.nn.Module.train, checkpoint_layers),
    ],
    ids=["hook", "adapters", "float64", "dropout", "checkpoints"],
)
def test_a_model_that_is_not_plain_is_left_to_its_own_forward(change, tokenizer):
    model = make_model("t5", tokenizer)
    model.config.dropout_rate = 0.1
    prompt = torch.ones(1, LONGEST, dtype=torch.long)
    assert not can_read(model, prompt)
    with torch.autocast("cpu", torch.bfloat16):
        assert can_read(model, prompt)
        assert not can_read(model, torch.ones(1, LONGEST + 1, dtype=torch.long))
        assert not can_read(model, prompt.to("meta"))
        change(model)
        assert not can_read(model, prompt)
