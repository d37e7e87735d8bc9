"""SharedTrunkOptimizer against plain Adams, and what must stay untouched when."""

import copy
import io
import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.optim import Adam
from torchrl.objectives import SoftUpdate

from torchrl_glam.objectives import ClippedAdam, SharedTrunkOptimizer

from . import toy

RATES = {"lr_trunk": 1e-2, "lr_heads": 5e-2, "lr_alpha": 7e-2}


def make_pair(kind="tied", **options):
    """Two losses with equal values and nothing shared."""
    trunk, critic = toy.make_trunk(kind), toy.make_critic()
    options |= {"alpha_init": 0.2, "target_entropy": 0.3}
    return [toy.make_loss(each, critic, **options) for each in (trunk, copy.deepcopy(trunk))]


def moved(loss, before):
    return {name for name, value in toy.values(loss).items() if not value.equal(before[name])}


def by_hand(loss, adams, batch, update_actor, max_norm, separate):
    """One update of ``loss``, gradient by gradient; returns the norms of the gradients."""
    parameters = dict(loss.named_parameters())
    trunk = {n: p for n, p in parameters.items() if n.startswith("trunk_params")}
    critic = {n: p for n, p in parameters.items() if n.startswith("qvalue")}
    terms = loss(batch)
    wanted = {"critic": toy.gradients(terms["loss_qvalue"], critic)}
    if separate:
        wanted["trunk_critic"] = toy.gradients(terms["loss_qvalue"], trunk)
        if update_actor:
            wanted["trunk_actor"] = toy.gradients(terms["loss_actor"], trunk)
    else:
        actor = terms["loss_actor"] if update_actor else 0.0
        wanted["trunk"] = toy.gradients(terms["loss_qvalue"] + actor, trunk)
    if update_actor:
        wanted["alpha"] = toy.gradients(terms["loss_alpha"], {"log_alpha": loss.log_alpha})
    norms = {}
    for name, gradients in wanted.items():
        for key, gradient in gradients.items():
            parameters[key].grad = gradient.clone()
        if gradients:
            norms[name] = nn.utils.clip_grad_norm_(loss.parameters(), max_norm).item()
        adams[name].step()
        adams[name].zero_grad()
    return norms


@pytest.mark.parametrize("separate", [True, False], ids=["two Adams", "one Adam"])
@pytest.mark.parametrize(
    ("kind", "max_norm", "backprop"),
    [
        *(("plain", math.inf, True), ("plain", 0.05, False), ("tied", 0.05, True)),
        *(("partly frozen", math.inf, False), ("partly frozen", 0.05, True)),
        ("frozen", math.inf, True),
    ],
)
def test_steps_equal_adams_by_hand(kind, max_norm, backprop, separate):
    """The first one warms the critic up; what no gradient reaches has no step."""
    ours, theirs = make_pair(kind, critic_backprop=backprop)
    optimizer = SharedTrunkOptimizer(ours, max_grad_norm=max_norm, separate=separate, **RATES)
    rates = dict.fromkeys(("trunk_actor", "trunk_critic", "trunk"), RATES["lr_trunk"])
    rates |= {"critic": RATES["lr_heads"], "alpha": RATES["lr_alpha"]}
    adams = {name: Adam(theirs.parameters(), rate, fused=False) for name, rate in rates.items()}
    for update_actor in (False, True, True, False, True):
        batch = toy.make_batch()
        optimizer.backward(ours(batch), update_actor=update_actor)
        norms = optimizer.step()
        expected = by_hand(theirs, adams, batch, update_actor, max_norm, separate)
        assert norms == pytest.approx(expected)
        torch.testing.assert_close(toy.values(ours), toy.values(theirs))


