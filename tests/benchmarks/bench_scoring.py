"""What scoring all candidates of a state costs, by method: one table per language model.

    python tests/benchmarks/bench_scoring.py                 # all models, forward and training
    python tests/benchmarks/bench_scoring.py --models t5-small --no-train --repeats 3
    python tests/benchmarks/bench_scoring.py --objects 32 --states 8   # 34 candidates a state
    python tests/benchmarks/bench_scoring.py --models tiny --states 4  # a smoke run: seconds

Random weights on architectures of the named sizes, prompts of 86 to 94 tokens, as many candidates
as objects plus two. Methods:

- naive: one forward per candidate, the prompt read again each time;
- repeat: the prompt read once, its encoding (or key-value cache) repeated per candidate;
- packed: candidates in one sequence, nothing shared between them (enters the model as a trie does);
- trie: shared prefixes, log-likelihoods alone; and trie + embeddings: the critic's inputs as well;
- floor: prompts alone, no candidates at all.

Every cell runs in a process of its own. Training is forward and backward with LoRA (rank 16 on
queries and values). "MiB" is the most memory held above what weights and inputs take. Scores of
the methods are compared with each other before they are timed.
"""

import argparse
import multiprocessing
import statistics
import time

import torch
from scoring_methods import METHODS, make_case, run


def measure(arguments: argparse.Namespace, name: str, method: str, train: bool) -> dict:
    """Prompts per second and peak memory of one cell of the table."""
    torch.set_num_threads(arguments.threads)
    case = make_case(arguments, name, train)
    times, before = [], held_memory(arguments.device)
    for _ in range(arguments.repeats + 1):
        start = time.perf_counter()
        scores = run(method, case, train)
        if arguments.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        case.trunk.zero_grad()
    return {
        "speed": arguments.states / statistics.median(times[1:]),
        "memory": (peak_memory(arguments.device) - before) / 2**20,
        "scores": None if scores is None else scores.float().cpu().tolist(),
        "size": case.describe(),
    }


def held_memory(device: str) -> int:
    """Bytes held now."""
    if device != "cpu":
        return torch.cuda.memory_allocated()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


def peak_memory(device: str) -> int:
    """Most bytes ever held by this process."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def in_process(*arguments) -> dict:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def table(arguments: argparse.Namespace, name: str) -> None:
    modes = [False, True] if arguments.train else [False]
    cells = {m: [in_process(arguments, name, m, train) for train in modes] for m in METHODS}
    print(f"\n{name}: {cells['trie'][0]['size']}")
    print(f"{'':18}" + "".join(f"{mode:>36}" for mode in ("forward", "training")[: len(modes)]))
    print(f"{'':18}" + f"{'prompts/s':>12}{'of floor':>12}{'MiB':>12}" * len(modes))
    for method, row in cells.items():
        line = f"{method:18}"
        for cell, floor in zip(row, cells["floor"], strict=True):
            line += f"{cell['speed']:12.2f}{cell['speed'] / floor['speed']:12.2f}"
            line += f"{cell['memory']:12.0f}"
        print(line)
    for index, mode in enumerate(("forward", "training")[: len(modes)]):
        speed = {method: row[index]["speed"] for method, row in cells.items()}
        print(
            f"{mode}: trie {speed['trie'] / speed['naive']:.2f} times naive, "
            f"{speed['trie'] / speed['repeat']:.2f} times repeat, "
            f"{speed['trie'] / speed['floor']:.2f} of the floor; "
            f"with embeddings {speed['trie + embeddings'] / speed['trie']:.2f} of that"
        )
    reference = torch.tensor(cells["naive"][0]["scores"])
    for method, row in cells.items():
        if method != "floor":
            error = (torch.tensor(row[0]["scores"]) - reference).abs().max()
            if error > arguments.tolerance:
                raise AssertionError(f"{name}: {method} differs from naive by {error:.2g} nats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = ["t5-small", "flan-t5-base", "qwen2-100m"]
    parser.add_argument("--models", nargs="+", default=models, choices=[*models, "tiny"])
    parser.add_argument("--states", type=int, default=32, help="prompts in a batch")
    parser.add_argument("--objects", type=int, default=6, help="candidates are two more")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--no-train", dest="train", action="store_false")
    arguments = parser.parse_args()
    arguments.tolerance = 1e-2 if arguments.dtype == "float32" else float("inf")
    print(
        f"{arguments.states} states, {arguments.threads} threads, {arguments.device}, "
        f"{arguments.dtype}, torch {torch.__version__}"
    )
    for name in arguments.models:
        table(arguments, name)


if __name__ == "__main__":
    main()
