"""What a collector gave, as one line of steps that each belong to a trajectory.

Notation: *B batch size of a collector's tensordict, K steps in it.
"""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key


def trajectories(
    batch: TensorDictBase, trajectory_key: NestedKey, done: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Says which trajectory each step belongs to.

    TorchRL's collectors number trajectories. Without numbers, a row of [N, T] is taken for one
    environment, whose next steps the same row of the next batch holds. What a collector did not
    fill is numbered -1, or False in the ``"mask"`` that stands beside the numbers.

    Args:
        batch: What a collector gave, [*B].
        trajectory_key: The numbers, integers [*B]; they need not exist.
        done: Whether an episode ends with the step, bool [K].

    Returns:
        Trajectories, int64 [K], in row-major order; and which steps count, bool [K], or None for
        all. On the device of ``done``: collectors may leave their numbers in main memory.

    Raises:
        ValueError: if steps cannot be told apart.

    Examples:
        >>> from tensordict import TensorDict
        >>> ids = torch.tensor([[4, 4, -1], [6, 7, 7]])
        >>> batch = TensorDict({"collector": {"traj_ids": ids}}, [2, 3])
        >>> done = torch.tensor([False, False, False, True, False, False])
        >>> trajectories(batch, ("collector", "traj_ids"), done)
        (tensor([ 4,  4, -1,  6,  7,  7]), tensor([ True,  True, False,  True,  True,  True]))
    """
    ids = batch.get(trajectory_key, None)
    if ids is None:
        if batch.ndim != 2:
            raise ValueError(
                f"The data's batch size ({list(batch.shape)}) must be [num_envs, num_steps] where "
                f"there is no entry {trajectory_key!r}, as TorchRL's collectors write it, to tell "
                "trajectories apart; add a dimension of size 1 where one is missing, and use "
                "extend rather than add."
            )
        row = torch.arange(batch.shape[0], device=done.device).unsqueeze(1)
        return row.expand(batch.shape).reshape(-1), None
    if ids.is_floating_point() or ids.numel() != done.shape[0]:
        raise ValueError(
            f"{trajectory_key!r} is {ids.dtype} of shape {list(ids.shape)}, and must be integers "
            f"of shape {list(batch.shape)}: the trajectory of each step."
        )
    ids = ids.reshape(-1).to(done.device, torch.int64)
    key = mask_key(trajectory_key)
    mask = None if key is None else batch.get(key, None)
    if mask is None:
        return (ids, ids >= 0) if ids.numel() and int(ids.min()) < 0 else (ids, None)
    mask = mask.reshape(-1).to(done.device) & (ids >= 0)
    _check_padded(batch, ids, mask, done)
    return ids, mask


def mask_key(trajectory_key: NestedKey) -> NestedKey | None:
    """Where collectors write which steps count; nowhere if the numbers stand at the root.

    Examples:
        >>> mask_key(("collector", "traj_ids"))
        ('collector', 'mask')
    """
    key = unravel_key(trajectory_key)
    return None if isinstance(key, str) else (*key[:-1], "mask")


def check_order(
    step_count: torch.Tensor,
    counted: torch.Tensor | None,
    expected: torch.Tensor,
    shape: torch.Size,
) -> None:
    """Refuses steps that are not where the steps before say they should be.

    Args:
        step_count: steps made since the last reset, [*B] or [*B, 1].
        counted: which steps count, bool [K], or None for all.
        expected: place in their episodes of those that do, integers.
        shape: *B, for the message.
    """
    given = step_count.reshape(-1)
    place = torch.arange(given.shape[0], device=given.device)
    place = place if counted is None else place[counted]
    wrong = (given[place] != expected).nonzero()
    if wrong.numel():
        step = int(wrong[0])
        where = [int(i) for i in torch.unravel_index(place[step], shape)]
        raise ValueError(
            f"The step count at {where} is {given[place[step]]}, where {expected[step]} was "
            "expected: steps are missing, repeated or out of order, or the environment was "
            "reset in mid-episode (then clear() the transform first)."
        )


def _check_padded(
    batch: TensorDictBase, ids: torch.Tensor, mask: torch.Tensor, done: torch.Tensor
) -> None:
    """Refuses padded rows that are parts of episodes.

    ``split_trajs=True`` gives such rows, and in multi-process collectors it numbers the parts of
    one trajectory differently from call to call.
    """
    if not (~mask & (ids >= 0)).any():
        return
    held = mask.reshape(-1, batch.shape[-1])
    last = held.shape[1] - 1 - held.flip(1).int().argmax(1, keepdim=True)
    whole = done.reshape(held.shape).gather(1, last).squeeze(1) | ~held.any(1)
    if not whole.all():
        row = int((~whole).nonzero()[0])
        raise ValueError(
            f"Row {row} of the data is padded and its last step does not end an episode, so it is "
            "a part of one that cannot be put together with the others: leave split_trajs=True out "
            "of the collector, or use trajs_per_batch, which gives whole episodes."
        )
