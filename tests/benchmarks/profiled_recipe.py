"""Runs a recipe, times its rounds and profiles two of them: where the time goes.

    python tests/benchmarks/profiled_recipe.py OUT.json WARM TIMED recipes/sac_glam.py key=value ...

The recipe runs as it is; only its optimizer's steps are counted from outside. After WARM steps,
TIMED ones are timed, collection between them included; then two rounds are profiled, what was found
is written to OUT.json, and the recipe ends there.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torchrl._utils import timeit

from torchrl_glam.objectives import SharedTrunkOptimizer

# Kinds of kernels by parts of their names, the first that fits.
KINDS = {
    "4-bit": ("dequantize", "kgemm_4bit", "quantize"),
    "attention": ("flash", "fmha", "attention", "softmax"),
    "matrix products": ("gemm", "cutlass", "nvjet", "xmma", "splitk", "gemv", "matmul"),
    "copies": ("memcpy", "memset", "copy"),
    "reductions": ("reduce", "norm"),
    "optimizer": ("adam", "multi_tensor"),
    "indexing": ("index", "gather", "scatter", "sort", "scan", "unique"),
    "elementwise": ("elementwise", "vectorized", "triton"),
}


def busy_share(intervals: Iterable[tuple[int, int]], begin: int, end: int) -> float:
    """Share of a time in which at least one of the intervals runs.

    Args:
        intervals: begin and end of each, in any order.
        begin, end: of the time, in the same unit.

    Examples:
        >>> busy_share([(0, 10), (5, 20), (40, 70)], 0, 50)
        0.6
    """
    busy, reached = 0, begin
    for first, last in sorted(intervals):
        first, last = max(first, reached), min(last, end)
        if last > first:
            busy, reached = busy + last - first, last
    return busy / (end - begin)


def kind_of(kernel: str) -> str:
    """What sort of work a kernel does, by its name.

    Examples:
        >>> kind_of("void cutlass::Kernel2<cutlass_80_tensorop_bf16>"), kind_of("foo")
        ('matrix products', 'other')
    """
    name = kernel.lower()
    return next((kind for kind, parts in KINDS.items() if any(p in name for p in parts)), "other")


def summarise(profiler: profile, updates: int) -> dict:
    """Busy share of the GPU, its time by kind, and what the host waited for, in ms an update."""
    events = [
        (e.device_type(), e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in profiler.profiler.kineto_results.events()
        # Spans on the GPU's line that are no work.
        if not getattr(e, "is_user_annotation", bool)()
    ]
    kernels = [e for e in events if e[0] == DeviceType.CUDA]
    waits = Counter()
    for _, name, first, last in events:
        if name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"):
            waits["number"] += 1
            waits["ms"] += (last - first) / 1e6 / updates
    out = {"host waits an update": waits["number"] / updates, "host waits, ms": waits["ms"]}
    if kernels:
        begin, end = min(e[2] for e in events), max(e[3] for e in events)
        out["GPU busy"] = busy_share([e[2:] for e in kernels], begin, end)
        out["kernels an update"] = len(kernels) / updates
    spent = kernels or [e for e in events if e[1].startswith("aten::")]
    kinds, longest = Counter(), Counter()
    for _, name, first, last in spent:
        kinds[kind_of(name) if kernels else name] += (last - first) / 1e6 / updates
        longest[name[:100]] += (last - first) / 1e6 / updates
    out["ms an update by kind"] = dict(kinds.most_common(8))
    out["longest kernels, ms"] = dict(longest.most_common(12))
    return out


class Watch:
    """Counts an optimizer's steps: times some, profiles others, and ends the run."""

    def __init__(self, warm: int, timed: int, out: Path) -> None:
        self.warm, self.timed, self.profiled, self.out = warm, timed, 4, out
        self.number, self.started, self.found = 0, 0.0, {}

    def before(self) -> None:
        """To be called at the begin of each step."""
        on_card = torch.cuda.is_available()
        if self.number == self.warm:
            timeit.erase()
            if on_card:
                torch.cuda.reset_peak_memory_stats()
            self.started = self._now()
        elif self.number == self.warm + self.timed:
            self.found["seconds an update"] = (self._now() - self.started) / self.timed
            parts = {k.removeprefix("time/"): v for k, v in timeit.todict().items()}
            self.found["timed parts, s"] = parts
            if on_card:
                self.found["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
            kinds = [ProfilerActivity.CUDA] if on_card else [ProfilerActivity.CPU]
            self.profiler = profile(activities=kinds)
            self.profiler.start()
        elif self.number == self.warm + self.timed + self.profiled:
            self._now()
            self.profiler.stop()
            self.found |= summarise(self.profiler, self.profiled)
            self.out.write_text(json.dumps(self.found))
            sys.exit()
        self.number += 1

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def main() -> None:
    out, warm, timed, recipe, *overrides = sys.argv[1:]
    watch, step = Watch(int(warm), int(timed), Path(out)), SharedTrunkOptimizer.step

    @functools.wraps(step)
    def watched(*args, **kwargs):
        watch.before()
        return step(*args, **kwargs)

    SharedTrunkOptimizer.step = watched
    sys.argv = [recipe, *overrides]
    runpy.run_path(recipe, run_name="__main__")


if __name__ == "__main__":
    main()
