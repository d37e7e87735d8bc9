"""Gradients of several processes as one: what each computed on its rows, summed in one message."""

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Gradients of one group of parameters, those that its loss reached.
Gradients = dict[nn.Parameter, Tensor]


class LostProcessError(ConnectionError):
    """Another process of the run is gone, or did not answer in time."""


class UpdateFailedError(RuntimeError):
    """An update failed on one process of several; raised on all, and none has updated anything."""


class GradientReducer:
    """Sums gradients over the processes of a group, all of them in one all-reduce.

    Each process gives its part of a mean over the rows of all, so the sums are the gradients of the
    whole batch, the same on every process to the last bit. The message also says which parameters
    each loss reached, since a step leaves the others alone, and whether a process failed. If one
    did, all raise at the same point. Memory: one buffer of the gradients' size, in float32 or
    wider.

    Args:
        group: the processes. Default: None, this one alone: nothing is sent or copied.

    Examples:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> gradients = {"all": {weight: torch.tensor([3.0, 3.0])}}
        >>> GradientReducer().sum({"all": [weight]}, gradients)  # alone: as they are
        >>> gradients["all"][weight]
        tensor([3., 3.])
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self._buffer: Tensor | None = None

    def sum(
        self,
        groups: Mapping[str, Sequence[nn.Parameter]],
        gradients: dict[str, Gradients],
        failure: Exception | None = None,
    ) -> None:
        """Sums the gradients of all processes, in place; each calls it once for an update.

        Args:
            groups: parameters that may have gradients, by group, the same on all processes.
            gradients: those of this process, by group; a group that has none may be missing.
            failure: the error that kept this process from computing them. Default: None.

        Raises:
            FloatingPointError: on all processes, when one of them passes it as ``failure``.
            UpdateFailedError: on all processes, when one of them fails by any other error.
            LostProcessError: when another process is gone, or does not answer in time.
        """
        if self.group is None:
            if failure is not None:
                raise failure
            return
        slots = [(gradients.setdefault(n, {}), p) for n, params in groups.items() for p in params]
        sizes = [p.numel() for _, p in slots]
        flat = self._zeros(sum(sizes) + len(slots) + 2, [p for _, p in slots])
        *places, told = flat.split([*sizes, len(slots) + 2])
        places = [place.view(p.shape) for place, (_, p) in zip(places, slots, strict=True)]
        there = [failure is None and p in grads for grads, p in slots]
        held = [i for i, is_there in enumerate(there) if is_there]
        if held:
            own = [slots[i][0][slots[i][1]] for i in held]
            torch._foreach_copy_([places[i] for i in held], own)
        numeric = isinstance(failure, FloatingPointError)
        failed = [numeric, failure is not None and not numeric]
        told.copy_(torch.tensor([*there, *failed], dtype=told.dtype))
        try:
            dist.all_reduce(flat, group=self.group)
        except RuntimeError as error:
            raise lost(error) from failure
        *counts, bad_numbers, errors = told.tolist()
        if errors:
            why = " on another process, which says why" if failure is None else f": {failure}"
            raise UpdateFailedError(f"an update failed{why}") from failure
        if bad_numbers:
            raise failure or FloatingPointError(
                "losses are not finite on another process, which names them; nothing was updated."
            )
        moved = [i for i, count in enumerate(counts) if count]
        for grads, p in (slots[i] for i in moved):
            if p not in grads:  # reached by the rows of another process only
                grads[p] = torch.empty_like(p)
        if moved:
            own = [slots[i][0][slots[i][1]] for i in moved]
            torch._foreach_copy_(own, [places[i] for i in moved])

    def _zeros(self, size: int, parameters: list[nn.Parameter]) -> Tensor:
        """The start of the buffer, which is made once: a full memory then has room for it too."""
        if self._buffer is None or len(self._buffer) < size:
            dtype = reduce(torch.promote_types, (p.dtype for p in parameters), torch.float32)
            self._buffer = torch.empty(size, dtype=dtype, device=parameters[0].device)
        return self._buffer[:size].zero_()


def lost(error: RuntimeError) -> LostProcessError:
    """The error to raise for a failed message to the other processes."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return LostProcessError(
        f"another process of this run has ended or does not answer ({reason}): this one ends too; "
        "go on from the run's last checkpoint with resume"
    )
