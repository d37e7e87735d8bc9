"""Optimisation of a trunk that two losses share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from torchrl_glam.objectives.gathering import GatheringOptimizer, add_gradients
from torchrl_glam.objectives.reduction import Gradients
from torchrl_glam.objectives.sac import SACGLAMLoss


class SharedTrunkOptimizer(GatheringOptimizer):
    """Adam for every part of :class:`SACGLAMLoss`, with a state of its own for each loss.

    Actor and critic both train the trunk. Summed under one Adam, the larger gradient (the critic's)
    sets the scale of the second moments and the smaller one drowns. Here the trunk has two Adams,
    one per loss, each with its own moments, learning rate and clipping; one forward pass is
    back-propagated twice, both gradients are taken before anything moves, and both steps are
    applied. ``separate=False`` sums the losses under one Adam instead, for comparison.

    The groups are ``"trunk_actor"`` and ``"trunk_critic"`` (or ``"trunk"``), ``"critic"`` (the
    heads) and ``"alpha"`` (the entropy coefficient). Each is one ``torch.optim.Adam``, fused, in
    ``self.optimizers``, for learning-rate schedulers. Gradients that a loss does not send, such as
    the critic's to the trunk with ``critic_backprop=False``, leave group and state untouched.

    Args:
        loss: owner of the parameters, on the device where they will stay.
        lr_trunk_actor: learning rate of the actor's step on the trunk. Default: ``1e-4``
            (SAC-GLAM, Gaven et al., 2024, Appendix C), like the next two.
        lr_trunk_critic: learning rate of the critic's step on the trunk. Default: ``1e-4``.
        lr_heads: learning rate of the critics. Default: ``1e-4``.
        lr_alpha: learning rate of ``log_alpha``. Default: ``2e-3`` (Appendix C).
        max_grad_norm: Euclidean norm to which each group's gradient is clipped by itself.
            Default: ``inf``, no clipping.
        separate: two Adams on the trunk, or one on the summed losses. Default: ``True``.
        group: processes that train together, each on rows of its own: gradients are summed over
            them before they are clipped, in one all-reduce a step, see
            :class:`~torchrl_glam.objectives.reduction.GradientReducer`. Default: None, this one
            alone.

    Raises:
        ValueError: if a learning rate is negative or not finite, if ``max_grad_norm`` is not
            positive, or if ``separate=False`` with two different learning rates for the trunk.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.objectives import SoftUpdate
        >>> from torchrl_glam.models import CandidateActor, ObservationCritic
        >>> trunk = TensorDictModule(  # stands for a language model with 3 candidates
        ...     torch.nn.Linear(2, 3), in_keys=["observation"], out_keys=["log_likelihood"]
        ... )
        >>> critic = ObservationCritic(2, 3, (8,), prompt_embedding_key="observation")
        >>> loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=3)
        >>> target_updater = SoftUpdate(loss, tau=0.005)
        >>> optimizer = SharedTrunkOptimizer(loss, max_grad_norm=1.0)
        >>> state = {"observation": torch.randn(5, 2), "action_mask": torch.ones(5, 3).bool()}
        >>> ends = {"done": torch.ones(5, 1).bool(), "terminated": torch.ones(5, 1).bool()}
        >>> after = {**state, **ends, "reward": torch.rand(5, 1)}
        >>> batch = TensorDict(
        ...     {**state, "action": torch.zeros(5, dtype=torch.long), "next": after}, [5]
        ... )
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
        lr_trunk_actor: float = 1e-4,
        lr_trunk_critic: float = 1e-4,
        lr_heads: float = 1e-4,
        lr_alpha: float = 2e-3,
        max_grad_norm: float = math.inf,
        separate: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        rates = {
            "lr_trunk_actor": lr_trunk_actor,
            "lr_trunk_critic": lr_trunk_critic,
            "lr_heads": lr_heads,
            "lr_alpha": lr_alpha,
        }
        _check_arguments(rates, max_grad_norm, separate)
        self.loss = loss
        self.max_grad_norm = max_grad_norm
        self.separate = separate
        super().__init__(group)
        self._update_actor = True
        self._trunk = list(loss.trunk_parameters())
        self._critic = list(loss.critic_parameters())
        groups = {"critic": (self._critic, lr_heads), "alpha": ([loss.log_alpha], lr_alpha)}
        if self._trunk and separate:
            groups["trunk_actor"] = (self._trunk, lr_trunk_actor)
            groups["trunk_critic"] = (self._trunk, lr_trunk_critic)
        elif self._trunk:
            groups["trunk"] = (self._trunk, lr_trunk_actor)
        self.optimizers = {
            name: torch.optim.Adam(params, lr=lr, fused=True)
            for name, (params, lr) in groups.items()
        }

    def backward(
        self, losses: TensorDictBase, share: float = 1.0, *, update_actor: bool = True
    ) -> None:
        """Back-propagates the losses of a part of the batch; nothing moves yet.

        Args:
            losses: result of calling the loss.
            share: of the part in the batch of all processes, ``len(part) / batch_size``. Default:
                1.
            update_actor: ``False`` during the critic's warm-up (section 2.2): neither the
                actor's loss nor the entropy coefficient's is used. With ``critic_backprop`` the
                critic still moves the trunk. The same for all parts of a batch. Default: ``True``.

        Raises:
            FloatingPointError: if a loss is not finite; names it. The gradients of earlier parts
                are forgotten.
        """
        self._update_actor = update_actor
        super().backward(losses, share)

    def step(self) -> dict[str, float]:
        """Updates every parameter once, by the gradients of all parts.

        On a GPU, the host waits for the gradients' norms.

        Returns:
            dict: Euclidean norm of each updated group's gradient before clipping.

        Raises:
            FloatingPointError: if a gradient is not finite; names it. No parameter and no
                optimizer state has changed then, on any process.
            UpdateFailedError: with a ``group``, if the losses fail by another error on one process;
                on all of them, and nothing has changed.
            LostProcessError: if a process of the ``group`` is gone, or does not answer in time.
        """
        gradients = self._reduce()
        norms = {name: get_total_norm(list(grads.values())) for name, grads in gradients.items()}
        measured = dict(zip(norms, torch.stack(list(norms.values())).tolist(), strict=True))
        for name, norm in measured.items():
            if not math.isfinite(norm):
                raise self._gradient_error(name, gradients[name])
        for name, grads in gradients.items():
            self._apply(self.optimizers[name], grads, norms[name])
        return measured

    def _adams(self) -> list[torch.optim.Optimizer]:
        return list(self.optimizers.values())

    def _reachable(self) -> dict[str, list[nn.Parameter]]:
        groups = {"critic": self._critic, "alpha": [self.loss.log_alpha]}
        if self._trunk and self.separate:
            groups["trunk_actor"] = self._trunk
            if self.loss.critic_backprop:
                groups["trunk_critic"] = self._trunk
        elif self._trunk:
            groups["trunk"] = self._trunk
        return groups

    def _accumulate(self, losses: Mapping[str, Tensor]) -> None:
        critic_loss, actor_loss = losses["loss_qvalue"], losses["loss_actor"]
        train_trunk, gradients = self._update_actor and bool(self._trunk), self._gradients
        if self.separate:
            # The actor's pass comes second and frees the graph.
            groups = {"trunk_critic": self._trunk, "critic": self._critic}
            add_gradients([critic_loss], groups, gradients, retain_graph=train_trunk)
            if train_trunk:
                add_gradients([actor_loss], {"trunk_actor": self._trunk}, gradients)
        else:
            terms = [critic_loss, actor_loss] if train_trunk else [critic_loss]
            add_gradients(terms, {"trunk": self._trunk, "critic": self._critic}, gradients)
        if self._update_actor:
            add_gradients([losses["loss_alpha"]], {"alpha": [self.loss.log_alpha]}, gradients)

    def _apply(self, optimizer: torch.optim.Optimizer, grads: Gradients, norm: Tensor) -> None:
        for parameter, grad in grads.items():
            parameter.grad = grad
        if math.isfinite(self.max_grad_norm):
            clip_grads_with_norm_(grads.keys(), self.max_grad_norm, norm)
        optimizer.step()
        optimizer.zero_grad()

    def _gradient_error(self, group: str, grads: dict[nn.Parameter, Tensor]) -> FloatingPointError:
        names = {parameter: name for name, parameter in self.loss.named_parameters()}
        bad = [names[p] for p, grad in grads.items() if not grad.isfinite().all()]
        where = f"first in {bad[0]!r}, {len(bad)} of {len(grads)}" if bad else "its norm overflows"
        return FloatingPointError(
            f"The gradient of group {group!r} is not finite ({where} parameters); nothing was "
            "updated."
        )

    def __repr__(self) -> str:
        rates = ", ".join(
            f"{name}: lr={optimizer.param_groups[0]['lr']:g}"
            for name, optimizer in self.optimizers.items()
        )
        settings = f"max_grad_norm={self.max_grad_norm:g}, separate={self.separate}"
        return f"{type(self).__name__}({rates}, {settings})"

    def state_dict(self) -> dict[str, Any]:
        """State of every group's Adam, by group."""
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned.

        Raises:
            ValueError: if the groups differ, e.g. by ``separate``.
        """
        if state_dict.keys() != self.optimizers.keys():
            raise ValueError(
                f"state_dict has the groups {sorted(state_dict)} but this optimiser has "
                f"{sorted(self.optimizers)}: build it with the same `separate` and trunk."
            )
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state_dict[name])


def _check_arguments(rates: dict[str, float], max_grad_norm: float, separate: bool) -> None:
    for name, rate in rates.items():
        if not (0.0 <= rate < math.inf):
            raise ValueError(f"{name} ({rate}) must be a finite learning rate of at least 0.")
    if not max_grad_norm > 0.0:
        raise ValueError(f"max_grad_norm ({max_grad_norm}) must be positive; inf: no clipping.")
    if not separate and rates["lr_trunk_actor"] != rates["lr_trunk_critic"]:
        raise ValueError(
            f"lr_trunk_actor ({rates['lr_trunk_actor']}) and lr_trunk_critic "
            f"({rates['lr_trunk_critic']}) must be equal with separate=False: the trunk then has "
            "one Adam."
        )
