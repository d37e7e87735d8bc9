"""The device of the language model, and what its arithmetic needs there."""

from __future__ import annotations

import os

import torch


def choose_device(name: str) -> torch.device:
    """``"auto"`` is the GPU if there is one, else the CPU.

    Raises:
        ValueError: if the device does not exist on this machine.

    Examples:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith("cpu:"):  # torch takes any number
            raise RuntimeError("there is one CPU, cpu")
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device ({name!r}) cannot be used on this machine: {str(error).splitlines()[0]}"
        ) from error


def choose_autocast(setting: str, device: torch.device) -> torch.dtype | None:
    """Type of matrix products for the trunk: bfloat16, or None for that of the weights.

    Args:
        setting: ``"true"``, ``"false"`` or ``"auto"``: bfloat16 where it is native, which is
            about 1.6 times faster on a CPU.
        device: where the language model runs.

    Examples:
        >>> choose_autocast("true", torch.device("cpu"))
        torch.bfloat16
    """
    if setting == "auto":
        native = torch.cpu.get_capabilities() if device.type == "cpu" else {}
        on_cpu = native.get("avx512_bf16", False) or native.get("amx_bf16", False)
        setting = "true" if device.type == "cuda" or on_cpu else "false"
    return torch.bfloat16 if setting == "true" else None


def choose_attention(device: torch.device, autocast: torch.dtype | None) -> str | None:
    """Implementation of attention: None for the usual one, ``"eager"`` in bfloat16 on the CPU.

    There the fused kernel goes backward slowly, and eager is 1.4 times faster.

    Examples:
        >>> choose_attention(torch.device("cpu"), torch.bfloat16)
        'eager'
    """
    return "eager" if device.type == "cpu" and autocast is not None else None


def choose_padding(device: torch.device, autocast: torch.dtype | None, compile: bool) -> int:
    """Multiple to which lengths are padded, so that shapes are few where each costs something.

    Each shape is compiled, or oneDNN generates a kernel for it, which takes longer than to use it
    once.

    Examples:
        >>> choose_padding(torch.device("cpu"), torch.bfloat16, compile=False)
        4
    """
    generated = autocast is not None and device.type == "cpu"
    return 16 if compile else 4 if generated else 1


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
