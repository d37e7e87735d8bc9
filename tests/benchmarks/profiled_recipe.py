"""Times the updates of a recipe and shows where their time goes.

    python tests/benchmarks/profiled_recipe.py WARM TIMED recipes/sac_glam.py key=value ...

After WARM steps of the optimizer, TIMED steps are timed, collection between them included. One
more is profiled, and the run ends. The recipe itself is unchanged.
"""

from __future__ import annotations

import functools
import runpy
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile
from torchrl._utils import timeit

from torchrl_glam.objectives import SharedTrunkOptimizer


class Watch:
    """Counts an optimizer's steps: times some, profiles others, and ends the run."""

    def __init__(self, warm: int, timed: int) -> None:
        self.warm, self.timed, self.number = warm, timed, 0
        self.on_gpu = torch.cuda.is_available()

    def before_step(self) -> None:
        if self.number == self.warm:
            timeit.erase()
            if self.on_gpu:
                torch.cuda.reset_peak_memory_stats()
            self.started = self._now()
        elif self.number == self.warm + self.timed:
            self._report()
            kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu
            self.profiler = profile(activities=kinds)
            self.profiler.start()
        elif self.number == self.warm + self.timed + 1:
            self._now()
            self.profiler.stop()
            order = "self_cuda_time_total" if self.on_gpu else "self_cpu_time_total"
            print(self.profiler.key_averages().table(sort_by=order, row_limit=20))
            sys.exit()
        self.number += 1

    def _report(self) -> None:
        seconds = (self._now() - self.started) / self.timed
        print(f"{seconds:.3f} s an update; {3600 / seconds:,.0f} updates an hour")
        for name, spent in timeit.todict().items():
            print(f"  {name}: {spent:.4f} s")
        if self.on_gpu:
            print(f"  peak memory: {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")

    def _now(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()


def main() -> None:
    warm, timed, recipe, *overrides = sys.argv[1:]
    watch, step = Watch(int(warm), int(timed)), SharedTrunkOptimizer.step

    @functools.wraps(step)
    def watched(*args, **kwargs):
        watch.before_step()
        return step(*args, **kwargs)

    SharedTrunkOptimizer.step = watched
    sys.argv = [recipe, *overrides]
    runpy.run_path(recipe, run_name="__main__")


if __name__ == "__main__":
    main()
