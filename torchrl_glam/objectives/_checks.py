"""What the losses refuse: what is wrong, where, what to do."""

from __future__ import annotations

import math

from tensordict import NestedKey
from torch import Tensor, nn


def check_arguments(
    actor: nn.Module,
    critics: list[nn.Module],
    num_actions: int,
    alpha_init: float,
    target_entropy: float,
    munchausen: float,
    loss_function: str,
) -> None:
    if num_actions < 1:
        raise ValueError(f"num_actions ({num_actions}) must be at least 1: the candidate slots.")
    if not (0.0 < alpha_init < math.inf):
        raise ValueError(
            f"alpha_init ({alpha_init}) must be positive and finite: its logarithm is learnt."
        )
    if not (0.0 <= target_entropy <= math.log(num_actions)):
        raise ValueError(
            f"target_entropy ({target_entropy}) must lie in [0, log(num_actions)] = "
            f"[0, {math.log(num_actions):.4g}] nats: no policy over {num_actions} candidates has "
            "any other entropy."
        )
    if not (0.0 <= munchausen < 1.0):
        raise ValueError(
            f"munchausen ({munchausen}) must be in [0, 1): the share of the policy's scaled "
            "log-probability that is added to the reward."
        )
    if loss_function not in ("l2", "l1", "smooth_l1"):
        raise ValueError(
            f"loss_function ({loss_function!r}) must be 'l2', 'l1' or 'smooth_l1': the distance "
            "between Q-values and their targets."
        )
    if not critics or len({id(critic) for critic in critics}) != len(critics):
        raise ValueError(
            f"critic must be one module or several distinct ones, got {len(critics)} with "
            f"{len({id(critic) for critic in critics})} distinct: equal critics stay equal."
        )
    if next(actor.parameters(), None) is not None:
        raise ValueError(
            "actor must have no parameters, since no optimiser group would train them: scores "
            "are the trunk's, so put learnt layers there."
        )


def check_ppo_arguments(
    actor: nn.Module, objective: str, clip_center: str, clip_epsilon: float, kl_coeff: float
) -> None:
    if objective not in ("clip", "kl"):
        raise ValueError(f"objective ({objective!r}) must be 'clip' or 'kl'.")
    if clip_center not in ("one", "behaviour"):
        raise ValueError(f"clip_center ({clip_center!r}) must be 'one' or 'behaviour'.")
    if not 0.0 < clip_epsilon < 1.0:
        raise ValueError(f"clip_epsilon ({clip_epsilon}) must be in (0, 1): a share of the ratio.")
    if not kl_coeff >= 0.0:
        raise ValueError(f"kl_coeff ({kl_coeff}) must be at least 0: it weighs a penalty.")
    if next(actor.parameters(), None) is not None:
        raise ValueError("actor must have no parameters: scores are the trunk's.")


def check_finite(values: Tensor, key: NestedKey, mask: Tensor | None = None) -> None:
    """Of the values where a mask is True, if one is given. On a GPU, the host waits once."""
    bad = ~values.detach().isfinite()
    if mask is not None:
        bad &= mask
    if bad.any():
        looked_at = values.numel() if mask is None else int(mask.expand_as(bad).sum())
        raise FloatingPointError(
            f"{key!r} holds {int(bad.sum())} NaN or infinite of {looked_at} values: "
            "look for the batch or update that brought them."
        )


def check_action(action: Tensor, mask: Tensor, key: NestedKey) -> None:
    """On a GPU, the host waits once."""
    if action.shape != mask.shape[:-1]:
        raise ValueError(
            f"{key!r} has shape {tuple(action.shape)} but must be {tuple(mask.shape[:-1])}: one "
            "candidate index per state."
        )
    inside = (action >= 0) & (action < mask.shape[-1])
    index = action.clamp(0, mask.shape[-1] - 1).unsqueeze(-1)
    taken = inside & mask.gather(-1, index).squeeze(-1)
    if not taken.all():
        row = tuple((~taken).nonzero()[0].tolist())
        raise ValueError(
            f"{key!r} is {int(action[row])} in batch row {row}, which is not an admissible "
            f"candidate of that state (of {mask.shape[-1]} slots, admissible: "
            f"{mask[row].nonzero().squeeze(-1).tolist()})."
        )
