"""What scoring all candidates of a state costs, by method: a table per language model.

    python tests/benchmarks/bench_scoring.py                     # all models, forward and training
    python tests/benchmarks/bench_scoring.py --objects 6 32      # 8 and 34 candidates a state
    python tests/benchmarks/bench_scoring.py --models t5-small --no-train --clock cpu
    python tests/benchmarks/bench_scoring.py --models tiny --batch 4 --repeats 1     # seconds
    python tests/benchmarks/bench_scoring.py --device cuda --dtype bfloat16 --batch 256

Random weights on architectures of the named sizes, prompts of 86 to 94 tokens, as many candidates
as objects plus two. Methods:

- naive: one forward per candidate, the prompt read again each time;
- repeat: the prompt read once, its encoding (or key-value cache) repeated per candidate;
- trie: shared prefixes, log-likelihoods alone; and trie + embeddings: the critic's inputs as well;
- floor: prompts alone, no candidates at all.

Training is forward and backward with LoRA (rank 16 on queries and values). Methods take turns, and
the fastest of their runs counts, so that other work on the machine does least harm; --clock cpu
counts processor time instead of the clock on the wall. "MiB" is the most memory held above what
weights and inputs take. Scores of the methods are compared with each other.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from scoring_methods import METHODS, MODELS, build, make_case, run
from torch import Tensor

MODES = ("forward", "training")


@dataclass
class Cell:
    """One method, forward or training: seconds of each run, and what one run holds."""

    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0
    scores: Tensor | None = None

    @property
    def best(self) -> float:
        return min(self.seconds)


def measure(arguments: argparse.Namespace, name: str, objects: int, train: bool) -> dict[str, Cell]:
    case = make_case(arguments, name, objects, train)
    if not train:
        print(f"\n{name}: {case.describe()}")
    cells = {method: Cell() for method in arguments.methods}
    for method, cell in cells.items():
        run(method, case, train)  # warm
        with peak_memory(arguments.device, cell):
            scores = run(method, case, train)
        cell.scores = None if scores is None else scores.float().cpu()
    for _ in range(arguments.repeats):
        for method, cell in cells.items():
            if sum(cell.seconds) < arguments.seconds:
                cell.seconds.append(timed(arguments, lambda m=method: run(m, case, train)))
            case.trunk.zero_grad()
    builds = [timed(arguments, lambda: build(case)) for _ in range(arguments.repeats)]
    return cells | {"build": Cell(seconds=builds)}


def timed(arguments: argparse.Namespace, work: Callable[[], object]) -> float:
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    synchronise(arguments.device)
    start = clock()
    work()
    synchronise(arguments.device)
    return clock() - start


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


@contextmanager
def peak_memory(device: str, cell: Cell) -> Iterator[None]:
    """Sets ``cell.memory`` to the MiB that are held at most, above those held before."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield
        cell.memory = (torch.cuda.max_memory_allocated() - before) / 2**20
        return
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # Linux: the peak of the resident set starts anew
    before = resident("VmRSS")
    yield
    cell.memory = resident("VmHWM") - before


def resident(entry: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(entry)) / 1024


def table(arguments: argparse.Namespace, name: str, objects: int) -> None:
    modes = MODES if arguments.train else MODES[:1]
    cells = {mode: measure(arguments, name, objects, mode == "training") for mode in modes}
    heads = ["prompts/s", "of floor", "MiB"]
    print(f"{'':18}" + "".join(f"{mode:>{10 * len(heads)}}" for mode in modes))
    print(f"{'':18}" + "".join(f"{head:>10}" for head in heads) * len(modes))
    for method in arguments.methods:
        line = f"{method:18}"
        for mode in modes:
            cell, floor = cells[mode][method], cells[mode]["floor"]
            line += f"{arguments.batch / cell.best:10.2f}{floor.best / cell.best:10.2f}"
            line += f"{cell.memory:10.0f}"
        print(line)
    share = cells["forward"]["build"].best / cells["forward"]["trie"].best
    print(f"building the tries: {share:.2%} of the trie's forward")
    compare_scores(arguments, {m: cells["forward"][m].scores for m in arguments.methods})


def compare_scores(arguments: argparse.Namespace, scores: dict[str, Tensor | None]) -> None:
    for method, score in scores.items():
        if score is not None:
            error = float((score - scores["trie"]).abs().max())
            if error > arguments.tolerance:
                raise AssertionError(f"{method} differs from trie by {error:.2g} nats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = ["t5-small", "flan-t5-base", "qwen2-100m"]
    parser.add_argument("--models", nargs="+", default=models, choices=MODELS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--batch", type=int, default=32, help="states in a batch")
    parser.add_argument("--objects", type=int, nargs="+", default=[6], help="candidates: two more")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs; the fastest counts")
    parser.add_argument("--seconds", type=float, default=60, help="after which no run is repeated")
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--four-bit", action="store_true", help="weights in 4 bits, and adapters")
    parser.add_argument("--pad", type=int, default=8, help="pad_to_multiple_of, except on a CPU")
    parser.add_argument("--no-train", dest="train", action="store_false")
    arguments = parser.parse_args()
    chosen = {*arguments.methods, "trie", "floor"}
    arguments.methods = [method for method in METHODS if method in chosen]
    # Log-likelihoods of random weights are hundreds of nats.
    arguments.tolerance = 1e-2 if arguments.dtype == "float32" else float("inf")
    torch.set_num_threads(arguments.threads)
    print(
        f"{arguments.batch} states, {arguments.threads} threads, {arguments.device}, "
        f"{arguments.dtype}, {arguments.clock} clock, torch {torch.__version__}"
    )
    for name in arguments.models:
        for objects in arguments.objects:
            table(arguments, name, objects)


if __name__ == "__main__":
    main()
