"""What scoring all candidates of a state costs, by method: a table per language model.

    python tests/benchmarks/bench_scoring.py                     # all models, forward and training
    python tests/benchmarks/bench_scoring.py --models t5-small --objects 32  # 34 candidates a state
    python tests/benchmarks/bench_scoring.py --models tiny --batch 4 --repeats 1     # seconds
    python tests/benchmarks/bench_scoring.py --device cuda --dtype bfloat16 --batch 256
    python tests/benchmarks/bench_scoring.py --prompts 64 128 256 512 1024 --no-train  # a memory

Random weights on architectures of the named sizes, prompts of 86 to 94 tokens, as many candidates
as objects plus two. With --prompts, prompts have that many tokens, as with a memory of earlier
steps, and a last table tells how many times the seconds of the trie the naive way takes. Methods:

- naive: one forward per candidate, the prompt read again each time;
- trie: shared prefixes, log-likelihoods alone; and trie + embeddings: the critic's inputs as well;
- floor: prompts alone, no candidates at all.

Training is forward and backward with LoRA (rank 16 on queries and values). Methods take turns, and
the fastest of their runs counts, so that other work on the machine does least harm. "MiB" is the
most memory held above what weights and inputs take. Scores of the methods are compared with each
other.
"""

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path

import torch
from scoring_methods import METHODS, MODELS, make_case, memory_of, run


def measure(arguments: argparse.Namespace, name: str, train: bool) -> dict[str, tuple]:
    """Seconds and MiB of each method, forward or training."""
    case, device = make_case(arguments, name, train), arguments.device
    scores, memory, seconds = {}, {}, defaultdict(list)
    for method in METHODS:
        run(method, case, train)  # warm
        scores[method], memory[method] = memory_of(lambda m=method: run(m, case, train), device)
    for method in ("naive", "trie + embeddings"):
        error = float((scores[method] - scores["trie"]).abs().max())
        # Log-likelihoods of random weights are hundreds of nats.
        if arguments.dtype == "float32" and error > 1e-2:
            raise AssertionError(f"{method} differs from trie by {error:.2g} nats")
    for _ in range(arguments.repeats):
        for method in METHODS:
            start = time.perf_counter()
            run(method, case, train)
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[method].append(time.perf_counter() - start)
    return {method: (min(seconds[method]), memory[method]) for method in METHODS}


def table(arguments: argparse.Namespace, name: str) -> dict[str, tuple[float, float]]:
    """Prints what a model's methods cost; seconds of naive and trie by mode."""
    modes = ["forward", "training"] if arguments.train else ["forward"]
    cells = {mode: measure(arguments, name, mode == "training") for mode in modes}
    print(f"\n{name}" + (f", prompts of {arguments.prompt} tokens" if arguments.prompt else ""))
    heads = ["prompts/s", "of floor", "MiB"]
    print(f"{'':18}" + "".join(f"{mode:>{10 * len(heads)}}" for mode in modes))
    print(f"{'':18}" + "".join(f"{head:>10}" for head in heads) * len(modes))
    for method in METHODS:
        line = f"{method:18}"
        for cell in cells.values():
            (seconds, memory), (floor, _) = cell[method], cell["floor"]
            line += f"{arguments.batch / seconds:10.2f}{floor / seconds:10.2f}{memory:10.0f}"
        print(line)
    return {mode: (cell["naive"][0], cell["trie"][0]) for mode, cell in cells.items()}


def compare_prompts(arguments: argparse.Namespace, name: str) -> None:
    """A table for each length of the prompts, and one of the seconds of naive and trie."""
    head = ["model", "tokens", "mode", "naive_seconds", "trie_seconds", "ratio"]
    rows = []
    for tokens in arguments.prompts:
        arguments.prompt = tokens
        for mode, (naive, trie) in table(arguments, name).items():
            numbers = [f"{number:.4g}" for number in (naive, trie, naive / trie)]
            rows.append([name, tokens, mode, *numbers])
    print()
    for row in (head, *rows):
        print("".join(f"{cell:>15}" for cell in row))
    if arguments.out:
        with open(arguments.out, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows(rows if file.tell() else [head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = ["t5-small", "flan-t5-base", "qwen2-100m"]
    parser.add_argument("--models", nargs="+", default=models, choices=MODELS)
    parser.add_argument("--batch", type=int, default=32, help="states in a batch")
    parser.add_argument("--objects", type=int, default=6, help="candidates are two more")
    parser.add_argument("--prompts", nargs="+", type=int, help="tokens of a prompt")
    parser.add_argument("--out", type=Path, help="CSV to which --prompts adds its seconds")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs; the fastest counts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--four-bit", action="store_true", help="weights in 4 bits, and adapters")
    parser.add_argument("--no-train", dest="train", action="store_false")
    arguments = parser.parse_args()
    print(
        f"{arguments.batch} states, {torch.get_num_threads()} threads, {arguments.device}, "
        f"{arguments.dtype}, torch {torch.__version__}"
    )
    arguments.prompt = None
    for name in arguments.models:
        (compare_prompts if arguments.prompts else table)(arguments, name)


if __name__ == "__main__":
    main()
