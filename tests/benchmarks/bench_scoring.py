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
- packed: candidates in one sequence, nothing shared between them;
- trie: shared prefixes, log-likelihoods alone; and trie + embeddings: the critic's inputs as well;
- compiled: trie + embeddings under torch.compile, with shapes padded to buckets (--compile);
- floor: prompts alone, no candidates at all.

Training is forward and backward with LoRA (rank 16 on queries and values). Methods take turns, and
the fastest of their runs counts, so that other work on the machine does least harm; --clock cpu
counts processor time instead of the clock on the wall. "MiB" is the most memory held above what
weights and inputs take. Scores of the methods are compared with each other. A prompt with a trie is
more work than a prompt alone, so what is said of the floor is also said by the operation.

On a GPU also: "TFLOP/s" of the matrix products that were executed, and "useful", those that the
trie needs without any padding, as a share of the rate of one large bfloat16 product; and, from the
passes of one update and of one step, the time that 400,000 steps of the paper would take
(32 environments, 25,000 updates of 256; Gaven et al., 2024, Figure 2).
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from scoring_methods import METHODS, MODELS, Case, build, make_case, run
from tensordict import TensorDict
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from torchrl_glam.models import CandidateTrunk

MODES = ("forward", "training")
PAPER_STEPS, PAPER_UPDATES = 12_500, 25_000


@dataclass
class Cell:
    """One method, forward or training: seconds of each run, and what one run holds and computes."""

    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0
    flops: int = 0
    scores: Tensor | None = None

    @property
    def best(self) -> float:
        return min(self.seconds)


def measure(
    arguments: argparse.Namespace, name: str, objects: int, train: bool, case: Case | None = None
) -> dict[str, Cell]:
    case = make_case(arguments, name, objects, train) if case is None else case
    if not train:
        print(f"\n{name}: {case.describe()}")
    cells = {method: Cell() for method in arguments.methods}
    for method, cell in cells.items():
        run(method, case, train)  # warm, and compiled
        with peak_memory(arguments.device, cell):
            scores = run(method, case, train)
        cell.scores = None if scores is None else scores.float().cpu()
        with FlopCounterMode(display=False) as counter:
            run("trie + embeddings" if method == "compiled" else method, case, train)
        cell.flops = counter.get_total_flops()
    for _ in range(arguments.repeats):
        for method, cell in cells.items():
            if sum(cell.seconds) < arguments.seconds:
                cell.seconds.append(timed(arguments, lambda m=method: run(m, case, train)))
            case.trunk.zero_grad()
    builds = [timed(arguments, lambda: build(case)) for _ in range(arguments.repeats)]
    cells["build"] = Cell(seconds=builds)
    if arguments.device != "cpu":
        cells["useful"] = Cell(flops=useful_flops(case, train))
        if train:
            project(arguments, name, case)
    return cells


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


def useful_flops(case: Case, train: bool, sample: int = 16) -> int:
    """Of the batch, read one state at a time, so without padding."""
    sample = min(sample, len(case.states))
    with FlopCounterMode(display=False) as counter:
        for row in range(sample):
            run("trie", case._replace(states=case.states[row : row + 1]), train)
    return counter.get_total_flops() * len(case.states) // sample


def project(arguments: argparse.Namespace, name: str, case: Case) -> None:
    """Wall-clock of the paper's run, from the passes of the language model."""
    for label, trunk in {"eager": case.trunk, "compiled": case.compiled}.items():
        if trunk is None:
            continue

        best = {}
        for work in (step, update):
            for _ in range(2):
                work(trunk, case.states)
            runs = [
                timed(arguments, lambda: work(trunk, case.states))  # noqa: B023
                for _ in range(arguments.repeats)
            ]
            best[work.__name__] = min(runs)
        hours = (PAPER_STEPS * best["step"] + PAPER_UPDATES * best["update"]) / 3600
        print(
            f"{name}, {label}: a step of 32 environments {best['step'] * 1e3:.1f} ms, an update of "
            f"{len(case.states)} {best['update'] * 1e3:.1f} ms; 12,500 steps and 25,000 updates: "
            f"{hours:.2f} hours of language model (paper: about 20 hours on four V100)"
        )


