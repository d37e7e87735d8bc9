"""PPOGLAMLoss against PPO written by hand, and as a TorchRL loss: keys, passes, refusals."""

import copy
from functools import partial

import pytest
import torch
from tensordict import lazy_stack
from torchrl.objectives import ValueEstimators

from torchrl_glam.models import CandidateActor, ValueHead
from torchrl_glam.objectives import PPOGLAMLoss

from . import reference, toy

LOSSES = ("loss_objective", "loss_entropy", "loss_critic")


def make_loss(trunk=None, gamma=0.9, lmbda=0.8, **options):
    actor, value = CandidateActor(return_log_prob=True), ValueHead(toy.WIDTH, (8,))
    loss = PPOGLAMLoss(trunk or toy.make_trunk(), actor, value, **options)
    loss.make_value_estimator(gamma=gamma, lmbda=lmbda)
    return loss.to(torch.float64)


def make_rollout(loss, rows=7):
    """Rows of several runs; those of the last one are relabelled with another goal."""
    batch = toy.make_batch(rows).exclude("steps_to_next_obs", "action")
    batch["next", "action_mask"][:] = True
    with torch.no_grad():  # what the policy of a collector writes
        loss.value(loss.actor(loss.trunk(batch)))
    batch["next", "truncated"][-1] = ~batch["next", "terminated"][-1]
    batch["next", "done"] = batch["next", "terminated"] | batch["next", "truncated"]
    return batch.set("is_hindsight", torch.zeros(rows, dtype=torch.bool))


def relabel(rollout, rows=2):
    goals = torch.randint(toy.VOCABULARY, rollout["goal_tokens"][-rows:].shape)
    rollout["goal_tokens"][-rows:] = rollout["next", "goal_tokens"][-rows:] = goals
    rollout["is_hindsight"][-rows:] = True
    return rollout


def moved(loss, scale=0.3):
    """The loss after its policy has moved, as in later epochs."""
    for parameter in loss.parameters():
        parameter.data.add_(scale * torch.randn_like(parameter))
    return loss


def gradients(terms, loss):
    total = sum(terms[name] for name in LOSSES)
    return torch.autograd.grad(total, list(loss.parameters()), retain_graph=True, allow_unused=True)


OBJECTIVES = {  # by options of the loss
    "clip": ({"clip_epsilon": 0.1}, partial(reference.clip_objective, epsilon=0.1)),
    "kl": ({"kl_coeff": 0.7}, partial(reference.kl_objective, beta=0.7)),
}


@pytest.mark.parametrize("backprop", [True, False])
@pytest.mark.parametrize("center", ["one", "behaviour"])
@pytest.mark.parametrize("hindsight", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_values_and_gradients_are_those_of_ppo_by_hand(objective, hindsight, center, backprop):
    """Also where masked candidates hold NaN, in what was recorded and in this pass."""
    own, by_hand = OBJECTIVES[objective]
    options = {"entropy_coeff": 0.3, "critic_coeff": 0.6, "critic_backprop": backprop, **own}
    loss = make_loss(objective=objective, clip_center=center, **options)
    rollout = make_rollout(loss)
    batch = loss.prepare(relabel(rollout) if hindsight else rollout).detach()
    model, head = moved(loss).trunk.module, loss.value.module.mlp
    expected = reference.ppo_losses(model, head, batch, by_hand, 0.3, 0.6, backprop)
    masked = batch.clone()
    masked["log_likelihood"].masked_fill_(~masked["action_mask"], torch.nan)
    for rows, poison in ((batch, False), (masked, True)):
        model.poison = poison
        terms = loss(rows)
        for name in LOSSES:
            torch.testing.assert_close(terms[name], expected[name], msg=name)
        torch.testing.assert_close(gradients(terms, loss), gradients(expected, loss))


@pytest.mark.parametrize("center", ["one", "behaviour"])
def test_the_ratio_begins_at_one_without_hindsight_and_elsewhere_with_it(center):
    loss = make_loss(clip_center=center)
    terms = loss(loss.prepare(make_rollout(loss)))
    for name in ("mean_ratio", "max_ratio"):
        assert terms[name].item() == pytest.approx(1, abs=1e-12)
    batch = loss.prepare(relabel(make_rollout(loss)))
    terms = loss(batch)
    rows = list(zip(batch, batch["action"].tolist(), strict=True))
    now = [reference.policy(loss.trunk.module, row)[action] for row, action in rows]
    old = [reference.old_policy(row)[action] for row, action in rows]
    ratios = torch.stack(now).detach() / torch.stack(old)
    torch.testing.assert_close(terms["mean_ratio"], ratios.mean())
    assert (ratios[-2:] - 1).abs().max() > 0.01
    if center == "behaviour":
        torch.testing.assert_close(batch["clip_center"], ratios)
        assert terms["clip_fraction"] == 0


def test_the_divergence_begins_at_zero_without_hindsight_and_centred():
    loss = make_loss(objective="kl")
    assert loss(loss.prepare(make_rollout(loss)))["kl"].item() == pytest.approx(0, abs=1e-12)
    relabelled = relabel(make_rollout(loss))
    assert loss(loss.prepare(relabelled.clone()))["kl"] > 1e-4
    centred = make_loss(loss.trunk, objective="kl", clip_center="behaviour")
    assert centred(centred.prepare(relabelled))["kl"].item() == pytest.approx(0, abs=1e-12)


def test_the_kl_coefficient_moves_when_it_is_told_to_only():
    loss = make_loss(objective="kl", kl_coeff=0.5)
    batch = loss.prepare(make_rollout(loss))
    moved(loss)(batch)
    assert loss.heads.beta == 0.5
    for kl, expected in ((0.02, 1.0), (0.014, 1.0), (0.006, 0.5), (0.007, 0.5)):
        loss.adapt_kl_coeff(kl, target=0.01)
        assert loss.heads.beta == expected


def test_advantages_of_terminated_truncated_and_cut_runs():
    """Numbers by hand: gamma 0.5, lambda 0.2, all values 1 but the next ones of ends, 4."""
    loss = make_loss(gamma=0.5, lmbda=0.2)
    rows = make_rollout(loss, rows=6)
    rows["state_value"] = torch.ones(6, 1).double()
    rows["next", "reward"] = torch.tensor([0.0, 1, 0, 0, 0, 0]).double().unsqueeze(-1)
    flags = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 1], [0, 0], [0, 1]], dtype=torch.bool)
    rows["next", "terminated"], rows["next", "truncated"] = flags.unsqueeze(-1).unbind(1)
    rows["next", "done"] = flags.any(1, keepdim=True)
    with torch.no_grad():
        for parameter in loss.critic_parameters():
            parameter.zero_()
        loss.value.module.mlp[-1].bias.fill_(4.0)
    loss.prepare(rows)
    # terminated: 1 - 1 = 0, and before it 0.5 * 1 - 1 + 0.1 * 0 = -0.5;
    # truncated: 0.5 * 4 - 1 = 1, and before it 0.5 * 1 - 1 + 0.1 * 1 = -0.4
    expected = torch.tensor([-0.5, 0, -0.4, 1, -0.4, 1]).unsqueeze(-1)
    torch.testing.assert_close(rows["advantage"].float(), expected)
    torch.testing.assert_close(rows["value_target"].float(), expected + 1)


