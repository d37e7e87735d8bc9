"""Batches of collectors that know nothing of one another, told apart.

Notation: *B batch size of a collector's tensordict.
"""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_glam.replay._layout import under_next

_ROOM = 2**32  # trajectories of one collector


def number_trajectories(
    batch: TensorDictBase,
    collector: int,
    *,
    trajectory_key: NestedKey = ("collector", "traj_ids"),
) -> TensorDictBase:
    """Numbers a collector's trajectories so that those of no two collectors are alike.

    Collectors in processes of their own, as Ray's are, count their trajectories from 0 each:
    :class:`~torchrl_glam.replay.HindsightTransform` would put steps of one behind those of another.

    Args:
        batch: what the collector gave, ``[*B]``; changed in place.
        collector: its number, from 0; a collector that takes the place of a lost one has another.
        trajectory_key: integers ``[*B]``, -1 for none. Default: ``("collector", "traj_ids")``.

    Returns:
        The batch.

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
    ids = batch.get(trajectory_key, None)
    if ids is None:
        raise KeyError(
            f"key {trajectory_key!r} is missing: the collector must number its trajectories, as "
            "TorchRL's do unless track_traj_ids=False"
        )
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
    """The trajectories of a batch whose episodes go on after it.

    Args:
        batch: what a collector gave, ``[*B]``.
        trajectory_key: integers ``[*B]``, -1 for none. Default: ``("collector", "traj_ids")``.
        done_key: bool ``[*B, 1]`` under ``"next"``. Default: ``"done"``.

    Returns:
        Their numbers in order, int64.

    Examples:
        >>> from tensordict import TensorDict
        >>> done = torch.tensor([[[False], [True]], [[False], [False]]])
        >>> ids = {"collector": {"traj_ids": torch.tensor([[0, 0], [1, 1]])}}
        >>> unfinished_trajectories(TensorDict({**ids, "next": {"done": done}}, [2, 2]))
        tensor([1])
    """
    ids = batch.get(trajectory_key).flatten().long()
    ended = ids[batch.get(under_next(done_key)).flatten()]
    return ids[(ids >= 0) & ~torch.isin(ids, ended)].unique()
