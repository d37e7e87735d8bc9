"""SACGLAMLoss against a reference, and as a TorchRL loss: passes, keys, targets, refusals."""

import copy
import math

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import SoftUpdate, ValueEstimators

from torchrl_glam.models import CandidateActor, CandidateCritic
from torchrl_glam.objectives import SACGLAMLoss

from . import reference, toy

GAMMA = 0.9
REWARD, END, NEXT_MASK = (("next", key) for key in ("reward", "terminated", "action_mask"))
LOSSES = ("loss_actor", "loss_qvalue", "loss_alpha")


def check(kind="plain", critic="candidate", critics=1, poison=False, **options):
    """Values and gradients of a loss whose targets have left their sources, by the reference."""
    options = {"target_entropy": 0.3, "critic_backprop": True, **options}
    trunk, heads = toy.make_trunk(kind), [toy.make_critic(critic) for _ in range(critics)]
    loss = toy.make_loss(trunk, heads, GAMMA, alpha_init=0.2, **options)
    heads = [head.module.mlp.double() for head in heads]  # the loss has copies of these
    target_model, target_heads = copy.deepcopy((trunk.module, heads))
    own = [parameter for head in heads for parameter in head.parameters()]
    for parameter in (*loss.trunk_parameters(), *loss.critic_parameters(), *own):
        parameter.data.mul_(1.3)
    model, log_alpha = copy.deepcopy((trunk.module, loss.log_alpha))
    batch, pairs = toy.make_batch(), ((model, target_model), (heads, target_heads))
    options["share"] = options.pop("target_entropy_weight", 0)
    expected, errors, entropies = reference.sac_losses(*pairs, log_alpha, batch, GAMMA, **options)

    # what the collecting policy wrote is out of date, and not to be read
    batch["log_likelihood"] = torch.zeros(7, toy.ACTIONS).double()
    batch["action_embedding"] = torch.zeros(7, toy.ACTIONS, toy.WIDTH).double()
    trunk.module.poison = poison
    terms = loss(batch)
    sources = {f"trunk_params.module.{n}": p for n, p in model.named_parameters()}
    sources = {n: p for n, p in sources.items() if p.requires_grad} | {"log_alpha": log_alpha}
    for name in LOSSES:
        torch.testing.assert_close(terms[name], expected[name], msg=lambda m, n=name: f"{n}: {m}")
        theirs = toy.gradients(expected[name], sources)
        parts = [toy.gradients(expected[name], dict(head.named_parameters())) for head in heads]
        for key in parts[0]:
            stacked = torch.stack([part[key] for part in parts])
            theirs[f"qvalue_network_params.module.mlp.{key}"] = stacked
        ours = toy.gradients(terms[name], dict(loss.named_parameters()))
        torch.testing.assert_close(ours, theirs, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(batch["td_error"], errors)
    torch.testing.assert_close(terms["td_error"], errors.mean())
    torch.testing.assert_close(terms["entropy"], entropies.mean())


@pytest.mark.parametrize("trunk", ["plain", "tied", "partly frozen", "frozen"])
@pytest.mark.parametrize("critic_backprop", [True, False])
def test_trunks(trunk, critic_backprop):
    check(trunk, critic_backprop=critic_backprop)


@pytest.mark.parametrize("critic", ["candidate", "observation"])
def test_two_critics_munchausen_and_masked_candidates_that_hold_nan(critic):
    check("tied", critic, critics=2, poison=True, munchausen=0.9)


def test_an_entropy_to_keep_that_is_a_share_of_what_each_states_candidates_allow():
    check(target_entropy=None, target_entropy_weight=0.4)
    assert (
        toy.make_loss(target_entropy=0.3, target_entropy_weight=0.4).target_entropy_weight is None
    )


def test_values_by_hand():
    """Two candidates, a policy of (1/4, 3/4), constant values: every term on paper."""
    policy = torch.tensor([0.25, 0.75]).log()
    loss, batch, _ = toy.one_transition(policy, alpha_init=0.5, target_entropy=0.1)
    for name, value in (("weight", torch.zeros(2, 1)), ("bias", torch.tensor([1.0, 2.0]))):
        loss.qvalue_network_params["module", name].data.copy_(value.unsqueeze(0))
    SoftUpdate(loss, tau=0.5)
    terms = loss(batch)
    # entropy = -(0.25 log 0.25 + 0.75 log 0.75) = 0.562335; expected value 0.25 + 1.5 = 1.75
    # y = 1 + 0.5**2 * (1.75 + 0.5 * 0.562335) = 1.507792
    assert terms["target_value"].item() == pytest.approx(1.507792, abs=1e-6)
    assert terms["q_value"].item() == pytest.approx(1.0)
    assert terms["loss_qvalue"].item() == pytest.approx(0.507792**2, abs=1e-6)
    assert terms["loss_actor"].item() == pytest.approx(-0.5 * 0.562335 - 1.75, abs=1e-6)
    assert terms["loss_alpha"].item() == pytest.approx(-0.693147 * 0.462335, abs=1e-6)
    assert terms["entropy"].item() == pytest.approx(0.562335, abs=1e-6)
    assert terms["alpha"].item() == pytest.approx(0.5)
    loss.munchausen = 0.8  # 0.8 * 0.5 * log 0.25 = -0.554518
    assert loss(batch)["target_value"].item() == pytest.approx(0.953274, abs=1e-6)


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
    loss, batch = toy.make_loss(critic=critics), toy.make_batch()
    model, heads = loss.trunk.module, [critic.double().module.mlp for critic in critics]
    before = batch.clone()
    probabilities, q_values = loss.policy_and_values(batch)
    assert (batch == before).all() and set(batch.keys()) == set(before.keys())
    assert not probabilities.requires_grad and not q_values.requires_grad
    for row, state in enumerate(batch):
        policy = reference.policy(model, state)
        expected = torch.zeros_like(probabilities[row])
        for action, probability in policy.items():
            expected[action] = probability.detach()
            least = min(reference.q_value(model, head, state, action) for head in heads)
            torch.testing.assert_close(q_values[row, action], least.detach())
        torch.testing.assert_close(probabilities[row], expected)


def test_batch_of_two_dimensions(loss):
    batch = toy.make_batch(14)
    flat, square = loss(batch.clone()), loss(batch.clone().reshape(2, 7))
    for name in loss.out_keys:
        torch.testing.assert_close(square[name], flat[name])


@pytest.mark.parametrize("kind", ["plain", "tied", "partly frozen"])
def test_soft_updates_move_targets_by_tau_wherever_the_loss_and_its_trunk_have_moved(kind):
    trunk = toy.make_trunk(kind)
    loss, weight = toy.make_loss(trunk), trunk.module.mix.weight
    updater = SoftUpdate(loss, tau=0.1)
    loss.to(torch.float32)
    assert {p.dtype for p in trunk.parameters()} == {torch.float32}
    assert {b.dtype for b in loss.buffers()} == {torch.float32}
    assert trunk.module.mix.weight is weight is loss.trunk_params["module", "mix", "weight"]
    sources = {n: p for n, p in loss.named_parameters() if n != "log_alpha"}
    before = {name: source.detach().clone() for name, source in sources.items()}
    for source in sources.values():
        source.data.add_(torch.randn_like(source))
    updater.step()
    targets = dict(loss.named_buffers())
    for name, source in sources.items():
        expected = 0.9 * before[name] + 0.1 * source.detach()
        torch.testing.assert_close(targets[f"target_{name}"], expected)


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
    before = toy.values(loss)
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
    plain, loss = toy.make_loss(trunk, plain_critic), toy.make_loss(moved, critic, actor=actor)
    loss.set_keys(**{name: nested[name] for name in own})
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
        ({"target_entropy": -0.1}, r"target_entropy \(-0.1\) must be a number of nats in \[0, l"),
        ({"target_entropy": 1.5}, r"target_entropy \(1.5\) .* = \[0, 1.386\]"),
        ({"target_entropy": math.nan}, r"target_entropy \(nan\)"),
        ({"target_entropy_weight": 1.5}, r"target_entropy_weight \(1.5\) must lie in \[0, 1\]"),
        ({"critic": [toy.make_critic()] * 2}, "got 2 with 1 distinct"),
        ({"critic": []}, "critic must be one module"),
        ({"loss_function": "huber"}, r"loss_function \('huber'\)"),
        ({"reduction": "max"}, r"reduction \('max'\) must be 'mean' or 'sum' or 'none'"),
        ({"munchausen": 1.0}, r"munchausen \(1.0\) must be in \[0, 1\)"),
        ({"actor": nn.Linear(1, 1)}, "actor must have no parameters"),
    ],
)
def test_construction_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        toy.make_loss(**options)


