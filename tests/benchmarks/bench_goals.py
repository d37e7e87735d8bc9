"""What goal samplers cost for a large table.

Milliseconds to make one, to draw the goals of 32 episodes, and to take in 32 episodes that ended,
as a recipe does after each step.

    python tests/benchmarks/bench_goals.py                    # a million goals
    python tests/benchmarks/bench_goals.py --goals 8470 --out cost.csv

The mean of 200 calls is told, for a table of which a fifth has progress. LearnedProgressGoals
learns and predicts in one of eight updates, here from random embeddings of 256 numbers; the goals
of its pool have the progress that it predicts.
"""

import argparse
import csv
import timeit
from pathlib import Path

import torch

from torchrl_glam.goals import KindProgressGoals, LearnedProgressGoals, ProgressGoals, UniformGoals

EPISODES, CALLS, KINDS = 32, 200, 5


def milliseconds(call, calls: int = CALLS) -> float:
    """The mean time of some calls."""
    return round(1000 * timeit.timeit(call, number=calls) / calls, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--goals", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="CSV to write")
    arguments = parser.parse_args()
    size, kinds = arguments.goals, torch.arange(arguments.goals) % KINDS
    texts = [f"Goal {i}" for i in range(size)]
    embeddings = torch.randn(size, 256)
    make = {
        "uniform": lambda: UniformGoals(texts),
        "progress": lambda: ProgressGoals(texts, window=20),
        "kind_progress": lambda: KindProgressGoals(texts, kinds=kinds),
        "learned_progress": lambda: LearnedProgressGoals(texts, embeddings),
    }
    rows = [["sampler", "goals", "call", "milliseconds"]]
    for name, call in make.items():
        rows.append([name, size, "make", milliseconds(call, 1)])
        sampler, ids = call(), torch.arange(0, size, 5)
        for reached in (False, True):  # a goal that was missed and then reached has progress
            sampler.update(ids, torch.full_like(ids, reached))

        def update(sampler=sampler) -> None:
            ids = torch.randint(size, (EPISODES,))
            sampler.update(ids, ids % 2)

        while name != "uniform" and not sampler.progress.any():  # until predictions have changed
            update()
        rows.append([name, size, "sample", milliseconds(lambda s=sampler: s.sample(EPISODES))])
        rows.append([name, size, "update", milliseconds(update)])
    for name, goals, call, taken in rows:
        print(f"{name:18}{goals:>10}{call:>8}{taken:>14}")
    if arguments.out:
        with open(arguments.out, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
