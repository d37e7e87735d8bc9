"""What theory says of the soft value; the functions' doctests hold numbers computed by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrl_glam.objectives import functional

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