def at(row, value):
    """Puts a value into a row of an entry."""
    return lambda entry: entry.index_fill(0, torch.tensor(row), value)


@pytest.mark.parametrize(
    "key, change, message",
    [
        ("action_mask", at(4, False), r"'action_mask' admits no candidate .* \[4\]"),
        (NEXT_MASK, at(0, False), "In the next states.*'action_mask' admits"),
        ("action", at(0, 9), r"'action' is 9 in batch row \(0,\)"),
        ("action", at(3, -1), r"'action' is -1 in batch row \(3,\)"),
        ("action", at(1, 0), r"'action' is 0 in batch row \(1,\).*admissible: \[2, 3\]"),
        ("action", lambda x: x[:, None], r"'action' is torch.int64 of shape \[7, 1\] .* \[7\]"),
        ("action", torch.Tensor.double, r"'action' is torch.float64 of .* must be integers"),
        ("action", torch.Tensor.bool, r"'action' is torch.bool of .* must be integers"),
        (REWARD, torch.Tensor.flatten, r"'reward'\) .* \[7\] .* numbers of shape \[7, 1\]"),
        (END, torch.Tensor.flatten, r"'terminated'\) .* \[7\] .* bool of shape \[7, 1\]"),
        (END, torch.Tensor.byte, r"'terminated'\) is torch.uint8 .* bool"),
    ],
)
def test_a_bad_entry_is_named(key, change, message, loss):
    batch = toy.make_batch()
    with pytest.raises(ValueError, match=message):
        loss(batch.set(key, change(batch[key])))


def test_missing_entries_wrong_sizes_and_other_estimators_are_named(loss):
    for key, name in (("goal_tokens", "goal_tokens"), (END, "terminated")):
        with pytest.raises(KeyError, match=name):
            loss(toy.make_batch().exclude(key))
    with pytest.raises(ValueError, match=r"the batch size \(\[0\]\) must hold one row"):
        loss(toy.make_batch()[:0])
    with pytest.raises(ValueError, match=r"num_actions \(5\) differs .* scored \(4\)"):
        toy.make_loss(num_actions=5)(toy.make_batch())
    with pytest.raises(NotImplementedError, match="TDLambda"):
        loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.9)


def test_rewards_and_weights_that_are_not_finite_are_noticed(loss):
    batch = toy.make_batch()
    with pytest.raises(FloatingPointError, match=r"\('next', 'reward'\) holds 1 NaN"):
        loss(batch.set(REWARD, at(2, math.nan)(batch[REWARD])))
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
