"""The device of the language model, and what its arithmetic needs there."""

import ctypes
import os
import sys

import torch
from torch.overrides import TorchFunctionMode


def choose_device(name: str) -> torch.device:
    """``"auto"`` is the GPU if there is one, else the CPU.

    Raises:
        ValueError: if the device does not exist on this machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith(("cpu:", "meta")):  # torch takes both
            raise RuntimeError("there is one CPU, cpu, and meta computes nothing")
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
    """
    if setting == "auto":
        native = torch.cpu.get_capabilities() if device.type == "cpu" else {}
        on_cpu = native.get("avx512_bf16", False) or native.get("amx_bf16", False)
        setting = "true" if device.type == "cuda" or on_cpu else "false"
    return torch.bfloat16 if setting == "true" else None


class KeepFloat32(TorchFunctionMode):
    """A context in which ``Tensor.bfloat16`` gives a copy in float32.

    Where bfloat16 is emulated, a step of ``torch.optim.Muon``, which orthogonalises in it, takes
    several times as long as in float32.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)
        return func(*args, **(kwargs or {}))


def bound_kernel_caches(capacity: int = 256) -> None:
    """Bounds what oneDNN keeps of the kernels that it generates: by default 1,024, about 1 GB.

    No two batches of text have the same shapes, and a pass of a trunk with its gradient takes some
    36 kernels, so 256 still serve the shapes that come again soon. The caches read their capacity
    from the environment of the process when they are first used, so call this before. What
    ``ONEDNN_PRIMITIVE_CACHE_CAPACITY`` and ``LRU_CACHE_CAPACITY`` say already is left as it is.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(capacity))


def keep_freed_memory() -> None:
    """Lets the allocator of glibc keep up to 1 GiB that is freed, for the blocks that follow.

    An update frees some hundred blocks of a few MiB. By default most of them go back to the system,
    which clears their pages before it gives them out again: ten times the page faults, and about an
    eighth of a run's time on a CPU. Other allocators are left alone, and so is one that the
    environment configures by ``MALLOC_...``.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: larger blocks are the system's own
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
