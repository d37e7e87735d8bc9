"""SACGLAMLoss as a TorchRL loss: passes, keys, targets, states, devices and refusals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import SoftUpdate, ValueEstimators

from torchrl_glam.models import CandidateActor, CandidateCritic
from torchrl_glam.objectives import SACGLAMLoss, functional

from . import toy

LOSSES = ("loss_actor", "loss_qvalue", "loss_alpha")


@pytest.fixture
def loss():
    return toy.make_loss()


@pytest.mark.parametrize(
    ("kind", "all_end", "rows"),
    [("plain", False, [7, 5, 5]), ("plain", True, [7]), ("frozen", False, [7, 5])],
    ids=["two of seven rows terminate", "all rows terminate", "a frozen trunk is its own target"],
)
def test_passes_and_their_rows(kind, all_end, rows):
    loss = toy.make_loss(toy.make_trunk(kind))
    batch = toy.make_batch(7)
    batch["next", "terminated"] |= all_end
    loss(batch)
    assert loss.trunk.module.calls == rows


def test_policy_and_values_are_softmax_and_least_critic_row_by_row():
    critics = [toy.make_critic(), toy.make_critic()]
    loss = toy.make_loss(critic=critics)
    batch = toy.make_batch()
    before = batch.clone()
    probabilities, q_values = loss.policy_and_values(batch)
    assert (batch == before).all() and set(batch.keys()) == set(before.keys())
    assert not probabilities.requires_grad and not q_values.requires_grad
    for row in range(len(batch)):
        inputs = [batch[key][row] for key in toy.STATE_KEYS]
        score, embedding, _ = loss.trunk.module(*inputs)
        mask = inputs[-1]
        expected = torch.zeros_like(score)
        expected[mask] = score[mask].softmax(-1)
        torch.testing.assert_close(probabilities[row], expected.detach())
        each = [critic.to(torch.float64).module.mlp(embedding).squeeze(-1) for critic in critics]
        least = torch.stack(each).min(0).values
        torch.testing.assert_close(q_values[row][mask], least[mask].detach())


def test_batch_of_two_dimensions(loss):
    batch = toy.make_batch(14)
    flat, square = loss(batch.clone()), loss(batch.clone().reshape(2, 7))
    for name in loss.out_keys:
        torch.testing.assert_close(square[name], flat[name])


@pytest.mark.parametrize("kind", ["plain", "tied", "partly frozen"])
def test_soft_update_moves_targets_by_tau(kind):
    loss = toy.make_loss(toy.make_trunk(kind))
    updater = SoftUpdate(loss, tau=0.1)
    sources = {n: p for n, p in loss.named_parameters() if n != "log_alpha"}
    before = {name: source.detach().clone() for name, source in sources.items()}
    for source in sources.values():
        source.data.add_(torch.randn_like(source))
    updater.step()
    targets = dict(loss.named_buffers())
    for name, source in sources.items():
        expected = 0.9 * before[name] + 0.1 * source.detach()
        torch.testing.assert_close(targets[f"target_{name}"], expected)


def test_moving_the_loss_moves_the_trunk_and_soft_updates_made_before_still_work():
    trunk = toy.make_trunk("partly frozen")
    loss = toy.make_loss(trunk)
    updater = SoftUpdate(loss, tau=0.1)
    weight, target = trunk.module.mix.weight, loss.target_trunk_params["module", "mix", "weight"]
    loss.to(torch.float32)
    assert {p.dtype for p in trunk.parameters()} == {torch.float32}
    assert {b.dtype for b in loss.buffers()} == {torch.float32}
    assert trunk.module.mix.weight is weight is loss.trunk_params["module", "mix", "weight"]
    before = target.clone()
    weight.data.add_(1.0)
    updater.step()
    assert target is loss.target_trunk_params["module", "mix", "weight"]
    torch.testing.assert_close(target, before + 0.1)


def test_a_state_fits_whether_or_not_a_loss_was_called_before():
    critic = toy.make_critic()
    fresh, called = (
        SACGLAMLoss(toy.make_trunk(), CandidateActor(), critic, num_actions=toy.ACTIONS).double()
        for _ in range(2)
    )
    called(toy.make_batch())
    fresh.load_state_dict(called.state_dict())
    called.load_state_dict(fresh.state_dict())


def test_reset_parameters_leaves_the_language_model_alone(loss):
    before = {n: p.clone() for n, p in loss.named_parameters()}
    loss.reset_parameters_recursive()
    for name, parameter in loss.named_parameters():
        kept = name.startswith("trunk_params") or name == "log_alpha"
        assert torch.equal(parameter, before[name]) == kept, name


def test_nested_keys_give_the_same_terms():
    own = ["action", "reward", "done", "terminated", "action_value", "priority"]
    nested = {key: ("agent", key) for key in [*toy.STATE_KEYS, *toy.OUT_KEYS, *own]}

    def arguments(*names):
        return {f"{name}_key": nested[name] for name in names}

    trunk, plain_critic = toy.make_trunk(), toy.make_critic()
    in_keys, out_keys = ([nested[key] for key in keys] for keys in (toy.STATE_KEYS, toy.OUT_KEYS))
    moved = TensorDictModule(trunk.module, in_keys, out_keys)
    actor = CandidateActor(**arguments("log_likelihood", "action_mask", "action"))
    critic_keys = arguments("action_embedding", "action_mask", "action_value")
    critic = CandidateCritic(toy.WIDTH, (8,), **critic_keys)
    critic.load_state_dict(plain_critic.state_dict())
    plain = toy.make_loss(trunk, plain_critic)
    loss = SACGLAMLoss(moved, actor, critic, num_actions=toy.ACTIONS)
    loss.set_keys(**{name: nested[name] for name in own})
    loss.make_value_estimator(gamma=0.9)
    loss.double()
    SoftUpdate(loss, tau=0.1)
    batch = toy.make_batch()
    renamed = toy.rename(batch, nested)
    expected, terms = plain(batch), loss(renamed)
    for name in loss.out_keys:
        assert torch.equal(terms[name], expected[name]), name
    assert torch.equal(renamed["agent", "priority"], batch["td_error"])


def test_reductions():
    trunk, critic, batch = toy.make_trunk(), toy.make_critic(), toy.make_batch()
    rows, mean, total = (
        toy.make_loss(trunk, critic, reduction=reduction)(batch)
        for reduction in ("none", "mean", "sum")
    )
    assert set(rows.keys()) == set(LOSSES)
    for name in LOSSES:
        assert rows[name].shape == (7,)
        torch.testing.assert_close(mean[name], rows[name].mean())
        torch.testing.assert_close(total[name], rows[name].sum())


def test_keyword_call_without_tensordict(loss):
    batch = toy.make_batch().exclude("steps_to_next_obs")
    flat = {"_".join(k) if isinstance(k, tuple) else k: batch[k] for k in loss.in_keys}
    terms = loss(batch)
    values = loss(**flat)
    for name, value in zip(loss.out_keys, values, strict=True):
        assert torch.equal(value, terms[name]), name
    each = toy.make_loss(reduction="none")
    assert [value.shape for value in each(**flat)] == [(7,)] * 3


def test_single_terms_equal_the_whole(loss):
    batch = toy.make_batch()
    terms = loss(batch)
    torch.testing.assert_close(loss.qvalue_loss(batch)[0], terms["loss_qvalue"])
    torch.testing.assert_close(loss.actor_loss(batch)[0], terms["loss_actor"])


def test_a_coefficient_that_is_not_learned_is_scheduled_alone():
    loss = toy.make_loss(toy.make_trunk(), alpha_init=0.4, alpha_end=0.1)
    loss.schedule(0.25)
    assert loss.alpha.item() == pytest.approx(0.325)
    terms = loss(toy.make_batch())
    terms["loss_alpha"].backward()
    assert terms["loss_alpha"] == loss.log_alpha.grad == 0
    learned = toy.make_loss(toy.make_trunk(), alpha_init=0.4)
    learned.schedule(0.25)
    assert learned.alpha.item() == pytest.approx(0.4)
    for done in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=rf"done \({done}\) must lie in \[0, 1\]"):
            loss.schedule(done)


def test_importance_weights_of_prioritised_replay(loss):
    batch = toy.make_batch()
    loss(batch)
    weights = torch.arange(7.0, dtype=torch.float64)
    weighted = loss(batch.set("priority_weight", weights))["loss_qvalue"]
    expected = (batch["td_error"].square() * weights).mean()
    torch.testing.assert_close(weighted.detach(), expected)
    parts = [loss(batch[i : i + 1])["loss_qvalue"] for i in range(7)]
    torch.testing.assert_close(torch.stack(parts).mean(), weighted)
    column = loss(batch.set("priority_weight", weights.unsqueeze(-1)))["loss_qvalue"]
    torch.testing.assert_close(column, weighted)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_actions": 0}, r"num_actions \(0\) must be at least 1"),
        ({"alpha_init": 0.0}, r"alpha_init \(0.0\) must be positive"),
        ({"alpha_init": math.nan}, r"alpha_init \(nan\)"),
        ({"alpha_end": 0.0}, r"alpha_end \(0.0\) must be positive"),
        ({"target_entropy": "auto"}, r"target_entropy \('auto'\) must be a number of nats"),
        ({"target_entropy": -0.1}, r"target_entropy \(-0.1\) must lie in \[0, log\("),
        ({"target_entropy": 1.5}, r"target_entropy \(1.5\) .* \[0, 1.386\] nats"),
        ({"target_entropy": math.nan}, r"target_entropy \(nan\)"),
        ({"critic": [toy.make_critic()] * 2}, "got 2 with 1 distinct"),
        ({"critic": []}, "critic must be one module"),
        ({"loss_function": "huber"}, r"loss_function \('huber'\)"),
        ({"reduction": "max"}, r"reduction \('max'\) must be 'mean' or 'sum' or 'none'"),
        ({"munchausen": 1.0}, r"munchausen \(1.0\) must be in \[0, 1\)"),
        ({"actor": nn.Linear(1, 1)}, "actor must have no parameters"),
    ],
)
def test_construction_refuses(options, message):
    critic = options.pop("critic", toy.make_critic())
    actor = options.pop("actor", CandidateActor())
    options = {"num_actions": toy.ACTIONS, **options}
    with pytest.raises(ValueError, match=message):
        SACGLAMLoss(toy.make_trunk(), actor, critic, **options)


@pytest.mark.parametrize(
    "key, index, value, error, message",
    [
        ("action_mask", 4, False, ValueError, r"'action_mask' admits no candidate .* \[4\]"),
        (("next", "action_mask"), 0, False, ValueError, "In the next states.*'action_mask' admits"),
        ("action", 0, 9, ValueError, r"'action' is 9 in batch row \(0,\)"),
        ("action", 3, -1, ValueError, r"'action' is -1 in batch row \(3,\)"),
        ("action", 1, 0, ValueError, r"'action' is 0 in batch row \(1,\).*admissible: \[2, 3\]"),
        (("next", "reward"), 2, math.nan, FloatingPointError, r"\('next', 'reward'\) holds 1 NaN"),
    ],
)
def test_a_bad_row_is_named(key, index, value, error, message, loss):
    batch = toy.make_batch()
    batch[key][index] = value
    with pytest.raises(error, match=message):
        loss(batch)


def test_missing_and_wrong_entries_and_other_estimators_are_named(loss):
    with pytest.raises(KeyError, match="goal_tokens"):
        loss(toy.make_batch().exclude("goal_tokens"))
    with pytest.raises(KeyError, match="terminated"):
        loss(toy.make_batch().exclude(("next", "terminated")))
    reward, terminated = ("next", "reward"), ("next", "terminated")
    for key, change, message in (
        ("action", lambda x: x[:, None], r"'action' is torch.int64 of shape \[7, 1\] .* \[7\]"),
        ("action", torch.Tensor.double, r"'action' is torch.float64 of .* must be integers"),
        ("action", torch.Tensor.bool, r"'action' is torch.bool of .* must be integers"),
        (reward, torch.Tensor.flatten, r"'reward'\) .* \[7\] .* numbers of shape \[7, 1\]"),
        (terminated, torch.Tensor.flatten, r"'terminated'\) .* \[7\] .* bool of shape \[7, 1\]"),
        (terminated, torch.Tensor.byte, r"'terminated'\) is torch.uint8 .* bool"),
    ):
        batch = toy.make_batch()
        with pytest.raises(ValueError, match=message):
            loss(batch.set(key, change(batch[key])))
    with pytest.raises(ValueError, match=r"the batch size \(\[0\]\) must hold one row"):
        loss(toy.make_batch()[:0])
    with pytest.raises(ValueError, match=r"num_actions \(5\) differs .* scored \(4\)"):
        toy.make_loss(num_actions=5)(toy.make_batch())
    with pytest.raises(NotImplementedError, match="TDLambda"):
        loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.9)


def test_weights_that_are_not_finite_are_noticed(loss):
    loss.trunk.module.mix.bias.data[0] = torch.nan
    with pytest.raises(FloatingPointError, match="'log_likelihood' is NaN or infinite"):
        loss(toy.make_batch())
    loss = toy.make_loss()
    next(loss.critic_parameters()).data.view(-1)[0] = torch.inf
    with pytest.raises(FloatingPointError, match="'action_value' holds"):
        loss(toy.make_batch())
    loss = toy.make_loss()
    loss.target_qvalue_network_params["module", "mlp", "2", "bias"].fill_(torch.nan)
    with pytest.raises(FloatingPointError, match=r"\('next', 'action_value'\) holds"):
        loss(toy.make_batch())


def test_extreme_likelihoods_stay_finite():
    """Scores hundreds of nats apart, as a fresh language model gives them."""
    given = [-900.0, -5.0, -400.0, 0.0], [True, True, True, False]
    loss, batch, scores = toy.one_transition(*given, alpha_init=50.0)
    SoftUpdate(loss, tau=0.1)
    terms = loss(batch)
    sum(terms[name] for name in LOSSES).backward()
    assert all(value.isfinite() for value in terms.values())
    assert scores.grad.isfinite().all() and scores.grad[3] == 0.0


@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.floats(0.05, 2.0), st.integers(0, 1000)
)
def test_no_policy_beats_the_softmax_of_values(q_values, alpha, seed):
    """The best soft value is ``alpha log sum exp(Q / alpha)``, of ``softmax(Q / alpha)`` alone."""
    q_values, alpha = (torch.tensor(x, dtype=torch.float64) for x in (q_values, alpha))
    best = alpha * torch.logsumexp(q_values / alpha, 0)
    draw = torch.Generator().manual_seed(seed)
    other = torch.randn(len(q_values), generator=draw, dtype=torch.float64)
    values = [
        functional.soft_value(log_probs.exp(), log_probs, q_values, alpha)
        for log_probs in ((q_values / alpha).log_softmax(0), other.log_softmax(0))
    ]
    torch.testing.assert_close(values[0], best)
    assert values[1] <= best + 1e-9


@pytest.mark.parametrize("value", [-torch.inf, torch.nan])
def test_values_of_masked_candidates_count_for_nothing(value, loss, monkeypatch):
    """A critic may give them -inf; the losses are those of one that gives 0."""

    def q_values(state, **options):
        return given(state, **options).masked_fill(~state["action_mask"], value)

    batch, given = toy.make_batch(), loss._q_values
    expected = loss(batch)
    monkeypatch.setattr(loss, "_q_values", q_values)
    terms = loss(batch)
    assert all(torch.equal(terms[name], expected[name]) for name in LOSSES)
