"""Optimizers that gather gradients part by part, and over processes, before they step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from torchrl_glam.objectives._checks import require
from torchrl_glam.objectives.reduction import GradientReducer, Gradients


class GatheringOptimizer(ABC):
    """Base of optimizers that take the losses of a batch in parts.

    :meth:`backward` adds the gradients of a part to those of the parts before it, and :meth:`step`
    moves the parameters once. Nothing has moved if ``backward`` raises, or if ``step``
    raises because losses failed or a number is not finite.

    Args:
        optimizers: one for each group of parameters, by name; kept as ``self.optimizers``, for
            learning-rate schedulers.
        max_grad_norm: Euclidean norm to which each group's gradient is clipped. Default: ``inf``.
        group: processes that train together, each on its own rows: gradients are summed over them
            before they are clipped. Default: None, this one alone.

    Raises:
        ValueError: if ``max_grad_norm`` is not positive.

    Examples:
        >>> from torchrl_glam.objectives import SharedTrunkOptimizer
        >>> issubclass(SharedTrunkOptimizer, GatheringOptimizer)
        True
    """

    def __init__(
        self,
        optimizers: dict[str, torch.optim.Optimizer],
        max_grad_norm: float = math.inf,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        require(
            max_grad_norm > 0.0, "max_grad_norm", max_grad_norm, "be positive; inf: no clipping"
        )
        self.optimizers, self.max_grad_norm = optimizers, max_grad_norm
        self._reducer = GradientReducer(group)
        self._gradients: dict[str, Gradients] = {}
        self._known: Exception | None = None  # the last error that all processes know of

    def backward(self, losses: TensorDictBase, share: float = 1.0) -> None:
        """Back-propagates the losses of a part of the batch; nothing moves yet.

        Args:
            losses: result of calling the loss, with scalar entries.
            share: the part's share of the batch of all processes, ``len(part) / batch_size``.
                Default: 1.

        Raises:
            ValueError: if there is no loss, or one is not a scalar.
            FloatingPointError: if a loss is not finite; names it. The gradients of earlier parts
                are forgotten.
        """
        names = [name for name in losses.keys() if name.startswith("loss_")]
        scalars = bool(names) and not any(losses[name].ndim for name in names)
        require(scalars, "losses", names, "be scalars named loss_...: reduction='none' gives none")
        values = torch.stack([losses[name].detach() for name in names]).tolist()
        for name, value in zip(names, values, strict=True):
            if not math.isfinite(value):
                error = FloatingPointError(f"{name} is {value}; nothing was updated.")
                self.discard(error)
                raise error
        self._accumulate({name: losses[name] * share for name in names})

    def step(self) -> dict[str, float]:
        """Updates every parameter once, by the gradients of all parts.

        On a GPU, the host waits for the gradients' norms.

        Returns:
            dict: Euclidean norm of each updated group's gradient before clipping.

        Raises:
            FloatingPointError: if a gradient is not finite; names it. No parameter and no
                optimizer state has changed then, on any process.
            UpdateFailedError: with a ``group``, on all processes, if the losses fail by another
                error on one of them; nothing has changed.
            LostProcessError: if a process of the ``group`` is gone, or does not answer in time.
        """
        gathered, self._gradients = self._gradients, {}
        self._sum(gathered)
        gradients = {name: gathered[name] for name in self._reachable() if gathered.get(name)}
        if not gradients:
            return {}
        norms = [get_total_norm(list(grads.values())) for grads in gradients.values()]
        measured = dict(zip(gradients, torch.stack(norms).tolist(), strict=True))
        for name, norm in measured.items():
            if not math.isfinite(norm):
                raise FloatingPointError(
                    f"The gradient of group {name!r} is not finite ({self._where(gradients[name])}"
                    "); nothing was updated."
                )
        for (name, grads), norm in zip(gradients.items(), norms, strict=True):
            for parameter, grad in grads.items():
                parameter.grad = grad
            if math.isfinite(self.max_grad_norm):
                clip_grads_with_norm_(grads.keys(), self.max_grad_norm, norm)
            self.optimizers[name].step()
            self.optimizers[name].zero_grad()
        return measured

    def scale_rates(self, factor: float) -> None:
        """Sets every learning rate to ``factor`` times the one given at the start.

        Args:
            factor: such as what is left of a rate that falls in proportion to environment steps;
                ValueError if it is negative or not finite.
        """
        require(0.0 <= factor < math.inf, "factor", factor, "be finite and at least 0")
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:  # its state holds the rate at the start too
                group["lr"] = factor * group.setdefault("initial_lr", group["lr"])

    def discard(self, error: Exception | None = None) -> None:
        """Forgets the gradients gathered so far, for the update cannot be completed.

        Args:
            error: why. With several processes, the others raise at their ``step`` then. Default:
                None, they are not told: the update is tried again.

        Raises:
            UpdateFailedError, FloatingPointError: with several processes, for ``error``.
        """
        self._gradients = {}
        if error is not None and self._reducer.group is not None and error is not self._known:
            self._sum({}, error)

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizers, by group."""
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned; ValueError if the groups differ."""
        if state_dict.keys() != self.optimizers.keys():
            raise ValueError(
                f"state_dict has the groups {sorted(state_dict)} but this optimizer has "
                f"{sorted(self.optimizers)}: build it with the same arguments."
            )
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state_dict[name])

    def _sum(self, gradients: dict[str, Gradients], failure: Exception | None = None) -> None:
        try:
            self._reducer.sum(self._reachable(), gradients, failure)
        except Exception as error:
            self._known = error
            raise

    def _where(self, gradients: Gradients) -> str:
        """Number of gradients that are not finite."""
        bad = sum(not grad.isfinite().all() for grad in gradients.values())
        return f"{bad} of {len(gradients)} parameters" if bad else "its norm overflows"

    @abstractmethod
    def _accumulate(self, losses: Mapping[str, Tensor]) -> None:
        """Adds the gradients of a part, by group, to ``self._gradients``."""

    def _reachable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters of the groups that the losses can send gradients to."""
        return {
            name: [p for part in optimizer.param_groups for p in part["params"]]
            for name, optimizer in self.optimizers.items()
        }


