"""A GPU that is not there, so that code for one can be tested on a CPU.

Within :class:`PretendCard`, ``device="cuda"`` works. Tensors that are put there stay in main memory
and compute as ever, but are known by their storages: they say that they are on the GPU, whatever
is computed from them is, and an operation on tensors of both devices is refused, as CUDA refuses
it.
"""

from contextlib import ExitStack
from unittest.mock import patch

import torch
from tensordict import MemoryMappedTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

# Storages that are on the GPU, whoever keeps them, a cache of the package's for example.
_on_card: dict[int, StorageWeakRef] = {}
aten = torch.ops.aten
# Operations that take an index, which CUDA brings to the tensor.
INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
COPIES = {aten.copy_.default, aten._foreach_copy_.default}  # between both devices, too
# These are made anew each time they are looked up, and are equal.
DEVICE, IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
MOVES = {torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu}
DRAWS = {torch.rand, torch.randint, torch.randn, torch.randperm}
MEMORY = 80 * 2**30  # of the GPU, in bytes


def holds(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the GPU."""
    with torch._C.DisableTorchFunction():
        found = _on_card.get(tensor.untyped_storage()._cdata)
    return found is not None and not found.expired()


def put(tensor: torch.Tensor) -> torch.Tensor:
    """Has a tensor's storage count as the GPU's."""
    with torch._C.DisableTorchFunction():
        storage = tensor.untyped_storage()
        _on_card[storage._cdata] = StorageWeakRef(storage)
    return tensor


def tensors(*values) -> list[torch.Tensor]:
    """Those among values, and in lists and tuples of them."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class PretendCard(TorchFunctionMode):
    def __enter__(self):
        super().__enter__()
        self._within = ExitStack()
        self._within.enter_context(_Dispatch())
        for place, name, pretended in (
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "mem_get_info", lambda device=None: (MEMORY, MEMORY)),
            (torch, "Generator", _Generator),
            (MemoryMappedTensor, "__new__", _map_memory),
        ):
            self._within.enter_context(patch.object(place, name, pretended))
        return self

    def __exit__(self, *exception):
        self._within.close()
        return super().__exit__(*exception)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == DEVICE:
            return torch.device("cuda:0") if holds(args[0]) else func(*args)
        if func == IS_CUDA:
            return holds(args[0])
        if func in MOVES:
            return _move(func, args, kwargs)
        device = kwargs.get("device")
        if func == torch.Tensor.new_tensor and device is None and holds(args[0]):
            device = "cuda"
        generator = kwargs.get("generator") if func in DRAWS else None
        if generator is not None and generator.device.type != torch.device(device or "cpu").type:
            raise RuntimeError(f"{func}: the generator is not on the device of what it draws")
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        out = func(*args, **kwargs | {"device": "cpu"})
        for tensor in tensors(out):
            put(tensor)
        return out


def _move(func, args, kwargs):
    """``to``, ``cuda`` and ``cpu``."""
    tensor, target, dtypes = args[0], None, []
    kwargs.pop("non_blocking", None)
    if func is not torch.Tensor.to:
        target, kwargs = func.__name__, {}
    else:
        for value in (*args[1:], kwargs.pop("device", None)):
            if isinstance(value, torch.Tensor):
                dtypes.append(value.dtype)
                target = "cuda" if holds(value) else "cpu"
            elif isinstance(value, (str, torch.device)):
                target = torch.device(value).type
            elif isinstance(value, torch.dtype):
                dtypes.append(value)
    here = holds(tensor)
    out = torch.Tensor.to(tensor, *dtypes, **kwargs) if dtypes or kwargs else tensor
    if target is None or (target == "cuda") == here:
        return out
    out = out.clone()
    if target == "cuda":
        return put(out)
    with torch._C.DisableTorchFunction():
        _on_card.pop(out.untyped_storage()._cdata, None)
    return out


class _Generator(torch.Generator):
    """Says that it is on the GPU, and draws in main memory."""

    def __new__(cls, device="cpu"):
        generator = super().__new__(cls)
        generator._device = torch.device(device)
        return generator

    def __init__(self, device="cpu") -> None:
        pass

    device = property(lambda self: self._device)


_new_memmap = MemoryMappedTensor.__new__


def _map_memory(cls, *args, **kwargs):
    """A file is never the GPU's, and a tensor of this kind is not made under a mode."""
    with _disable_current_modes():
        return _new_memmap(cls, *args, **kwargs)


class _Dispatch(TorchDispatchMode):
    """Follows tensors of the GPU through operations, those of a backward pass included."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors(*args, *kwargs.values())
        here = [holds(tensor) for tensor in given]
        if any(here) and func not in COPIES:
            # What is read by an index stays where it is.
            indexed = func in INDEXED and (here[0] or func is not aten.index.Tensor)
            free = tensors(*args[1:2]) if indexed else []
            apart = [
                tuple(tensor.shape)
                for tensor, on in zip(given, here, strict=True)
                if on != here[0] and tensor.dim() and not any(tensor is i for i in free)
            ]
            if apart:
                raise RuntimeError(f"{func}: tensors {apart} are not on the device of the first")
        out = func(*args, **kwargs)
        if any(here) and (here[0] or func not in INDEXED):
            for tensor in tensors(out):
                put(tensor)
        return out
