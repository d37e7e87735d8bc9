"""What a run takes of the memory: its weights, before it starts, and a bound on kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor

from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer


def bound_kernel_caches(capacity: int = 256) -> None:
    """Bounds what oneDNN keeps of the kernels that it generates, on a CPU.

    It generates some for each shape of a bfloat16 product, and no two batches of text have the same
    shapes. By default it and torch keep 1,024 each, about a gigabyte in the end. A pass of a trunk
    with its gradient takes some 36, so 256 still serve the shapes that come again soon.

    Both caches read their capacity from the environment of the process when they are first used, so
    call this before. What ``ONEDNN_PRIMITIVE_CACHE_CAPACITY`` and ``LRU_CACHE_CAPACITY`` say
    already is left as it is.

    Args:
        capacity: number of kernels that each of the two keeps. Default: 256.

    Raises:
        ValueError: if ``capacity`` is below 1.
    """
    if capacity < 1:
        raise ValueError(f"capacity ({capacity}) must be at least 1 kernel.")
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(capacity))


def memory_report(loss: SACGLAMLoss, optimizer: SharedTrunkOptimizer) -> dict[str, int]:
    """Bytes of the language model, and of what training holds beside it.

    With adapters the last three are small, whatever the language model is: targets and moments are
    of trained parameters only.

    Args:
        loss: the loss, with its trunk.
        optimizer: its optimizer.

    Returns:
        ``model`` (weights as they are held, 4 bits included), ``trained`` (the part of it that
        trains), ``critics``, ``targets`` (of trained weights and critics) and ``optimizer`` (both
        moments of every Adam, which are made at the first step).

    Examples:
        >>> import torch
        >>> from torchrl_glam.models import CandidateActor, make_critic, make_trunk
        >>> from torchrl_glam.models import load_language_model
        >>> trunk = make_trunk(*load_language_model("tiny"))
        >>> trunk, critic = make_critic(trunk, num_actions=5, hidden_sizes=(16,))
        >>> loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=5)
        >>> report = memory_report(loss, SharedTrunkOptimizer(loss))
        >>> report["model"] == report["trained"], report["targets"] - report["trained"]
        (True, 8324)
        >>> print(describe_memory(report))
        language model 3.8 MB (trained 3.8), critics 0.0, targets 3.9, optimizer 15.4
    """
    model = list(loss.trunk.base_model.parameters())
    states = [p.quant_state for p in model if getattr(p, "quant_state", None) is not None]
    critics = [loss.qvalue_network_params, loss.target_qvalue_network_params]
    moments = [
        p for o in optimizer.optimizers.values() for g in o.param_groups for p in g["params"]
    ]
    return {
        "model": _bytes(model) + _bytes(v for s in states for v in _quantisation(s)),
        "trained": _bytes(loss.trunk_parameters()),
        "critics": critics[0].bytes(),
        "targets": loss.target_trunk_params.bytes() + critics[1].bytes(),
        "optimizer": 2 * _bytes(moments),
    }


def describe_memory(report: dict[str, int]) -> str:
    """One line of a :func:`memory_report`, in MB."""
    sizes = {name: f"{value / 1e6:.1f}" for name, value in report.items()}
    return "language model {model} MB (trained {trained}), critics {critics}, ".format(**sizes) + (
        "targets {targets}, optimizer {optimizer}".format(**sizes)
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _quantisation(state) -> list[Tensor]:
    """The constants of a 4-bit weight, and of those constants if they are quantised too."""
    return [v for v in state.as_dict(packed=True).values() if isinstance(v, torch.Tensor)]
