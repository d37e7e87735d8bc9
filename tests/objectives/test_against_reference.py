"""Values and gradients of the loss against the one-candidate-at-a-time reference."""

import copy

import pytest
import torch
from torchrl.objectives import SoftUpdate

from . import reference, toy

GAMMA = 0.9
LOSSES = ("loss_qvalue", "loss_actor", "loss_alpha")


class Case:
    """A loss whose targets have left their sources, and the reference's own copy of everything."""

    def __init__(self, trunk="plain", critic="candidate", critics=1, **options):
        self.options = {"target_entropy": 0.3, "alpha_init": 0.2, "critic_backprop": True}
        self.options |= options
        model, heads = toy.make_trunk(trunk), [toy.make_critic(critic) for _ in range(critics)]
        self.loss = toy.make_loss(model, heads, GAMMA, **self.options)
        heads = [head.module.mlp.double() for head in heads]  # the loss has copies of these
        behind = copy.deepcopy((model.module, heads))
        own = [parameter for head in heads for parameter in head.parameters()]
        for parameter in (*self.loss.trunk_parameters(), *self.loss.critic_parameters(), *own):
            parameter.data.mul_(1.3)
        online = copy.deepcopy(model.module), heads
        self.models, self.heads = zip(online, behind, strict=True)
        self.batch = toy.make_batch()
        self.log_alpha = self.loss.log_alpha.detach().clone().requires_grad_()

    def reference(self):
        return reference.losses(
            self.models,
            self.heads,
            self.log_alpha,
            self.batch,
            GAMMA,
            self.options["target_entropy"],
            self.options["critic_backprop"],
            self.options.get("munchausen", 0.0),
        )

    def reference_gradients(self, loss):
        """By name as in the loss; those that the loss does not reach are left out."""
        sources = {f"trunk_params.module.{n}": p for n, p in self.models[0].named_parameters()}
        sources = {n: p for n, p in sources.items() if p.requires_grad}
        sources["log_alpha"] = self.log_alpha
        found = toy.gradients(loss, sources)
        parts = [toy.gradients(loss, dict(head.named_parameters())) for head in self.heads[0]]
        for name in parts[0]:
            stacked = torch.stack([part[name] for part in parts])
            found[f"qvalue_network_params.module.mlp.{name}"] = stacked
        return found


def check(case):
    expected, errors, entropies = case.reference()
    terms = case.loss(case.batch)
    for name in LOSSES:
        torch.testing.assert_close(terms[name], expected[name], msg=lambda m, n=name: f"{n}: {m}")
        ours = toy.gradients(terms[name], dict(case.loss.named_parameters()))
        theirs = case.reference_gradients(expected[name])
        torch.testing.assert_close(ours, theirs, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(case.batch["td_error"], errors)
    torch.testing.assert_close(terms["td_error"], errors.mean())
    torch.testing.assert_close(terms["entropy"], entropies.mean())


@pytest.mark.parametrize("trunk", ["plain", "tied", "partly frozen", "frozen"])
@pytest.mark.parametrize("critic_backprop", [True, False])
def test_trunks(trunk, critic_backprop):
    check(Case(trunk, critic_backprop=critic_backprop))


@pytest.mark.parametrize("critic", ["candidate", "observation"])
def test_two_critics_and_munchausen(critic):
    check(Case("tied", critic, critics=2, munchausen=0.9))


def test_masked_candidates_may_hold_nan():
    case = Case("tied")
    case.loss.trunk.module.poison = True
    check(case)


def test_stale_outputs_of_the_collecting_policy_are_ignored():
    case = Case()
    rows = case.batch.batch_size[0]
    case.batch["log_likelihood"] = torch.zeros(rows, toy.ACTIONS, dtype=torch.float64)
    case.batch["action_embedding"] = torch.zeros(rows, toy.ACTIONS, toy.WIDTH).double()
    check(case)


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
