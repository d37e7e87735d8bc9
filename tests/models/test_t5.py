"""T5 read on a CPU by our own passes, against the model's own forward."""

import pytest
import torch
from families import make_model, make_nine_states, outputs_and_gradients
from peft import LoraConfig, get_peft_model

from torchrl_glam.models import make_trunk
from torchrl_glam.models.trunks import encoder_decoder
from torchrl_glam.models.trunks.gradients import checkpoint_layers
from torchrl_glam.models.trunks.t5 import LONGEST, can_read


def read(trunk, states):
    """All outputs, and all gradients."""
    parts = outputs_and_gradients(trunk, states)
    return [torch.cat([value.flatten() for value in part.values()]) for part in parts]


@pytest.mark.parametrize("family", ["t5", "flan-t5"])
def test_in_bfloat16_it_rounds_as_the_model_does(family, tokenizer, monkeypatch):
    """Over four models, as what rounding does to one differs from processor to processor."""
    states, errors = make_nine_states(tokenizer), []
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


def hooked(model):
    model.decoder.block[0].register_forward_hook(lambda *_: None)


def in_double(model):
    model.double()


def with_dropout(model):
    model.train()


def of_another_kind(model):
    linear = model.encoder.block[0].layer[0].SelfAttention.q
    linear.__class__ = type("Noisy", (torch.nn.Linear,), {})


def with_adapters(model):
    get_peft_model(model, LoraConfig(r=2, target_modules=["q", "v"]))


@pytest.mark.parametrize(
    "change",
    [hooked, in_double, with_dropout, of_another_kind, with_adapters, checkpoint_layers],
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
