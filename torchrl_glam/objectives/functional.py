"""The mathematics of the losses as pure functions of tensors.

Conventions: ``*B`` any batch shape, ``A`` candidate slots. Entropies and log-probabilities are in
nats; a masked candidate has probability 0 and a finite log-probability, so it adds exactly nothing.
"""

import torch
from torch import Tensor


def soft_value(probs: Tensor, log_probs: Tensor, q_values: Tensor, alpha: Tensor) -> Tensor:
    """Expected value and entropy of a state: the sum in equation 3 of SAC-GLAM.

    Args:
        probs: the policy ``pi(a)``, ``[*B, A]``.
        log_probs: its logarithms.
        q_values: ``Q(a)``, ``[*B, A]``.
        alpha: entropy coefficient, a scalar.

    Returns:
        ``sum_a pi(a) (Q(a) - alpha log pi(a))``, ``[*B]``.

    Examples:
        >>> probs = torch.tensor([0.5, 0.5, 0.0])
        >>> q_values = torch.tensor([1.0, 3.0, 9.0])
        >>> soft_value(probs, probs.clamp_min(1e-9).log(), q_values, torch.tensor(0.1))
        tensor(2.0693)
    """
    return (probs * (q_values - alpha * log_probs)).sum(-1)


def munchausen_bonus(log_prob: Tensor, alpha: Tensor, share: float) -> Tensor:
    """``share * alpha * max(log pi(a), -6)``, added to a step's reward, ``[*B]``.

    Munchausen RL (Vieillard et al., 2020), equation 4 and section 4. It sets the values of actions
    further apart, so the policy averages over the critics so far instead of following one's noise.

    The paper bounds ``alpha * log pi(a)`` at -1. Where returns are at most 1, that penalty is as
    large as the return, so an action once given up is never tried again. Here the logarithm is
    bounded, and the largest penalty shrinks with ``alpha``.

    Args:
        log_prob: of the action under the present policy, ``[*B]``.
        alpha: entropy coefficient, a scalar.
        share: from 0 to below 1.

    Examples:
        >>> munchausen_bonus(torch.tensor([0.0, -2.0, -20.0]), torch.tensor(0.1), 0.5)
        tensor([ 0.0000, -0.1000, -0.3000])
    """
    return share * alpha * log_prob.clamp_min(-6.0)


def entropy(probs: Tensor, log_probs: Tensor) -> Tensor:
    """Entropy of policies ``[*B, A]``: ``[*B]``.

    Examples:
        >>> entropy(torch.tensor([0.25, 0.75]), torch.tensor([0.25, 0.75]).log())
        tensor(0.5623)
    """
    return -(probs * log_probs).sum(-1)


def alpha_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: Tensor) -> Tensor:
    """Raises the entropy coefficient while an entropy is below its target, and else lowers it.

    Args:
        log_alpha: logarithm of the coefficient, a scalar.
        entropy: of the policy, without gradient, ``[*B]``.
        target_entropy: the one to keep, a scalar or ``[*B]``.

    Examples:
        >>> alpha_loss(torch.tensor(-3.0), torch.tensor([0.4, 0.0]), torch.tensor(0.1))
        tensor([-0.9000,  0.3000])
    """
    return log_alpha * (entropy - target_entropy)


def ratio_center(log_prob: Tensor, recorded_log_prob: Tensor) -> Tensor:
    """First ratio of a relabelled row, its centre: ``pi_old(a|s,g') / pi_old(a|s,g)``, ``[*B]``.

    Args:
        log_prob: of the action under the goal it was relabelled with, before any update.
        recorded_log_prob: of the action under the goal it was taken for.

    Examples:
        >>> ratio_center(torch.tensor([0.3]).log(), torch.tensor([0.6]).log())
        tensor([0.5000])
    """
    return (log_prob - recorded_log_prob).exp()


def log_clip_bounds(center: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the smallest and largest ratio within ``epsilon`` of its centre, ``[*B]``.

    No ratio is below 0: where the smallest would be, it is the least positive number.

    Examples:
        >>> log_clip_bounds(torch.tensor([1.0, 2.0]), torch.tensor(0.2))
        (tensor([-0.2231,  0.5878]), tensor([0.1823, 0.7885]))
    """
    low = (center - epsilon).clamp_min(torch.finfo(center.dtype).tiny)
    return low.log(), (center + epsilon).log()
