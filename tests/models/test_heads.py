"""The actor head as a masked softmax, and the critic heads as perceptrons."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import ExplorationType, set_exploration_type

from torchrl_glam.models import (
    CandidateActor,
    CandidateCritic,
    ObservationCritic,
    with_random_actions,
)


def state(scores, mask):
    scores, mask = torch.tensor(scores), torch.tensor(mask)
    return TensorDict(log_likelihood=scores, action_mask=mask, batch_size=len(scores))


def test_divergences_are_finite_where_probabilities_round_to_zero():
    """By hand: a candidate of probability e^-90, whose logarithm fell by another 40 nats."""
    mask = [[True, True, False]]
    old, new = state([[0.0, -90.0, 0.0]], mask), state([[0.0, -130.0, 0.0]], mask)
    actor = CandidateActor()
    new["log_likelihood"].requires_grad_()
    kl = torch.distributions.kl_divergence(actor.get_dist(old), actor.get_dist(new))
    assert kl.item() == pytest.approx(40 * math.exp(-90.0), rel=1e-3)
    kl.backward()
    assert new["log_likelihood"].grad.isfinite().all()
    assert new["log_likelihood"].grad[0, 2] == 0
    even, uneven = state([[0.0, 0.0, 5.0]], mask), state([[math.log(3.0), 0.0, -5.0]], mask)
    kl = torch.distributions.kl_divergence(actor.get_dist(even), actor.get_dist(uneven))
    assert kl.item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))


def test_probabilities_are_a_softmax_over_admissible_candidates():
    weights = torch.tensor([[1.0, 9.0, 2.0, 5.0], [3.0, 3.0, 3.0, 9.0]])
    mask = [[True, False, True, True], [True, True, False, False]]
    probs = CandidateActor().get_dist(state(weights.log().tolist(), mask)).probs
    expected = [[1 / 8, 0.0, 2 / 8, 5 / 8], [1 / 2, 1 / 2, 0.0, 0.0]]
    torch.testing.assert_close(probs, torch.tensor(expected))


@pytest.mark.parametrize("offset", [0.0, -2000.0, 2000.0])
def test_masked_candidates_stay_out_of_values_and_gradients(offset):
    """Whatever a trunk leaves in an empty slot."""
    inputs = state([[1.0 + offset, -300.0 + offset, math.nan]], [[True, True, False]])
    scores = inputs["log_likelihood"].requires_grad_()
    dist = CandidateActor().get_dist(inputs)
    assert dist.probs[0, 2] == 0.0
    assert dist.logits.isfinite().all()
    (dist.probs * (50.0 * dist.logits - 3.0)).sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad[0, 2] == 0.0
    torch.testing.assert_close(dist.entropy(), torch.zeros(1))


@pytest.mark.parametrize("kind", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
@pytest.mark.parametrize("best", [-2e9, -1e20, -1e30, 1e30])
def test_a_masked_candidate_is_never_chosen_however_low_the_others(best, kind):
    inputs = state([[0.0, 3 * best, best]] * 50, [[False, True, True]] * 50)
    with set_exploration_type(kind):
        action = CandidateActor()(inputs)["action"]
    assert (action == (2 if best < 0 else 1)).all()


def test_exploration_types():
    actor = CandidateActor()
    rows = 2000
    inputs = state([[math.log(0.2), 5.0, math.log(0.8)]] * rows, [[True, False, True]] * rows)
    for kind in (ExplorationType.DETERMINISTIC, ExplorationType.MODE):
        with set_exploration_type(kind):
            assert (actor(inputs.clone())["action"] == 2).all()
    with set_exploration_type(ExplorationType.RANDOM):
        explicit = actor(inputs.clone())["action"]
    for action in (explicit, actor(inputs.clone())["action"]):  # sampling is the default
        assert action.dtype == torch.int64 and not (action == 1).any()
        assert (action == 2).float().mean().item() == pytest.approx(0.8, abs=0.05)


def test_random_actions_are_admissible_ones():
    """A policy that takes the first of three; 0.4 at random are others, two times in three."""
    policy = TensorDictModule(lambda mask: mask.int().argmax(-1), ["action_mask"], ["action"])
    mask = torch.tensor([True, False, True, True]).expand(20_000, 4)
    states = TensorDict(action_mask=mask, batch_size=20_000)
    chosen = with_random_actions(policy, 4, 0.4)(states)["action"]
    shares = chosen.bincount(minlength=4) / 20_000
    assert shares.tolist() == pytest.approx([0.6 + 0.4 / 3, 0, 0.4 / 3, 0.4 / 3], abs=0.015)
    assert with_random_actions(policy, 4, 0.0) is policy
    for share in (1.1, -0.1, math.nan):
        with pytest.raises(ValueError, match=rf"share \({share}\) must be in \[0, 1\]"):
            with_random_actions(policy, 4, share)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_is_scored_in_float32(dtype):
    inputs = state([[1.0, 2.0, 3.0]], [[True, True, False]])
    inputs["log_likelihood"] = inputs["log_likelihood"].to(dtype)
    dist = CandidateActor().get_dist(inputs)
    assert dist.probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert dist.logits.isfinite().all()


def test_bad_scores_are_named():
    actor = CandidateActor(log_likelihood_key="score")
    good = state([[0.0, 1.0], [2.0, 3.0]], [[True, True], [True, False]])
    good.rename_key_("log_likelihood", "score")
    masked = good.clone()
    masked["action_mask"][1] = False
    with pytest.raises(ValueError, match=r"'action_mask' admits no candidate in batch row.* \[1\]"):
        actor.get_dist(masked)
    broken = good.clone()
    broken["score"][0, 1] = math.nan
    with pytest.raises(FloatingPointError, match=r"'score' is NaN or infinite .* \[0\]"):
        actor.get_dist(broken)
    message = r"'score' has shape \(2, 2\) and 'action_mask' is torch.{}: .* the mask bool"
    for mask, kind in ((torch.ones(2, 3) > 0, r"bool \(2, 3\)"), (torch.ones(2, 2), r"float32 .*")):
        with pytest.raises(ValueError, match=message.format(kind)):
            actor.get_dist(good.clone().set("action_mask", mask))
    with pytest.raises(KeyError, match="score"):
        actor.get_dist(good.exclude("score"))


def test_candidate_critic_values_each_candidate_by_itself():
    """By a perceptron with ReLU between its layers."""
    critic = CandidateCritic(5, (7, 3))
    embedding = torch.randn(2, 3, 4, 5)  # a batch of two dimensions
    mask = torch.rand(2, 3, 4) < 0.6
    inputs = TensorDict(action_embedding=embedding, action_mask=mask, batch_size=[2, 3])
    values = critic(inputs)["action_value"]
    *hidden, last = [layer for layer in critic.module.mlp if isinstance(layer, nn.Linear)]
    for layer in hidden:
        embedding = torch.relu(embedding @ layer.weight.T + layer.bias)
    expected = embedding @ last.weight.T + last.bias
    torch.testing.assert_close(values, expected.squeeze(-1).where(mask, 0.0))


def test_critics_have_the_papers_layers_and_their_own_precision():
    inputs = TensorDict(
        action_embedding=torch.randn(2, 3, 6, dtype=torch.bfloat16),
        prompt_embedding=torch.randn(2, 6, dtype=torch.bfloat16),
        action_mask=torch.ones(2, 3, dtype=torch.bool),
        batch_size=2,
    )
    for critic, outputs in ((CandidateCritic(6), 1), (ObservationCritic(6, 3), 3)):
        sizes = [weight.shape for weight in critic.parameters() if weight.dim() == 2]
        assert sizes == [(1024, 6), (1024, 1024), (outputs, 1024)]
        assert critic(inputs)["action_value"].dtype == torch.float32


@pytest.mark.parametrize("sizes", [(0, 2, [8]), (4, 0, [8]), (4, 2, [8, 0])])
def test_critics_refuse_sizes_below_one(sizes):
    message = r"embedding_dim \({}\), .* and num_actions \({}\) must all be at least 1"
    with pytest.raises(ValueError, match=message.format(*sizes)):
        ObservationCritic(*sizes)
