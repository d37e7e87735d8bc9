"""Random play by TorchRL's own means where admissible actions differ from state to state."""

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite
from torchrl.envs import ActionMask


class CandidateActions(Categorical):
    """Index of a candidate action; draws are admissible in the current state.

    Collectors without a policy draw from a copy of the environment's spec that they make once, so
    copies share the mask, which the environment or :class:`CandidateMask` updates; those of another
    shape start without one. The mask limits what is drawn, not what belongs to the spec.

    Args:
        n: number of candidates.
        shape: batch shape. Default: none.
        device, dtype: of the draws. Defaults: the CPU, ``int64``.
        mask: the admissible ones, ``bool [*shape, n]``. Default: all.

    Examples:
        >>> spec = CandidateActions(3, shape=(2,))
        >>> copy = spec.clone()
        >>> spec.update_mask(torch.tensor([[False, True, False], [False, False, True]]))
        >>> copy.rand()
        tensor([1, 2])
    """

    mask = None  # of the spec itself

    def __init__(
        self,
        n: int,
        shape: torch.Size | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.long,
        mask: Tensor | None = None,
    ) -> None:
        self._current = [None]
        super().__init__(n, shape, device, dtype, mask)

    def update_mask(self, mask: Tensor | None) -> None:
        """Says which candidates are admissible from now on, to all copies."""
        self._current[0] = mask

    def rand(self, shape: torch.Size | None = None) -> Tensor:
        """Draws admissible candidates, uniformly: the largest of a draw each."""
        shape = (*(shape or ()), *self.shape)
        draws, mask = torch.rand(*shape, self.n, device=self.device), self._current[0]
        if mask is not None:
            draws.masked_fill_(~mask.to(self.device), -1)
        return draws.argmax(-1).to(self.dtype)

    def clone(self) -> "CandidateActions":
        """Returns a copy that shares the mask."""
        copy = super().clone()
        copy._current = self._current
        return copy

    def to(self, dest: torch.dtype | torch.device | str) -> "CandidateActions":
        """Returns a copy of another device or dtype that shares the mask."""
        copy = super().to(dest)
        copy._current = self._current
        return copy


class CandidateMask(ActionMask):
    """Lets the action spec draw admissible actions only, as ``"action_mask"`` says.

    Put it around a ``SerialEnv`` or ``ParallelEnv``, or around your own environment, to make
    collectors without a policy, ``env.rand_action()`` and ``env.rollout(n)`` work.

    TorchRL's :class:`~torchrl.envs.ActionMask` also takes the masks that a reset returns where
    nothing was reset, and collectors without a policy ignore it.

    Args:
        action_key: the action. Default: ``"action"``.
        mask_key: ``bool [*B, A]``. Default: ``"action_mask"``.

    Examples:
        >>> from torchrl.collectors import Collector
        >>> from torchrl.envs import SerialEnv, TransformedEnv
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = SerialEnv(2, lambda: PlaygroundTextEnv(num_envs=4))
        >>> env = TransformedEnv(env, CandidateMask())
        >>> collector = Collector(env, None, frames_per_batch=80, total_frames=80)
        >>> next(iter(collector)).shape
        torch.Size([2, 4, 10])
    """

    _mask: Tensor | None = None

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Replaces the action's spec by one whose copies share the mask."""
        spec = action_spec[self.in_keys[0]]
        if isinstance(spec, Categorical) and not isinstance(spec, CandidateActions):
            action_spec[self.in_keys[0]] = CandidateActions(
                spec.n, spec.shape, spec.device, spec.dtype
            )
        return action_spec

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._mask = next_tensordict.get(self.in_keys[1])
        return super()._call(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        reset, mask = tensordict.get("_reset", None), tensordict_reset.get(self.in_keys[1])
        if reset is not None and self._mask is not None:
            mask = torch.where(reset.view(*mask.shape[:-1], 1), mask, self._mask)
        self._call(tensordict_reset.empty().set(self.in_keys[1], mask))
        return tensordict_reset