@pytest.mark.parametrize("name", ["loss_actor", "loss_qvalue", "loss_alpha"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_nothing(name, value):
    loss, _ = make_pair()
    optimizer = SharedTrunkOptimizer(loss)
    before = toy.values(loss)
    optimizer.backward(loss(toy.make_batch()), share=0.5)
    terms = loss(toy.make_batch())
    terms[name] = terms[name] * value
    with pytest.raises(FloatingPointError, match=f"{name} is -?{value}"):
        optimizer.backward(terms, share=0.5)
    assert optimizer.step() == {}, "no gradient of the first part is kept"
    assert not moved(loss, before)


def test_a_gradient_that_is_not_finite_changes_nothing():
    loss, _ = make_pair("plain")
    optimizer = SharedTrunkOptimizer(loss)
    before = toy.values(loss)
    terms = loss(toy.make_batch())
    bias = loss.trunk.module.mix.bias
    terms["loss_actor"] = terms["loss_actor"] + (bias.sum() * 0.0).sqrt()  # 0, of slope infinity
    message = "group 'trunk_actor' .*first in 'trunk_params.module.mix.bias', 1"
    with pytest.raises(FloatingPointError, match=message):
        optimizer.backward(terms)
        optimizer.step()
    assert not moved(loss, before)
    assert not any(adam.state for adam in optimizer.optimizers.values())
    assert optimizer.step() == {}, "no gradient is kept"
    optimizer.backward(loss(toy.make_batch()))
    assert optimizer.step()  # and the next step is clean


def test_state_dict_round_trip_continues_exactly():
    first, second = make_pair()
    optimizers = [SharedTrunkOptimizer(loss, **RATES) for loss in (first, second)]
    for update_actor in (False, True):
        optimizers[0].backward(first(toy.make_batch()), update_actor=update_actor)
        optimizers[0].step()
    SoftUpdate(first, tau=0.1)  # begins with targets that the other loss has not
    weight, file = second.trunk.module.mix.weight, io.BytesIO()
    torch.save({"loss": first.state_dict(), "optimizer": optimizers[0].state_dict()}, file)
    file.seek(0)
    state = torch.load(file)
    second.load_state_dict(state["loss"])
    optimizers[1].load_state_dict(state["optimizer"])
    assert second.trunk.module.mix.weight is weight, "the policy's trunk must stay the loss's"
    batch = toy.make_batch()
    for optimizer, loss in zip(optimizers, (first, second), strict=True):
        optimizer.backward(loss(batch))
        optimizer.step()
    assert not moved(first, toy.values(second))


def test_state_of_another_mode_is_refused():
    loss, _ = make_pair()
    state = SharedTrunkOptimizer(loss, separate=False).state_dict()
    with pytest.raises(ValueError, match="has the groups .*'trunk'.* but this optimizer has"):
        SharedTrunkOptimizer(loss).load_state_dict(state)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr_heads": -1.0}, r"lr_heads \(-1.0\)"),
        ({"lr_alpha": math.nan}, r"lr_alpha \(nan\)"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm \(0.0\) must be positive"),
        ({"lr_trunk": math.inf}, r"lr_trunk \(inf\) must be a finite learning rate"),
    ],
)
def test_construction_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        SharedTrunkOptimizer(make_pair()[0], **options)


@pytest.mark.parametrize("separate", [True, False])
def test_an_update_in_unequal_parts_is_that_of_the_whole_batch(separate):
    ours, theirs = make_pair()
    batch, norms = toy.make_batch(), []
    for loss, sizes in ((ours, [7]), (theirs, [1, 4, 2])):
        optimizer = SharedTrunkOptimizer(loss, separate=separate, max_grad_norm=0.05)
        for part in batch.split(sizes):
            optimizer.backward(loss(part.clone()), share=len(part) / 7)
        norms.append(optimizer.step())
    assert norms[1] == pytest.approx(norms[0])
    torch.testing.assert_close(toy.values(theirs), toy.values(ours))


def test_rates_are_scaled_from_those_at_the_start_and_restored():
    """The first step of Adam is as long as its rate: with a gradient of 2, ``rate * 2 / 2``."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = ClippedAdam([{"params": [weight], "lr": 0.5}])
    for factor in (0.5, 0.2):
        optimizer.scale_rates(factor)
    optimizer.backward(TensorDict({"loss_value": (2 * weight).sum()}))
    optimizer.step()
    assert weight.item() == pytest.approx(-0.1)
    again = ClippedAdam([{"params": [weight], "lr": 0.5}])
    again.load_state_dict(optimizer.state_dict())
    again.scale_rates(0.4)
    assert again.optimizers["all"].param_groups[0]["lr"] == pytest.approx(0.2)
    with pytest.raises(ValueError, match=r"factor \(-1\) must be finite"):
        optimizer.scale_rates(-1)


def test_losses_by_row_or_none_at_all_are_refused():
    loss = toy.make_loss(reduction="none")
    for losses in (loss(toy.make_batch()), TensorDict()):
        with pytest.raises(ValueError, match="must be scalars named loss_"):
            SharedTrunkOptimizer(loss).backward(losses)