def step(trunk: CandidateTrunk, states: TensorDict) -> None:
    """The pass by which 32 environments act."""
    with torch.no_grad():
        trunk(states[:32].clone(), only="scores")


def update(trunk: CandidateTrunk, states: TensorDict) -> None:
    """The passes of one update: next states twice, states with gradient."""
    with torch.no_grad():
        trunk(states.clone(), only="scores")
        trunk(states.clone(), only="embeddings")
    out = trunk(states.clone())
    (out["log_likelihood"].sum() + out["action_embedding"].float().sum()).backward()
    trunk.zero_grad()


def matrix_rate(arguments: argparse.Namespace) -> float:
    """FLOP/s of one large product in the benchmark's type."""
    size = 8192
    a = torch.randn(size, size, device=arguments.device, dtype=getattr(torch, arguments.dtype))
    times = [timed(arguments, lambda: [a @ a for _ in range(10)]) / 10 for _ in range(4)]
    return 2 * size**3 / min(times)


def table(arguments: argparse.Namespace, name: str, objects: int, rate: float) -> None:
    modes = MODES if arguments.train else MODES[:1]
    cells = {mode: measure(arguments, name, objects, mode == "training") for mode in modes}
    heads = ["prompts/s", "of floor", "MiB"] + ["TFLOP/s", "useful"] * bool(rate)
    print(f"{'':18}" + "".join(f"{mode:>{10 * len(heads)}}" for mode in modes))
    print(f"{'':18}" + "".join(f"{head:>10}" for head in heads) * len(modes))
    for method in arguments.methods:
        line = f"{method:18}"
        for mode in modes:
            cell, floor = cells[mode][method], cells[mode]["floor"]
            line += f"{arguments.batch / cell.best:10.2f}{floor.best / cell.best:10.2f}"
            line += f"{cell.memory:10.0f}"
            if rate:
                line += f"{cell.flops / cell.best / 1e12:10.1f}"
                useful = cells[mode]["useful"].flops / cell.best / rate
                line += f"{useful:10.2%}" if method != "floor" else f"{'':10}"
        print(line)
    share = cells["forward"]["build"].best / cells["forward"]["trie"].best
    print(f"building the tries: {share:.2%} of the trie's forward")
    for mode in modes:
        summary(mode, {method: cells[mode][method] for method in arguments.methods})
    compare_scores(arguments, {m: cells["forward"][m].scores for m in arguments.methods})


def summary(mode: str, cells: dict[str, Cell]) -> None:
    best = {method: cell.best for method, cell in cells.items()}
    rates = {method: cell.flops / cell.best for method, cell in cells.items()}
    parts = [
        f"{best[other] / best['trie']:.2f} times {other}"
        for other in ("naive", "repeat", "packed")
        if other in best
    ]
    parts.append(f"{best['floor'] / best['trie']:.2f} of the floor")
    parts.append(f"at {rates['trie'] / rates['floor']:.2f} of its operations a second")
    line = f"{mode}: trie {', '.join(parts)}"
    if "trie + embeddings" in best:
        line += f"; with embeddings {best['trie'] / best['trie + embeddings']:.2f} of that"
    print(line)


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
    parser.add_argument("--compile", action="store_true", help="time the compiled trie too")
    parser.add_argument("--pad", type=int, default=8, help="pad_to_multiple_of, except on a CPU")
    parser.add_argument("--no-train", dest="train", action="store_false")
    arguments = parser.parse_args()
    chosen = {*arguments.methods, "trie", "floor"} - (
        {"compiled"} if not arguments.compile else set()
    )
    arguments.methods = [method for method in METHODS if method in chosen]
    # Log-likelihoods of random weights are hundreds of nats.
    arguments.tolerance = 1e-2 if arguments.dtype == "float32" else float("inf")
    torch.set_num_threads(arguments.threads)
    rate = 0.0 if arguments.device == "cpu" else matrix_rate(arguments)
    print(
        f"{arguments.batch} states, {arguments.threads} threads, {arguments.device}, "
        f"{arguments.dtype}, {arguments.clock} clock, torch {torch.__version__}"
        + f"; one large product: {rate / 1e12:.0f} TFLOP/s"
        * bool(rate)
    )
    for name in arguments.models:
        for objects in arguments.objects:
            table(arguments, name, objects, rate)


if __name__ == "__main__":
    main()
