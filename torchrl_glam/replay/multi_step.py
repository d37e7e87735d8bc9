"""n-step returns over whole episodes (SAC-GLAM, Gaven et al., 2024, equation 3).

Conventions: rows are one line of M transitions, made of consecutive segments (episodes, or parts of
episodes under another goal), each of which ends with ``done``. The window of row i is the rows i to
i + steps[i] - 1; it never leaves the segment.
"""

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.envs.transforms import MultiStepTransform

from torchrl_glam.replay._checks import check_in_buffer


def window_lengths(done: torch.Tensor, n_steps: int) -> torch.Tensor:
    """Number of steps that the n-step window of each row spans, int64 [M].

    The smaller of ``n_steps`` and the rows left in the segment, this one included. ``done``, bool
    [M], marks the last row of each segment; its last entry must be True.
    """
    row = torch.arange(done.shape[0], device=done.device)
    end = torch.where(done, row, done.shape[0]).flip(0).cummin(0).values.flip(0)
    return (end - row + 1).clamp_max(n_steps)


def discounted_sums(reward: torch.Tensor, steps: torch.Tensor, gamma: float) -> torch.Tensor:
    """Discounted sum of rewards over each row's window, the first term of equation 3.

    The sum over k < steps[i] of gamma^k reward[i + k], shaped as ``reward``, [M, ...].
    """
    steps = steps.view(-1, *[1] * (reward.ndim - 1))
    total = reward.clone() if reward.is_floating_point() else reward.float()
    for k in range(1, int(steps.max())):
        ahead = torch.where(steps[:-k] > k, reward[k:], 0)
        total[:-k] += gamma**k * ahead
    return total


class SegmentMultiStepTransform(MultiStepTransform):
    """n-step transitions from a line of whole segments, on their way into a replay buffer.

    For transitions [M] made of consecutive segments that each end with ``("next", "done")``, as
    :class:`~torchrl_glam.replay.HindsightTransform` lets them out, writes for every row

    - ``("next", "reward")``: sum over k < steps of gamma^k r_{t+k};
    - every other tensor of ``"next"``, ends included, as it is after the window's last step:
      windows that reach a terminal state do not bootstrap, those that end with a time-out do
      (equation 3 of SAC-GLAM, Gaven et al., 2024);
    - ``"steps_to_next_obs"`` int64 [M, 1]: steps in the window, which TorchRL's value estimators
      read, and ``"gamma"`` float32 [M, 1]: ``gamma ** steps_to_next_obs``.

    TorchRL's :class:`~torchrl.envs.transforms.MultiStepTransform` leaves the ends at step t, so
    that windows that reach a terminal state bootstrap, and holds the last rows of a call back where
    no checkpoint finds them. In a :class:`~torchrl.envs.transforms.Compose`, put this one before
    the hindsight transform: inverse transforms run from last to first.

    Args:
        n_steps: longest window, at least 1; can be changed later through the attribute.
        gamma: discount factor in [0, 1].
        reward_key: entry of ``"next"`` to sum, [M, 1]. Default: ``"reward"``.
        done_key: entry of ``"next"`` that marks the last row of a segment, bool [M, 1]. Default:
            ``"done"``.
        steps_to_next_obs_key: entry to write window lengths to. Default: ``"steps_to_next_obs"``.
        gamma_key: entry to write discounts to. Default: ``"gamma"``.
        is_context_key: marks rows that serve the windows of others and are dropped, bool [M]; it
            need not exist. Default: ``"is_context"``.

    Raises:
        ValueError: on ``n_steps`` or ``gamma`` out of range, on data that is not one line of rows,
            whose last row is not done, or when used in an environment.
        KeyError: if reward or done is missing.

    Examples:
        >>> from tensordict import TensorDict
        >>> following = {"observation": torch.tensor([11, 12, 13])}
        >>> following["reward"] = torch.tensor([[0.0], [0.0], [1.0]])
        >>> following["done"] = following["reward"] > 0
        >>> episode = {"observation": torch.tensor([10, 11, 12]), "next": following}
        >>> episode = TensorDict(episode, [3])
        >>> rows = SegmentMultiStepTransform(n_steps=2, gamma=0.5).inv(episode)
        >>> rows["next", "observation"], rows["next", "done"].flatten()
        (tensor([12, 13, 13]), tensor([False,  True,  True]))
        >>> rows["next", "reward"].flatten(), rows["steps_to_next_obs"].flatten()
        (tensor([0.0000, 0.5000, 1.0000]), tensor([2, 2, 1]))
    """

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_key: NestedKey = "reward",
        done_key: NestedKey = "done",
        steps_to_next_obs_key: NestedKey = "steps_to_next_obs",
        gamma_key: NestedKey = "gamma",
        is_context_key: NestedKey = "is_context",
    ) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma ({gamma}) must be in [0, 1]: it discounts future rewards.")
        if not isinstance(n_steps, int) or n_steps < 1:
            raise ValueError(f"n_steps ({n_steps!r}) must be an integer of at least 1.")
        super().__init__(
            n_steps, float(gamma), reward_keys=[reward_key], done_key=done_key, done_keys=[]
        )
        self.reward_key = reward_key
        self.steps_to_next_obs_key = steps_to_next_obs_key
        self.gamma_key = gamma_key
        self.is_context_key = is_context_key

    def _inv_call(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        check_in_buffer(self)
        # None is what the hindsight transform says while no episode has ended
        if tensordict is None or not tensordict.shape.numel():
            return None
        if tensordict.ndim != 1:
            raise ValueError(
                f"The data's batch size ({list(tensordict.shape)}) must have one dimension: in a "
                "Compose, put SegmentMultiStepTransform before HindsightTransform."
            )
        following = tensordict["next"]
        done = following[self.done_key].flatten()
        if not done[-1]:
            raise ValueError(
                f"The last row of {('next', self.done_key)} is False: every segment must be "
                "complete, as HindsightTransform gathers them."
            )
        steps = window_lengths(done, self.n_steps)
        last = torch.arange(done.shape[0], device=done.device) + steps - 1
        reward = discounted_sums(following[self.reward_key], steps, self.gamma)
        following = following.exclude(self.reward_key).apply(lambda x: x.index_select(0, last))
        tensordict.set("next", following.set(self.reward_key, reward))
        tensordict.set(self.steps_to_next_obs_key, steps.unsqueeze(-1))
        tensordict.set(self.gamma_key, (self.gamma**steps).unsqueeze(-1))
        is_context = tensordict.pop(self.is_context_key, None)
        return tensordict if is_context is None else tensordict[~is_context]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_steps={self.n_steps}, gamma={self.gamma})"
