"""How many steps Playground-Text makes per second.

Run: python tests/benchmarks/bench_playground.py [--seconds 5]

Random admissible actions through ``env.step_and_maybe_reset``, resets included, in one process on
one thread. A step is one environment's step; a batched step makes ``num_envs`` of them. With text,
goal, observation and candidate actions are bytes, and hindsight goals are ids in the list of goal
texts; with tokens, all four go through ``TokenizeText`` too, which mostly waits for the tokenizer
on observations never seen before. Each measurement is cut into windows, and the table shows the
best, which is what the machine can do undisturbed, and the median. LittleZoo, the text successor of
Playground, makes about 1,700 steps a second on one core of a two-core machine; the last column
compares the best with it. The last row is the plain-Python implementation that the tests compare
with, one environment at a time.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.models import load_tokenizer
from torchrl_glam.text import TokenizeText, token_lengths

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import reference  # noqa: E402  (the tests' second implementation)

LITTLE_ZOO = 1_700
TARGETS = {(32, "text"): 35_000, (4096, "no text"): 1_000_000}


def measure(make_steps, seconds):
    """Returns steps per second in the best and in the median window of some 0.2 seconds.

    Args:
        make_steps: makes some steps and returns how many.
        seconds: how long to go on.
    """
    rates, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < 0.2:
            steps += make_steps()
        rates.append(steps / (time.perf_counter() - start))
    return max(rates), statistics.median(rates)


def batched_steps(num_envs, form, device):
    base = env = PlaygroundTextEnv(num_envs, text=form != "no text", seed=0, device=device)
    if form == "tokens":
        tokenizer = load_tokenizer("tiny")
        env = TransformedEnv(base, TokenizeText(tokenizer, **token_lengths(base, tokenizer)))
    state = env.reset()

    def make_steps():
        nonlocal state
        for _ in range(16):  # an episode's length, so that each call has as many resets
            state = env.step_and_maybe_reset(base.rand_action(state))[1]
        return 16 * num_envs

    for _ in range(4):  # warm up, and let the ends of episodes drift apart
        make_steps()
    return make_steps


def reference_episodes():
    rng = random.Random(0)
    goals = reference.all_goals("train")
    texts = list(goals)
    scenes = PlaygroundTextEnv(256, text=False, seed=0).reset()["state", "objects"].tolist()

    def make_steps():
        objects = [OBJECTS[item] for item in rng.choice(scenes)]
        episode, done = reference.Episode(rng.choice(texts), objects, goals, 16), False
        actions = reference.list_actions(objects)
        while not done:
            admissible = [a for a in actions if reference.is_admissible(episode.state, a)]
            _, terminated, truncated, _ = episode.step(rng.choice(admissible))
            reference.describe(objects, episode.state)
            done = terminated or truncated
        return episode.steps

    return make_steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':>20} {'steps/s':>12} {'median':>12} {'target':>10} {'LittleZoo':>10}")

    def show(name, make_steps, target=None):
        best, median = measure(make_steps, args.seconds)
        goal = f"{target:,}" if target else "-"
        print(f"{name:>20} {best:12,.0f} {median:12,.0f} {goal:>10} {best / LITTLE_ZOO:9,.1f}x")

    forms = ("text", "tokens", "no text")
    for num_envs, form in [*((32, form) for form in forms), (4096, "text"), (4096, "no text")]:
        make_steps = batched_steps(num_envs, form, args.device)
        show(f"{num_envs} envs, {form}", make_steps, TARGETS.get((num_envs, form)))
    show("plain Python, 1 env", reference_episodes())


if __name__ == "__main__":
    main()