def test_values_of_relabelled_rows_and_after_time_outs_are_the_trunks():
    """The others' next values are the values of the next rows; none counts after a terminal one."""
    loss = make_loss()
    rows = loss.prepare(relabel(make_rollout(loss)))
    model, head = loss.trunk.module, loss.value.module.mlp
    values = [reference.value(model, head, row).item() for row in rows]
    assert rows["state_value"].flatten().tolist() == pytest.approx(values)
    assert rows["next", "truncated"].nonzero()[:, 0].tolist() == [3]
    assert rows["next", "terminated"].nonzero()[:, 0].tolist() == [2, 6]
    after = reference.value(model, head, rows["next"][3]).item()
    following = rows["next", "state_value"].flatten()[[0, 1, 3, 4, 5]].tolist()
    assert following == pytest.approx([values[1], values[2], after, values[5], values[6]])


def test_one_pass_a_call_and_none_for_what_was_recorded():
    loss = make_loss(clip_center="behaviour")
    rollout = make_rollout(loss)
    calls = loss.trunk.module.calls
    calls.clear()
    loss.prepare(rollout.clone())
    assert calls == [1], "the next state of the one truncated run"
    batch = loss.prepare(relabel(rollout))
    assert calls[1:] == [2, 1], "two relabelled rows and the truncated one"
    loss(batch)
    assert calls[3:] == [7]


@pytest.mark.parametrize("objective", ["clip", "kl"])
def test_nested_keys(objective):
    options = {"objective": objective, "clip_center": "behaviour"}
    loss = make_loss(**options)
    rollout = relabel(make_rollout(loss))
    renamed = {name: ("agent", name) for name in vars(loss.tensor_keys)}
    trunk, value = loss.trunk, ValueHead(toy.WIDTH, (8,), state_value_key=("agent", "value"))
    value.load_state_dict(loss.value.state_dict())
    actor = CandidateActor(action_key=("agent", "action"), return_log_prob=True)
    other = PPOGLAMLoss(trunk, actor, value.double(), **options)
    assert other.tensor_keys.sample_log_prob == ("agent", "action_log_prob")
    assert other.tensor_keys.value == ("agent", "value")
    other.set_keys(**renamed)
    other.make_value_estimator(gamma=0.9, lmbda=0.8)
    written = {"value": "state_value", "sample_log_prob": "action_log_prob"}
    copy = toy.rename(rollout, {written.get(name, name): key for name, key in renamed.items()})
    expected, got = loss(loss.prepare(rollout)), other(other.prepare(copy).select(*other.in_keys))
    for name in LOSSES:
        torch.testing.assert_close(got[name], expected[name])


