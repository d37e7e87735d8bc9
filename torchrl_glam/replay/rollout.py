"""Rollouts of on-policy methods as rows of finished runs, for PPO with hindsight.

With ``to_rows = Compose(HindsightTransform(), SubgoalFilter(is_subgoal))`` the rows are
``to_rows.inv(close_rollout(rollout))`` (SAC-GLAM, Gaven et al., 2024, Appendix G).
"""

from collections.abc import Callable

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.envs.transforms import Transform

from torchrl_glam.replay._checks import check_entries, check_in_buffer
from torchrl_glam.replay.trajectories import under_next


def close_rollout(
    rollout: TensorDictBase,
    *,
    done_key: NestedKey = "done",
    terminated_key: NestedKey = "terminated",
    truncated_key: NestedKey = "truncated",
    trajectory_key: NestedKey = ("collector", "traj_ids"),
) -> TensorDictBase:
    """Marks the last step of every trajectory as an end, truncated if its episode would go on.

    An estimator of advantages then bootstraps there, and the hindsight transform keeps no step back
    for the next rollout, which another policy makes.

    Args:
        rollout: a collector's batch, ``[*B, T]``; ``[T]`` is one environment's.
        done_key, terminated_key, truncated_key: ends, under ``"next"``, each ``[*B, T, 1]``. The
            last need not exist: what is done and not terminated is truncated.
        trajectory_key: number of each step's trajectory, ``[*B, T]``: a row may hold several, as
            with ``cat_results=-1``. It need not exist. Default: ``("collector", "traj_ids")``.

    Returns:
        The rollout with other ends; entries are shared with the one given, which stays as it was.

    Raises:
        ValueError: if the rollout has no dimension of time.
        KeyError: if ``done`` or ``terminated`` is missing.

    Examples:
        >>> from tensordict import TensorDict
        >>> ends = dict.fromkeys(("done", "terminated", "truncated"), torch.zeros(1, 3, 1).bool())
        >>> closed = close_rollout(TensorDict({"next": ends}, batch_size=[1, 3]))
        >>> closed["next", "done"].flatten(), closed["next", "truncated"].flatten()
        (tensor([False, False,  True]), tensor([False, False,  True]))
    """
    if not rollout.ndim:
        raise ValueError("The rollout's batch size ([]) must have a dimension of time, [*B, T].")
    ends = (done_key, terminated_key)
    check_entries(rollout, dict.fromkeys(map(under_next, ends), "the environment"))
    closed = rollout.clone(recurse=False)
    following = closed["next"]
    done = following[done_key].clone()
    last = torch.zeros(rollout.shape, dtype=torch.bool, device=done.device)
    last[..., -1:] = True
    track = rollout.get(trajectory_key, None)
    if track is not None:
        track = track.reshape(rollout.shape).to(done.device)  # collectors may leave it elsewhere
        last[..., :-1] |= track[..., 1:] != track[..., :-1]
    last = last.reshape(done.shape)
    following.set(done_key, done | last)
    truncated = following.get(truncated_key, None)
    if truncated is not None:
        following.set(truncated_key, truncated | (last & ~following[terminated_key]))
    return closed


class SubgoalFilter(Transform):
    """Leaves the goals named in hindsight out unless they are sub-goals of the pursued one.

    The "aligned" goals of SAC-GLAM (Gaven et al., 2024), Appendix G.1. Put it after
    :class:`~torchrl_glam.replay.HindsightTransform` in a
    :class:`~torchrl.envs.transforms.Compose`. It writes kind -1, an empty slot, for the others.

    Args:
        is_subgoal: whether the goals of its first argument are sub-goals of those of the second;
            ids, of shapes that broadcast: :meth:`torchrl_glam.envs.GoalSpace.is_subgoal`.
        goal_id_key: id of the goal pursued, integers ``[*B]``. Default: ``"goal_id"``.
        hindsight_goal_id_key: ids of the goals named, under ``"next"``, integers ``[*B, H]``.
            Default: ``("hindsight", "goal_id")``.
        hindsight_kind_key: their kinds, under ``"next"``, ``[*B, H]``, -1 in empty slots.
            Default: ``("hindsight", "kind")``.

    Raises:
        KeyError: if an entry is missing.
        ValueError: when used in an environment.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl_glam.envs import GoalSpace
        >>> goals = GoalSpace()
        >>> grow, lion, cow = map(goals.id_of, ("Grow red lion", "Grasp red lion", "Grasp red cow"))
        >>> named = {"goal_id": torch.tensor([[lion, cow, -1]]), "kind": torch.tensor([[0, 0, -1]])}
        >>> steps = TensorDict(
        ...     {"goal_id": torch.tensor([grow]), "next": {"hindsight": named}}, batch_size=[1]
        ... )
        >>> SubgoalFilter(goals.is_subgoal).inv(steps)["next", "hindsight", "kind"]
        tensor([[ 0, -1, -1]])
    """

    def __init__(
        self,
        is_subgoal: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        goal_id_key: NestedKey = "goal_id",
        hindsight_goal_id_key: NestedKey = ("hindsight", "goal_id"),
        hindsight_kind_key: NestedKey = ("hindsight", "kind"),
    ) -> None:
        super().__init__()
        self.is_subgoal = is_subgoal
        self.goal_id_key = goal_id_key
        self.hindsight_goal_id_key = under_next(hindsight_goal_id_key)
        self.hindsight_kind_key = under_next(hindsight_kind_key)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        check_in_buffer(self)
        kind = tensordict[self.hindsight_kind_key]
        named = tensordict[self.hindsight_goal_id_key].clamp_min(0)  # of empty slots, any id
        aligned = self.is_subgoal(named, tensordict[self.goal_id_key].unsqueeze(-1))
        return tensordict.set(self.hindsight_kind_key, kind.masked_fill(~aligned, -1))
