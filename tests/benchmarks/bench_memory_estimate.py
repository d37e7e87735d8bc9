"""How far the estimate of memory is from what an update takes: a line for each language model.

    python tests/benchmarks/bench_memory_estimate.py
    python tests/benchmarks/bench_memory_estimate.py --models tiny --states 4    # a smoke run

Random weights on architectures of the named sizes, adapters of rank 16 or all weights, one SAC
update of so many states in one pass, in a process of its own. "measured" is the most memory that
the process held above what the interpreter and the libraries hold (on a GPU, that tensors took).
"""

import argparse
import tempfile

import torch
from bench_update import in_process
from scoring_methods import MODELS, adapters

from torchrl_glam.training.memory_estimate import PassShape, estimate_memory

from flan_t5 import make_tokenizer  # isort: skip (scoring_methods adds the folder of tests)

TOLERANCE = 0.15


def estimate(arguments: argparse.Namespace, name: str, lora: bool) -> float:
    """MiB that an update should take."""
    with torch.device("meta"):
        model = MODELS[name]()
    prompts, nodes = 90, 27  # of make_states, see bench_scoring.py
    shape = PassShape(arguments.states, prompts, arguments.objects + 2, 5)
    assert shape.nodes == nodes, shape.nodes
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        arguments.tokenizer.save_pretrained(folder)
        found = estimate_memory(
            folder,
            shape,
            lora=adapters(model) if lora else None,
            separate=False,
            several_passes=False,
        )
    print(f"{name}, {'adapters' if lora else 'all weights'}: estimated {found}", end="; ")
    return found.total / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = ["t5-small", "flan-t5-base", "qwen2-100m"]
    parser.add_argument("--models", nargs="+", default=sizes, choices=MODELS)
    parser.add_argument("--states", type=int, default=32)
    arguments = parser.parse_args()
    settings = {"device": "cpu", "dtype": "float32", "four_bit": False, "objects": 6}
    settings |= {"repeats": 1, "threads": 1, "tokenizer": make_tokenizer()}
    vars(arguments).update(settings)
    worst = 0.0
    for name in arguments.models:
        for lora in (True, False):
            expected = estimate(arguments, name, lora)
            measured = in_process(arguments, name, "shared", lora)["above"]
            error = expected / measured - 1
            worst = max(worst, abs(error))
            print(
                f"measured {measured:.0f} MiB, estimate {expected:.0f} ({error:+.1%})", flush=True
            )
    print(f"largest error {worst:.1%}, at most {TOLERANCE:.0%} wanted")


if __name__ == "__main__":
    main()
