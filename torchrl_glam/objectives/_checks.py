"""Checks of the losses' arguments and inputs: what is wrong, where, and what to do."""

import math

from tensordict import NestedKey
from torch import Tensor, nn


def check_arguments(
    actor: nn.Module,
    critics: list[nn.Module],
    num_actions: int,
    alphas: tuple[float, float],
    target_entropy: float,
    munchausen: float,
    loss_function: str,
) -> None:
    """Refuses arguments of SACGLAMLoss that are out of range."""
    _require(num_actions >= 1, "num_actions", num_actions, "be at least 1: the candidate slots")
    for name, alpha in zip(("alpha_init", "alpha_end"), alphas, strict=True):
        _require(0.0 < alpha < math.inf, name, alpha, "be positive and finite")
    is_number = isinstance(target_entropy, (int, float))  # which TorchRL's "auto" is not
    _require(is_number, "target_entropy", target_entropy, "be a number of nats")
    most = math.log(num_actions)
    bounds = f"lie in [0, log(num_actions)] = [0, {most:.4g}] nats"
    _require(0.0 <= target_entropy <= most, "target_entropy", target_entropy, bounds)
    _require(0.0 <= munchausen < 1.0, "munchausen", munchausen, "be in [0, 1): a share")
    kinds = ("l2", "l1", "smooth_l1")
    _require(loss_function in kinds, "loss_function", loss_function, f"be one of {kinds}")
    if not critics or len({id(critic) for critic in critics}) != len(critics):
        raise ValueError(
            f"critic must be one module or several distinct ones, got {len(critics)} with "
            f"{len({id(critic) for critic in critics})} distinct: equal critics stay equal."
        )
    _check_actor(actor)


def check_ppo_arguments(
    actor: nn.Module, objective: str, clip_center: str, clip_epsilon: float, kl_coeff: float
) -> None:
    """Refuses arguments of PPOGLAMLoss that are out of range."""
    _require(objective in ("clip", "kl"), "objective", objective, "be 'clip' or 'kl'")
    centers = ("one", "behaviour")
    _require(clip_center in centers, "clip_center", clip_center, "be 'one' or 'behaviour'")
    _require(0.0 < clip_epsilon < 1.0, "clip_epsilon", clip_epsilon, "be in (0, 1): a share")
    _require(kl_coeff >= 0.0, "kl_coeff", kl_coeff, "be at least 0: it weighs a penalty")
    _check_actor(actor)


def _require(fits: bool, name: str, value: object, expected: str) -> None:
    if not fits:
        raise ValueError(f"{name} ({value!r}) must {expected}.")


def _check_actor(actor: nn.Module) -> None:
    if next(actor.parameters(), None) is not None:
        raise ValueError(
            "actor must have no parameters, since no optimizer group would train them: scores "
            "are the trunk's, so put learnt layers there."
        )


def check_finite(values: Tensor, key: NestedKey, mask: Tensor | None = None) -> None:
    """Refuses values that are not finite, where the mask is True. On a GPU, the host waits once."""
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
    """Refuses actions that are not admissible. On a GPU, the host waits once."""
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
