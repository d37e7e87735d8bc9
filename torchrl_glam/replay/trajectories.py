"""Trajectories: which one each step of a collector's batch belongs to.

Notation: *B batch size of a collector's tensordict, K steps in it.
"""

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key

_ROOM = 2**32  # trajectories of one collector


def under_next(key: NestedKey) -> NestedKey:
    """The same key under ``"next"``."""
    return unravel_key(("next", key))


def number_trajectories(
    batch: TensorDictBase,
    collector: int,
    *,
    trajectory_key: NestedKey = ("collector", "traj_ids"),
) -> TensorDictBase:
    """Numbers a collector's trajectories so that no two collectors share a number.

    Independent collectors, as Ray's are, each count their trajectories from 0.

    Args:
        batch: what the collector gave, ``[*B]``; changed in place and returned.
        collector: its number, from 0; a collector that replaces a lost one has another.
        trajectory_key: integers ``[*B]``, -1 for none. Default: ``("collector", "traj_ids")``.

    Raises:
        KeyError: if the batch holds no such numbers.
        ValueError: if ``collector`` is negative, or the batch is numbered already.

    Examples:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"collector": {"traj_ids": torch.tensor([[0, 1], [-1, 2]])}}, [2, 2])
        >>> number_trajectories(batch, 3)["collector", "traj_ids"]
        tensor([[12884901888, 12884901889],
                [         -1, 12884901890]])
    """
    ids = _numbers(batch, trajectory_key)
    if collector < 0 or (ids >= _ROOM).any():
        raise ValueError(
            f"collector ({collector}) must be at least 0, and {trajectory_key!r} (up to "
            f"{int(ids.max())}) below {_ROOM}: a batch is numbered once"
        )
    return batch.set(trajectory_key, torch.where(ids < 0, ids, ids + collector * _ROOM))


def unfinished_trajectories(
    batch: TensorDictBase,
    *,
    trajectory_key: NestedKey = ("collector", "traj_ids"),
    done_key: NestedKey = "done",
) -> torch.Tensor:
    """Numbers of a batch's trajectories whose episodes continue after it, in order, int64.

    Args:
        batch: what a collector gave, ``[*B]``.
        trajectory_key: integers ``[*B]``, -1 for none. Default: ``("collector", "traj_ids")``.
        done_key: bool ``[*B, 1]`` under ``"next"``. Default: ``"done"``.

    Examples:
        >>> from tensordict import TensorDict
        >>> done = torch.tensor([[[False], [True]], [[False], [False]]])
        >>> ids = {"collector": {"traj_ids": torch.tensor([[0, 0], [1, 1]])}}
        >>> unfinished_trajectories(TensorDict({**ids, "next": {"done": done}}, [2, 2]))
        tensor([1])
    """
    ids = _numbers(batch, trajectory_key).flatten()
    ended = ids[batch[under_next(done_key)].flatten().to(ids.device)]
    return ids[(ids >= 0) & ~torch.isin(ids, ended)].unique()


def _numbers(batch: TensorDictBase, trajectory_key: NestedKey) -> torch.Tensor:
    if (ids := batch.get(trajectory_key, None)) is None:
        raise KeyError(
            f"key {trajectory_key!r} is missing: the collector must number its trajectories, as "
            "TorchRL's do unless track_traj_ids=False"
        )
    return ids.long()


def trajectories(
    batch: TensorDictBase, trajectory_key: NestedKey, done: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The trajectory of each step, int64 [K], and which steps count, bool [K], or None for all.

    TorchRL's collectors number trajectories. Without numbers, a row of [N, T] is one environment,
    which the same row of the next batch continues. A step that the collector did not make is
    numbered -1. Results are on the device of ``done``, bool [K]: collectors may leave their numbers
    in main memory.
    """
    if not batch.ndim:
        raise ValueError(
            "The data's batch size ([]) must have a dimension: use "
            "buffer.extend(step.unsqueeze(0)) instead of buffer.add(step)."
        )
    ids = batch.get(trajectory_key, None)
    if ids is None:
        if batch.ndim != 2:
            raise ValueError(
                f"The data's batch size ({list(batch.shape)}) must be [num_envs, num_steps] where "
                f"there is no entry {trajectory_key!r}, as TorchRL's collectors write it."
            )
        row = torch.arange(batch.shape[0], device=done.device).unsqueeze(1)
        return row.expand(batch.shape).reshape(-1), None
    if ids.is_floating_point() or ids.numel() != done.shape[0]:
        raise ValueError(
            f"{trajectory_key!r} is {ids.dtype} of shape {list(ids.shape)}, and must be integers "
            f"of shape {list(batch.shape)}: the trajectory of each step."
        )
    if isinstance(trajectory_key, tuple) and (*trajectory_key[:-1], "mask") in batch.keys(True):
        raise ValueError(
            "The data is padded, as the mask beside its numbers of trajectories says: give the "
            'collector traj_format="cat" where it has trajs_per_batch, and no split_trajs=True.'
        )
    ids = ids.reshape(-1).to(done.device, torch.int64)
    return (ids, ids >= 0) if ids.numel() and int(ids.min()) < 0 else (ids, None)