class ClippedAdam(GatheringOptimizer):
    """Adam on the sum of a loss module's ``loss_`` entries, clipped by the norm of the gradient.

    Args:
        groups: parameters with their learning rates, as ``torch.optim.Adam`` takes them; clipped
            together, as the group ``"all"``.
        max_grad_norm, group: those of :class:`GatheringOptimizer`.

    Examples:
        >>> from tensordict import TensorDict
        >>> weight = nn.Parameter(torch.ones(2))
        >>> optimizer = ClippedAdam([{"params": [weight], "lr": 0.1}], max_grad_norm=1.0)
        >>> for rows in torch.tensor([[1.0, 2.0], [3.0, 4.0]]):
        ...     optimizer.backward(TensorDict({"loss_value": (weight * rows).sum()}), share=0.5)
        >>> optimizer.step()  # the norm of (2, 3) before clipping
        {'all': 3.605...}
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        max_grad_norm: float = math.inf,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__({"all": torch.optim.Adam(list(groups), fused=True)}, max_grad_norm, group)

    def _accumulate(self, losses: Mapping[str, Tensor]) -> None:
        add_gradients(list(losses.values()), self._reachable(), self._gradients)


def add_gradients(
    losses: list[Tensor],
    groups: Mapping[str, list[nn.Parameter]],
    gradients: dict[str, Gradients],
    retain_graph: bool = False,
) -> None:
    """Adds the gradient of the summed losses to those of the groups, where the losses reach.

    By way of ``.grad``: the tensors that ``torch.autograd.grad`` returns may share memory and
    differ from their parameter in layout, and the fused Adam reads such gradients wrongly.
    """
    params = {p: gradients.setdefault(name, {}) for name, group in groups.items() for p in group}
    for parameter, grads in params.items():
        parameter.grad = grads.get(parameter)
    torch.autograd.backward(losses, inputs=list(params), retain_graph=retain_graph)
    for parameter, grads in params.items():
        if parameter.grad is not None:
            grads[parameter] = parameter.grad
            parameter.grad = None
