"""The mathematics of the losses, against numbers computed by hand and what theory says of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrl_glam.objectives import functional

# Two candidates, and a masked one that must leave no trace: logarithms of 1/4 and 3/4.
PROBS = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
LOG_PROBS = torch.tensor([-1.3862944, -0.2876821, -1e9], dtype=torch.float64)
Q_VALUES = torch.tensor([1.0, 2.0, 900.0], dtype=torch.float64)


def test_soft_value_and_actor_loss_by_hand():
    """0.25 * 1 + 0.75 * 2 and 0.1 times the entropy, 0.3465736 + 0.2157616."""
    alpha = torch.tensor(0.1, dtype=torch.float64)
    value = functional.soft_value(PROBS, LOG_PROBS, Q_VALUES, alpha)
    assert value.item() == pytest.approx(1.75 + 0.05623352, abs=1e-7)
    loss = functional.actor_loss(PROBS, LOG_PROBS, Q_VALUES, alpha)
    assert loss.item() == -value.item()
    assert functional.entropy(PROBS, LOG_PROBS).item() == pytest.approx(0.5623352, abs=1e-7)


numbers = st.lists(st.floats(-3, 3), min_size=2, max_size=6)


@given(numbers, st.floats(0.05, 2.0), st.integers(0, 1000))
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


def test_alpha_loss_by_hand():
    """The coefficient rises (its loss falls with it) where the entropy is below the target."""
    log_alpha = torch.tensor(-2.0, requires_grad=True)
    loss = functional.alpha_loss(log_alpha, torch.tensor([0.5, 0.1]), torch.tensor(0.3))
    assert loss.tolist() == pytest.approx([-0.4, 0.4])
    loss[1].backward()
    assert log_alpha.grad.item() == pytest.approx(-0.2)


def test_ratio_and_its_bounds_by_hand():
    center = functional.ratio_center(torch.tensor([0.2]).log(), torch.tensor([0.5]).log())
    assert center.item() == pytest.approx(0.4)
    low, high = functional.log_clip_bounds(torch.tensor([1.0, 0.1]), torch.tensor(0.2))
    # The logarithms of 0.8, of the least float32 instead of -0.1, of 1.2 and of 0.3.
    assert low.tolist() == pytest.approx([-0.2231436, -87.3365448])
    assert high.tolist() == pytest.approx([0.1823216, -1.2039728])
