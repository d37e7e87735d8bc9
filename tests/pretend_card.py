"""A card that is not there: what would go wrong, or wait, on a GPU, found on a CPU.

Within :class:`PretendCard`, ``device="cuda"`` works. Tensors that are put there stay in main memory
and compute as ever, but are known by their storages: they say that they are on the card, whatever
is computed from them is, and an operation on tensors of both sides is refused, as CUDA refuses it.
Noted, with the function of this package that causes it, is what the host has to wait for (a value
that it reads, a shape that depends on values, a copy to main memory) and what it makes in main
memory or copies from there.

On a real card, ``torch.cuda.set_sync_debug_mode`` finds the first of these; the rest is found here
only.

    python tests/pretend_card.py recipes/sac_glam.py device=cuda    # a script, and what was noted
"""

import os
import runpy
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
from tensordict import MemoryMappedTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

# Storages that are on the card, whoever keeps them, a cache of the package's for example.
_on_card: dict[int, StorageWeakRef] = {}
ROOT = f"{Path(__file__).resolve().parents[1]}{os.sep}"
PARTS = tuple(f"{ROOT}{part}{os.sep}" for part in ("torchrl_glam", "envs", "recipes"))
aten = torch.ops.aten

# Operations whose result has a shape, or a value for the host, that depends on values.
WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
}
# Those that take an index of booleans, which they turn into numbers first.
INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
COPIES = {aten.copy_.default, aten._foreach_copy_.default}  # between both sides, too
READS = {
    torch.Tensor.tolist,
    torch.Tensor.item,
    torch.Tensor.numpy,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
}
# These are made anew each time they are looked up, and are equal.
DEVICE, IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
MOVES = {torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu}
MEMORY = 80 * 2**30  # of the card, in bytes
FROM_PYTHON = {"torch.tensor", "torch.as_tensor", "torch.Tensor.new_tensor"}


class PretendCard(TorchFunctionMode):
    """See the module.

    Attributes:
        waits: places in the package, ``"models/trunks/trie.py: admissible_tokens"``, and how often
            the host waits there for the card.
        from_host: places that copy from main memory to the card.
        on_host: places that make tensors there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.from_host, self.on_host = Counter(), Counter(), Counter()
        self._dispatch = _Dispatch(self)
        self._quiet = 0

    def __enter__(self):
        super().__enter__()
        self._dispatch.__enter__()
        self._patches = ExitStack()
        for place, name, pretended in (
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "mem_get_info", lambda device=None: (MEMORY, MEMORY)),
            (torch, "Generator", _Generator),
            (MemoryMappedTensor, "__new__", _map_memory),
        ):
            self._patches.enter_context(patch.object(place, name, pretended))
        return self

    def __exit__(self, *exception):
        self._patches.close()
        self._dispatch.__exit__(*exception)
        return super().__exit__(*exception)

    def forget(self) -> None:
        """Notes from now on only."""
        for notes in (self.waits, self.from_host, self.on_host):
            notes.clear()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the card."""
        with torch._C.DisableTorchFunction():
            key = tensor.untyped_storage()._cdata
        found = _on_card.get(key)
        return found is not None and not found.expired()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Has a tensor's storage count as the card's."""
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            _on_card[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def note(self, notes: Counter) -> None:
        if not self._quiet:
            notes[_place()] += 1

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == DEVICE:
            return torch.device("cuda:0") if self.holds(args[0]) else func(*args)
        if func == IS_CUDA:
            return self.holds(args[0])
        if func in MOVES:
            return self._move(func, args, kwargs)
        if func in READS and self.holds(args[0]):
            self.note(self.waits)
            with _quietly(self):
                return func(*args, **kwargs)
        device = kwargs.get("device")
        if func == torch.Tensor.new_tensor and device is None and self.holds(args[0]):
            device = "cuda"
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        kwargs["device"] = "cpu"
        if resolve_name(func) in FROM_PYTHON:
            self.note(self.from_host)
        with _quietly(self):
            out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.put(tensor)
        return out

    def _move(self, func, args, kwargs):
        tensor, target = args[0], None
        at_once = not kwargs.pop("non_blocking", False)
        if func is not torch.Tensor.to:
            target, args, kwargs = func.__name__, args[:1], {}
        else:
            rest = []
            for value in args[1:]:
                if isinstance(value, torch.Tensor):
                    rest.append(value.dtype)
                    target = value.device.type
                elif isinstance(value, (str, torch.device)):
                    target = torch.device(value).type
                elif value is not None:
                    rest.append(value)
            if kwargs.get("device") is not None:
                target = torch.device(kwargs["device"]).type
            kwargs.pop("device", None)
            args = (tensor, *[value for value in rest if not isinstance(value, bool)])
        here = self.holds(tensor)
        dtypes = [v for v in (*args[1:], kwargs.get("dtype")) if isinstance(v, torch.dtype)]
        if dtypes or kwargs:
            out = torch.Tensor.to(*args, **kwargs)
        else:
            out = tensor
        if target is None or (target == "cuda") == here:
            return out
        with _quietly(self):
            out = out.clone()
        if target == "cuda" or at_once:
            self.note(self.from_host if target == "cuda" else self.waits)
        if target == "cuda":
            return self.put(out)
        with torch._C.DisableTorchFunction():
            _on_card.pop(out.untyped_storage()._cdata, None)
        return out


class _Generator(torch.Generator):
    """Says that it is on the card, and draws in main memory."""

    def __new__(cls, device="cpu"):
        generator = super().__new__(cls)
        generator._device = torch.device(device)
        return generator

    def __init__(self, device="cpu") -> None:
        pass

    device = property(lambda self: self._device)


_new_memmap = MemoryMappedTensor.__new__


def _map_memory(cls, *args, **kwargs):
    """A file is never the card's, and a tensor of this kind is not made under a mode."""
    with _disable_current_modes():
        return _new_memmap(cls, *args, **kwargs)


