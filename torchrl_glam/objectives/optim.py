"""Optimisation of a trunk that two losses share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from torchrl_glam.objectives.reduction import GradientReducer, Gradients
from torchrl_glam.objectives.sac import SACGLAMLoss

_LOSSES = ("loss_qvalue", "loss_actor", "loss_alpha")


class SharedTrunkOptimizer:
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
        >>> batch = TensorDict(
        ...     {
        ...         **state,
        ...         "action": torch.zeros(5, dtype=torch.long),
        ...         "next": {**state, **ends, "reward": torch.rand(5, 1)},
        ...     },
        ...     batch_size=[5],
        ... )
        >>> sorted(optimizer.step(loss(batch), update_actor=False))  # the critic's warm-up
        ['critic']
        >>> sorted(optimizer.step(loss(batch)))
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
        self._reducer = GradientReducer(group)
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

    def step(
        self,
        losses: TensorDictBase | Iterable[TensorDictBase],
        update_actor: bool = True,
        weights: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Back-propagates the losses and updates every parameter once.

        On a GPU, the host waits twice: for the losses of each part, and for the gradients' norms.

        Args:
            losses: result of calling the loss, with scalar
                losses. For a batch that does not fit in memory, the results for parts of it:
                ``step(loss(part) for part in batch.split(32))`` holds one part's graph at a time
                and gives the gradient of the whole batch.
            update_actor: ``False`` during the critic's warm-up (section 2.2): neither the
                actor's loss nor the entropy coefficient's is used. With ``critic_backprop`` the
                critic still moves the trunk. Default: ``True``.
            weights: share of each part in the batch, for parts of
                unequal size (:func:`~torchrl_glam.models.split_by_tokens`), as
                ``[len(part) / len(batch) for part in parts]``. With a ``group``, the share in the
                batch of all its processes. Default: equal shares.

        Returns:
            dict: Euclidean norm of each updated group's gradient before clipping.

        Raises:
            FloatingPointError: if a loss or gradient is not finite; names it. No parameter and no
                optimiser state has changed then, on any process.
            UpdateFailedError: with a ``group``, if the losses fail by another error on one process;
                on all of them, and nothing has changed.
            LostProcessError: if a process of the ``group`` is gone, or does not answer in time.
        """
        gradients: dict[str, Gradients] = {name: {} for name in self.optimizers}
        with self._reducer.summing(self._reachable(update_actor), gradients):
            self._accumulate_all(losses, update_actor, weights, gradients)
        gradients = {name: grads for name, grads in gradients.items() if grads}
        norms = {name: get_total_norm(list(grads.values())) for name, grads in gradients.items()}
        measured = dict(zip(norms, torch.stack(list(norms.values())).tolist(), strict=True))
        for name, norm in measured.items():
            if not math.isfinite(norm):
                raise self._gradient_error(name, gradients[name])
        for name, grads in gradients.items():
            self._apply(self.optimizers[name], grads, norms[name])
        return measured

    def _reachable(self, update_actor: bool) -> dict[str, list[nn.Parameter]]:
        """Parameters of the groups that losses can send gradients to."""
        groups = {"critic": self._critic}
        if self._trunk and (self.loss.critic_backprop or (update_actor and not self.separate)):
            groups["trunk_critic" if self.separate else "trunk"] = self._trunk
        if self._trunk and update_actor and self.separate:
            groups["trunk_actor"] = self._trunk
        return groups | ({"alpha": [self.loss.log_alpha]} if update_actor else {})

    def _accumulate_all(
        self,
        losses: TensorDictBase | Iterable[TensorDictBase],
        update_actor: bool,
        weights: Sequence[float] | None,
        gradients: dict[str, Gradients],
    ) -> None:
        """Adds the gradients of all parts, each by its share."""
        count = 0
        for part in [losses] if isinstance(losses, TensorDictBase) else losses:
            _check_losses(part)
            if weights is not None:
                part = _weighted(part, weights, count)
            self._accumulate(part, update_actor, gradients)
            count += 1
        if not count:
            raise ValueError("losses is empty: pass one result of the loss, or one per part.")
        if weights is not None and len(weights) != count:
            raise ValueError(f"weights has {len(weights)} entries for {count} parts of the batch.")
        group = self._reducer.group
        equal = count * (1 if group is None else dist.get_world_size(group))
        if equal > 1 and weights is None:
            for grads in filter(None, gradients.values()):
                torch._foreach_div_(list(grads.values()), equal)

    def _accumulate(
        self,
        losses: TensorDictBase | dict[str, Tensor],
        update_actor: bool,
        gradients: dict[str, Gradients],
    ) -> None:
        critic_loss, actor_loss = losses["loss_qvalue"], losses["loss_actor"]
        train_trunk = update_actor and bool(self._trunk)
        if self.separate:
            # The actor's pass comes second and frees the graph.
            groups = {"trunk_critic": self._trunk, "critic": self._critic}
            _backward([critic_loss], groups, gradients, retain_graph=train_trunk)
            if train_trunk:
                _backward([actor_loss], {"trunk_actor": self._trunk}, gradients)
        else:
            terms = [critic_loss, actor_loss] if train_trunk else [critic_loss]
            _backward(terms, {"trunk": self._trunk, "critic": self._critic}, gradients)
        if update_actor:
            _backward([losses["loss_alpha"]], {"alpha": [self.loss.log_alpha]}, gradients)

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


def _backward(
    losses: list[Tensor],
    groups: dict[str, list[nn.Parameter]],
    gradients: dict[str, Gradients],
    retain_graph: bool = False,
) -> None:
    """Adds the gradient of the summed losses to those of the groups, where the losses reach.

    By way of ``.grad``: the tensors that ``torch.autograd.grad`` returns may share memory and
    differ from their parameter in layout, and the fused Adam reads such gradients wrongly.
    """
    params = {p: gradients[name] for name, group in groups.items() for p in group}
    for parameter, grads in params.items():
        parameter.grad = grads.get(parameter)
    # A compiled trunk is walked twice, so it may not reuse the memory of what it reads.
    with torch._functorch.config.patch(donated_buffer=False):
        torch.autograd.backward(losses, inputs=list(params), retain_graph=retain_graph)
    for parameter, grads in params.items():
        if parameter.grad is not None:
            grads[parameter] = parameter.grad
            parameter.grad = None


def _weighted(losses: TensorDictBase, weights: Sequence[float], part: int) -> dict[str, Tensor]:
    # Missing ones are reported once the parts have been counted, before anything moves.
    weight = weights[part] if part < len(weights) else 0.0
    return {name: losses[name] * weight for name in _LOSSES}


def _check_losses(losses: TensorDictBase) -> None:
    values = torch.stack([losses[name].detach() for name in _LOSSES]).tolist()
    for name, value in zip(_LOSSES, values, strict=True):
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is {value}; nothing was updated.")


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