def test_out_keys_are_what_a_call_returns():
    for objective in ("clip", "kl"):
        loss = make_loss(objective=objective)
        terms = loss(loss.prepare(make_rollout(loss)).select(*loss.in_keys))
        assert set(loss.out_keys) <= set(terms.keys()) and "kl_approx" in loss.out_keys
        assert not any(terms[name].requires_grad for name in terms.keys() if name not in LOSSES)
        rows = loss.prepare(make_rollout(loss))
        assert [*loss.select_out_keys("loss_objective")(rows).keys()] == ["loss_objective"]


@pytest.mark.parametrize("make", [make_loss, toy.make_loss], ids=["PPO", "SAC"])
@pytest.mark.parametrize("kind", ["plain", "tied", "partly frozen", "frozen"])
def test_parameters_of_a_loss_and_its_copy_are_trunk_and_heads_each_once(kind, make):
    trunk = toy.make_trunk(kind)
    loss = make(trunk)
    copied = copy.deepcopy(loss)
    for each, its_trunk in ((loss, trunk), (copied, copied.trunk)):
        trainable = [p for p in its_trunk.parameters() if p.requires_grad]
        alpha = [each.log_alpha] if make is toy.make_loss else []
        own = [*trainable, *each.critic_parameters(), *alpha]
        assert sorted(map(id, each.parameters())) == sorted(map(id, own))
        assert {id(p) for p in each.trunk_parameters()} == set(map(id, trainable))
    assert not {*map(id, copied.parameters())} & {*map(id, loss.parameters())}
    assert [*copied.state_dict()] == [*loss.state_dict()]


def test_a_state_is_restored_and_holds_no_frozen_weight():
    loss, other = (make_loss(toy.make_trunk("partly frozen"), objective="kl") for _ in range(2))
    loss.adapt_kl_coeff(1.0, 0.1)
    other.load_state_dict(loss.state_dict())
    assert not any("embed" in name for name in loss.state_dict())
    assert other.heads.beta == 2
    for got, want in zip(other.parameters(), loss.parameters(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "trpo"}, r"objective \('trpo'\) must be 'clip' or 'kl'"),
        ({"clip_center": "zero"}, r"clip_center \('zero'\) must be 'one' or 'behaviour'"),
        ({"clip_epsilon": 1.0}, r"clip_epsilon \(1.0\) must be in \(0, 1\)"),
        ({"kl_coeff": -1.0}, r"kl_coeff \(-1.0\) must be at least 0"),
        ({"reduction": "max"}, r"reduction \('max'\) must be 'mean'"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        make_loss(**options)


def test_wrong_data_and_estimators():
    loss = make_loss()
    batch = loss.prepare(make_rollout(loss))
    masked = batch.clone()
    masked["action"][1] = 0
    with pytest.raises(ValueError, match="'action' is 0 in batch row .* not an admissible"):
        loss(masked)
    infinite = batch.clone()
    infinite["advantage"][0] = torch.inf
    with pytest.raises(FloatingPointError, match="'advantage' holds 1 NaN or infinite"):
        loss(infinite)
    with pytest.raises(ValueError, match=r"the batch size \(\[0\]\) must hold one row"):
        loss(batch[:0])
    with pytest.raises(ValueError, match=r"last \('next', 'done'\) .* must be True.*close_rollout"):
        loss.prepare(make_rollout(loss)[:2])
    with pytest.raises(NotImplementedError, match="must be ValueEstimators.GAE"):
        loss.make_value_estimator(ValueEstimators.TD0)
    with pytest.raises(ValueError, match=r"objective \('clip'\) must be 'kl'"):
        loss.adapt_kl_coeff(1.0, 0.1)


def test_lines_of_several_environments_are_read_as_if_they_were_one():
    loss = make_loss()
    rows = make_rollout(loss, 8)
    rows["next", "done"][3] = rows["next", "truncated"][3] = True
    rows["next", "terminated"][3] = False
    both, one = loss.prepare(rows.clone().reshape(2, 4)), loss.prepare(rows)
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(both[key].flatten(), one[key].flatten())
    for name in LOSSES:
        torch.testing.assert_close(loss(both)[name], loss(one)[name])


@pytest.mark.parametrize("objective", ["clip", "kl"])
def test_rows_in_a_lazy_stack_of_less_precision_are_prepared_alike(objective):
    loss = make_loss(objective=objective, clip_center="behaviour")
    rows = relabel(make_rollout(loss))
    single = rows.apply(lambda x: x.float() if x.is_floating_point() else x.clone())
    lazy, rows = loss.prepare(lazy_stack([*single.unbind(0)])), loss.prepare(rows)
    for key in ("state_value", "advantage", "value_target", "clip_center", "log_likelihood"):
        torch.testing.assert_close(lazy[key].double(), rows[key], atol=1e-5, rtol=1e-5)
