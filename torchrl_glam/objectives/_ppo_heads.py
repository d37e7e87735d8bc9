"""TorchRL's PPO losses on what a trunk wrote in this pass, beside what was recorded."""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.objectives import ClipPPOLoss

from torchrl_glam.objectives.functional import log_clip_bounds

# Where the heads find what the trunk writes in this pass.
NOW = "now"


class CentredClipPPOLoss(ClipPPOLoss):
    """Clips every row's ratio around a centre of its own, where ``center_key`` is given.

    The centre, ``[*B]`` and above 0, takes the place of 1 in ``clip(r, 1 - eps, 1 + eps)``.
    """

    center_key: NestedKey | None = None

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: torch.Size) -> tuple:
        if self.center_key is not None:
            self._center = tensordict[self.center_key].view(*adv_shape, 1)
        return super()._log_weight(tensordict, adv_shape)

    @property
    def _clip_bounds(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the smallest and the largest ratio."""
        if self.center_key is None:
            return super()._clip_bounds
        return log_clip_bounds(self._center, self.clip_epsilon)


def reading_now(
    actor: ProbabilisticTensorDictSequential, scores: list[NestedKey]
) -> ProbabilisticTensorDictSequential:
    """The actor on the scores of this pass; built without running, on the recorded ones.

    ``KLPENPPOLoss`` makes the old distribution from the recorded scores, and the new one by running
    the actor.
    """
    copy = [TensorDictModule(nn.Identity(), [unravel_key((NOW, k))], [k]) for k in scores]
    return ProbabilisticTensorDictSequential(*copy, *actor)