class _quietly:
    """Within it, nothing is noted: what is done belongs to a call that has been noted."""

    def __init__(self, card: PretendCard) -> None:
        self.card = card

    def __enter__(self):
        self.card._quiet += 1

    def __exit__(self, *exception):
        self.card._quiet -= 1


class _Dispatch(TorchDispatchMode):
    """Follows tensors of the card through operations, those of a backward pass included."""

    def __init__(self, card: PretendCard) -> None:
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, card = kwargs or {}, self.card
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        here = [card.holds(tensor) for tensor in tensors]
        if any(here):
            indices = [i for i in tree_leaves(args[1:2]) if isinstance(i, torch.Tensor)]
            indices = indices if func in INDEXED else []
            # CUDA brings an index to the tensor, but what is read by it stays where it is.
            free = indices if here[0] or func is not aten.index.Tensor else []
            apart = [
                tuple(tensor.shape)
                for tensor, on in zip(tensors, here, strict=True)
                if on != here[0] and tensor.dim() and not any(tensor is i for i in free)
            ]
            if apart and func not in COPIES:
                raise RuntimeError(f"{func}: tensors {apart} are not on the device of the first")
            if func in WAITS or any(i.dtype == torch.bool for i in indices):
                card.note(card.waits)
            if any(card.holds(i) != here[0] for i in indices):
                card.note(card.from_host if here[0] else card.waits)
        out = func(*args, **kwargs)
        if any(here) and (here[0] or func not in INDEXED):
            for value in tree_leaves(out):
                if isinstance(value, torch.Tensor):
                    card.put(value)
        elif not tensors and any(t.dim() for t in tree_leaves(out) if isinstance(t, torch.Tensor)):
            card.note(card.on_host)  # a number of none is an argument of the operation
        return out


def _place() -> str:
    """The innermost function of the package that is being run, or of who is called by none."""
    frame, other = sys._getframe(2), None
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PARTS):
            return f"{path.removeprefix(ROOT)}: {frame.f_code.co_name}"
        if other is None and "/torch/" not in path and path != __file__:
            other = f"{Path(path).name}: {frame.f_code.co_name}"
        frame = frame.f_back
    return other


def main() -> None:
    """Runs a script on the card."""
    del sys.argv[0]
    with PretendCard() as card:
        runpy.run_path(sys.argv[0], run_name="__main__")
    for notes in ("waits", "from_host", "on_host"):
        print(f"{notes}:")
        for place, times in getattr(card, notes).most_common():
            print(f"{times:8} {place}")


if __name__ == "__main__":
    main()
