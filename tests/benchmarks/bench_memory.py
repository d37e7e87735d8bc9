"""How the memory of a process grows with the shapes of its batches.

Run: python tests/benchmarks/bench_memory.py [--batches 240]

Batches of 16 to 128 states of the quickstart's environment go forward and backward through the
embedded model in bfloat16, on one thread, in a process of its own with and without
``bound_kernel_caches``. Printed are the MB resident after the first batch, which is the largest,
and as the others follow. Without the bound they rise until oneDNN and torch hold 1,024 kernels
each.
"""

import argparse
import os
import random
import subprocess
import sys

import torch
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.runs.memory import bound_kernel_caches
from torchrl_glam.text import TokenizeText


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def grow(batches):
    """Reads batches of random size and prints the memory held, twelve times on the way."""
    rng = random.Random(0)
    model, tokenizer = load_language_model("tiny", attention="eager")
    trunk = make_trunk(model, tokenizer, autocast=torch.bfloat16)
    env = PlaygroundTextEnv(128, 3, sequential=False, max_steps=10, seed=0)
    env = TransformedEnv(env, TokenizeText(tokenizer))
    state, held = env.reset(), []
    for batch in range(batches + 1):
        rows = rng.randint(16, 128) if batch else 128
        trunk(state[:rows].clone())["log_likelihood"].sum().backward()
        if batch % max(batches // 12, 1) == 0:
            held.append(resident())
        state = env.step_and_maybe_reset(env.rand_action(state))[1]
    print(" ".join(f"{value:.0f}" for value in held))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=240)
    parser.add_argument("--in-this-process", choices=("bounded", "default"))
    args = parser.parse_args()
    if args.in_this_process:
        torch.set_num_threads(1)
        if args.in_this_process == "bounded":
            bound_kernel_caches()
        grow(args.batches)
        return
    for kind in ("default", "bounded"):
        print(f"{kind:>8}:", end=" ", flush=True)
        command = [sys.executable, __file__, f"--batches={args.batches}"]
        subprocess.run(
            [*command, f"--in-this-process={kind}"], check=True, stderr=subprocess.DEVNULL
        )


if __name__ == "__main__":
    main()
