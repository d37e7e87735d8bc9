"""Times the updates of a recipe, and shows how their time is divided.

    python tests/benchmarks/timed_recipe.py WARM TIMED recipes/sac_glam.py key=value ...

After WARM steps of the optimizer, TIMED steps are timed, collection between them included, and the
run ends. The recipe itself is unchanged.
"""

import functools
import itertools
import runpy
import sys
import time

import torch
from torchrl._utils import timeit

from torchrl_glam.objectives import SharedTrunkOptimizer


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def report(seconds: float) -> None:
    print(f"{seconds:.3f} s an update; {3600 / seconds:,.0f} updates an hour")
    for name, spent in timeit.todict().items():
        print(f"  {name}: {spent:.4f} s")
    if torch.cuda.is_available():
        print(f"  peak memory: {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")


def main() -> None:
    warm, timed, recipe, *overrides = sys.argv[1:]
    step, calls, started = SharedTrunkOptimizer.step, itertools.count(), 0.0

    @functools.wraps(step)
    def watched(*args, **kwargs):
        nonlocal started
        number = next(calls)
        if number == int(warm):
            timeit.erase()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            started = now()
        elif number == int(warm) + int(timed):
            report((now() - started) / int(timed))
            sys.exit()
        return step(*args, **kwargs)

    SharedTrunkOptimizer.step = watched
    sys.argv = [recipe, *overrides]
    runpy.run_path(recipe, run_name="__main__")


if __name__ == "__main__":
    main()
