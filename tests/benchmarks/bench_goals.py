"""How long goal samplers take to draw from a million goals, and to hear of episodes.

Run: python tests/benchmarks/bench_goals.py

Prints the milliseconds of a call on one thread, the median of several, for 32 environments.
"""

import statistics
import time

import torch

from torchrl_glam.goals import KindProgressGoals, ProgressGoals, UniformGoals

GOALS, ENVS, CALLS = 1_000_000, 32, 50


def milliseconds(call):
    taken = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken)


def main():
    torch.set_num_threads(1)
    texts = [f"goal {number}" for number in range(GOALS)]
    kinds = torch.arange(GOALS) % 5
    samplers = [
        UniformGoals(texts, kinds=kinds, shares=[0.2] * 5),
        ProgressGoals(texts),
        KindProgressGoals(texts, kinds=kinds),
    ]
    draw = torch.Generator().manual_seed(0)
    for sampler in samplers:

        def tell(sampler=sampler):
            ids = torch.randint(1000, (ENVS,), generator=draw)
            sampler.update(ids, torch.randint(2, (ENVS,), generator=draw))

        told, drawn = milliseconds(tell), milliseconds(lambda s=sampler: s.sample(ENVS))
        print(f"{type(sampler).__name__:20} sample {drawn:7.2f} ms, update {told:7.2f} ms")


if __name__ == "__main__":
    main()
