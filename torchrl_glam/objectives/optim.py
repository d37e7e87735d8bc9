"""Optimisation of a trunk that two losses share."""

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_glam.objectives._checks import require
from torchrl_glam.objectives.gathering import GatheringOptimizer, add_gradients
from torchrl_glam.objectives.reduction import Gradients
from torchrl_glam.objectives.sac import SACGLAMLoss


class SharedTrunkOptimizer(GatheringOptimizer):
    """Adam for every part of :class:`SACGLAMLoss`, with a state of its own for each loss.

    Actor and critic both train the trunk. Under one Adam, the larger gradient (the critic's) sets
    the scale of the second moments, and the smaller one drowns. Here the trunk has two Adams, one
    per loss. One forward pass is back-propagated twice, and both gradients are taken before
    anything moves. ``separate=False`` sums the losses under one Adam, for comparison.

    The groups are ``"trunk_actor"`` and ``"trunk_critic"`` (or ``"trunk"``), ``"critic"`` (the
    heads) and ``"alpha"`` (the entropy coefficient). Each is one fused ``torch.optim.Adam`` in
    ``self.optimizers``, clipped by itself. A group that receives no gradient, such as
    ``trunk_critic`` with ``critic_backprop=False``, keeps its parameters and optimizer state.

    Args:
        loss: owner of the parameters, on the device where they will stay.
        lr_trunk: learning rate of both losses' steps on the trunk. Default: ``1e-4`` (SAC-GLAM,
            Gaven et al., 2024, Appendix C), like the next.
        lr_heads: learning rate of the critics. Default: ``1e-4``.
        lr_alpha: learning rate of ``log_alpha``. Default: ``2e-3`` (Appendix C).
        max_grad_norm, group: those of :class:`GatheringOptimizer`.
        separate: two Adams on the trunk, or one on the summed losses. Default: ``True``.

    Raises:
        ValueError: if a learning rate is negative or not finite, or ``max_grad_norm`` not positive.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.objectives import SoftUpdate
        >>> from torchrl_glam.models import CandidateActor, ObservationCritic
        >>> trunk = TensorDictModule(nn.Linear(2, 3), ["observation"], ["log_likelihood"])  # a toy
        >>> critic = ObservationCritic(2, 3, (8,), prompt_embedding_key="observation")
        >>> loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=3)
        >>> target_updater = SoftUpdate(loss, tau=0.005)
        >>> optimizer = SharedTrunkOptimizer(loss, max_grad_norm=1.0)
        >>> state = {"observation": torch.randn(5, 2), "action_mask": torch.ones(5, 3).bool()}
        >>> end = torch.ones(5, 1).bool()
        >>> following = state | {"done": end, "terminated": end, "reward": torch.rand(5, 1)}
        >>> batch = TensorDict(state | {"action": torch.arange(5) % 3, "next": following}, [5])
        >>> optimizer.backward(loss(batch), update_actor=False)  # the critic's warm-up
        >>> sorted(optimizer.step())
        ['critic']
        >>> for part in batch.split(1):  # what memory allows
        ...     optimizer.backward(loss(part), share=1 / 5)
        >>> sorted(optimizer.step())
        ['alpha', 'critic', 'trunk_actor']
    """

    def __init__(
        self,
        loss: SACGLAMLoss,
        *,
        lr_trunk: float = 1e-4,
        lr_heads: float = 1e-4,
        lr_alpha: float = 2e-3,
        max_grad_norm: float = math.inf,
        separate: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        rates = {"lr_trunk": lr_trunk, "lr_heads": lr_heads, "lr_alpha": lr_alpha}
        for name, rate in rates.items():
            require(0.0 <= rate < math.inf, name, rate, "be a finite learning rate of at least 0")
        self.loss, self.separate, self._update_actor = loss, separate, True
        self._trunk, heads = list(loss.trunk_parameters()), list(loss.critic_parameters())
        groups = [("critic", heads, lr_heads), ("alpha", [loss.log_alpha], lr_alpha)]
        trunks = ("trunk_actor", "trunk_critic") if separate else ("trunk",)
        groups += [(name, self._trunk, lr_trunk) for name in trunks if self._trunk]
        adams = {name: torch.optim.Adam(part, lr=lr, fused=True) for name, part, lr in groups}
        super().__init__(adams, max_grad_norm, group)

    def backward(
        self, losses: TensorDictBase, share: float = 1.0, *, update_actor: bool = True
    ) -> None:
        """Back-propagates the losses of a part, as :meth:`GatheringOptimizer.backward` does.

        Args:
            losses, share: those of :meth:`GatheringOptimizer.backward`, as are the errors.
            update_actor: ``False`` during the critic's warm-up (section 2.2): neither the
                actor's loss nor the entropy coefficient's is used. With ``critic_backprop`` the
                critic still moves the trunk. The same for all parts of a batch. Default: ``True``.
        """
        self._update_actor = update_actor
        super().backward(losses, share)

    def _reachable(self) -> dict[str, list[nn.Parameter]]:
        left_out = () if self.loss.critic_backprop else ("trunk_critic",)
        return {k: group for k, group in super()._reachable().items() if k not in left_out}

    def _accumulate(self, losses: Mapping[str, Tensor]) -> None:
        train_trunk, every = self._update_actor and bool(self._trunk), super()._reachable()

        def add(names: list[str], groups: list[str], retain_graph: bool = False) -> None:
            terms = [losses[f"loss_{name}"] for name in names]
            params = {name: every[name] for name in groups if name in every}
            add_gradients(terms, params, self._gradients, retain_graph)

        if self.separate:
            # The actor's pass comes second and frees the graph.
            add(["qvalue"], ["trunk_critic", "critic"], retain_graph=train_trunk)
            if train_trunk:
                add(["actor"], ["trunk_actor"])
        else:
            add(["qvalue", "actor"] if train_trunk else ["qvalue"], ["trunk", "critic"])
        if self._update_actor:
            add(["alpha"], ["alpha"])

    def _where(self, gradients: Gradients) -> str:
        names = {parameter: name for name, parameter in self.loss.named_parameters()}
        bad = [names[p] for p, grad in gradients.items() if not grad.isfinite().all()]
        return f"first in {bad[0]!r}, " * bool(bad) + super()._where(gradients)
