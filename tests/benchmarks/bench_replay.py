"""How fast the replay buffer takes episodes in and gives batches out.

Run: python tests/benchmarks/bench_replay.py

32 environments, episodes of 16 steps that end one after another, transitions of the size of the
paper's configuration. Prints rows per second of processor time on one thread, for 20 and 100 goals
named in an episode.
"""

import time
from itertools import cycle

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import (
    GoalBalancedSampler,
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)

NUM_ENVS, EPISODE, CAPACITY, BATCH = 32, 16, 100_000, 256
GOAL, OBSERVATION, ACTIONS, ACTION = 12, 64, 8, 6  # tokens of each, and candidate actions
SLOTS = 32  # goals that can be named after one step
BUDGET = 3.0  # seconds per measurement


def collect(goals_per_episode, generator):
    """Four episodes of all environments as steps [32, 1]; two environments end one at each step."""
    shape = (NUM_ENVS, 4 * EPISODE)

    def tokens(*size):
        return torch.randint(1, 30_000, size, dtype=torch.int16, generator=generator)

    def state():
        return {
            "observation_tokens": tokens(*shape, OBSERVATION),
            "action_tokens": tokens(*shape, ACTIONS, ACTION),
            "action_mask": torch.ones(*shape, ACTIONS, dtype=torch.bool),
        }

    env = torch.arange(NUM_ENVS).unsqueeze(1)
    age = torch.arange(shape[1]) + env
    done = (age % EPISODE == EPISODE - 1).unsqueeze(-1)
    goal = tokens(NUM_ENVS, 4, GOAL)[env, age // EPISODE % 4]  # again, when it is repeated
    goals = {"goal_tokens": goal, "goal_kind": torch.zeros(shape, dtype=torch.int8)}
    # goals spread over the episode's steps, as many as asked for in all
    share = torch.rand(*shape, SLOTS, generator=generator)
    kind = torch.where(share < goals_per_episode / EPISODE / SLOTS, 0, -1).to(torch.int8)
    hindsight = {"goal_tokens": tokens(*shape, SLOTS, GOAL), "kind": kind}
    ends = {"done": done, "terminated": torch.zeros_like(done), "truncated": done}
    after = {**state(), **goals, **ends, "reward": torch.zeros(*shape, 1), "hindsight": hindsight}
    action = torch.zeros(shape, dtype=torch.int64)
    steps = TensorDict({**state(), **goals, "action": action, "next": after}, shape)
    return [step.clone() for step in steps.split(1, 1)]


def repeat(function):
    """Calls ``function`` for the time allowed; returns the sum of what it returns, per second."""
    total, begin = 0, time.process_time()
    while (passed := time.process_time() - begin) < BUDGET:
        total += function()
    return total / passed


def measure(goals_per_episode):
    """Rows per second relabelled, stored and drawn, for one number of goals named per episode."""
    stream = cycle(collect(goals_per_episode, torch.Generator().manual_seed(0)))
    transform = HindsightTransform()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=HindsightRatioSampler(),
        transform=Compose(SegmentMultiStepTransform(3, 0.99), HindsightTransform()),
        batch_size=BATCH,
    )

    def relabel():
        rows = transform.inv(next(stream))
        return 0 if rows is None else len(rows)

    results = {"relabelled": repeat(relabel)}
    results["stored"] = repeat(lambda: len(buffer.extend(next(stream))))
    results["drawn"] = repeat(lambda: len(buffer.sample()))
    buffer.set_sampler(GoalBalancedSampler([1.0], 0.5))
    results["drawn, each goal alike"] = repeat(lambda: len(buffer.sample()))
    return results


def main():
    torch.set_num_threads(1)
    print(f"rows/s; {NUM_ENVS} environments, {EPISODE} steps an episode, batches of {BATCH}")
    few, many = measure(20), measure(100)
    for row in few:
        print(f"{row:24}{few[row]:16,.0f}{many[row]:16,.0f}")


if __name__ == "__main__":
    main()
