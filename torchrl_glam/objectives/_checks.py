"""Checks of the losses' arguments and inputs: what is wrong, where, and what to do."""

from collections.abc import Sequence

import torch
from tensordict import NestedKey
from torch import Tensor, nn


def require(fits: bool, name: str, value: object, expected: str) -> None:
    """Refuses a value that does not fit."""
    if not fits:
        raise ValueError(f"{name} ({value!r}) must {expected}.")


def require_one_of(name: str, value: str, *known: str) -> None:
    require(value in known, name, value, f"be {' or '.join(map(repr, known))}")


def check_common(actor: nn.Module, loss_function: str, reduction: str) -> None:
    """Refuses arguments of any loss that are out of range."""
    require_one_of("loss_function", loss_function, "l2", "l1", "smooth_l1")
    require_one_of("reduction", reduction, "mean", "sum", "none")
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


def check_entry(
    values: Tensor, shape: Sequence[int], key: NestedKey, kind: str = "numbers", fits: bool = True
) -> None:
    """Refuses an entry of another shape, or of another kind of numbers."""
    if values.shape != shape or not fits:
        raise ValueError(
            f"{key!r} is {values.dtype} of shape {list(values.shape)} and must be {kind} of shape "
            f"{list(shape)}."
        )


def check_action(action: Tensor, mask: Tensor, key: NestedKey) -> None:
    """Refuses actions that are not admissible. On a GPU, the host waits once."""
    whole = not (action.is_floating_point() or action.dtype == torch.bool)
    check_entry(action, mask.shape[:-1], key, "integers", whole)
    require(action.numel() > 0, "the batch size", list(action.shape), "hold one row or more")
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
