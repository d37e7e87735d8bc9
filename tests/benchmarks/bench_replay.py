"""How fast the replay buffer takes episodes in and gives batches out.

Run: python tests/benchmarks/bench_replay.py

32 environments, episodes of 16 steps that end one after another, transitions of the size of the
paper's configuration; then the sampler alone, on buffers that wrap around. Prints rows per second
of processor time on one thread, which a busy machine disturbs less than time on the wall.
"""

import time

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import (
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)

NUM_ENVS, EPISODE, CAPACITY, BATCH = 32, 16, 100_000, 256
GOAL, OBSERVATION, ACTIONS, ACTION = 12, 64, 8, 6  # tokens of each, and candidate actions
SLOTS = 32  # goals that can be named after one step
BUDGET = 3.0  # seconds per measurement


def collect(step, goals_per_episode, generator):
    """One step of all environments, [32, 1]; two of them end an episode with it."""
    shape = (NUM_ENVS, 1)
    position = (step + torch.arange(NUM_ENVS)) % EPISODE
    done = (position == EPISODE - 1).view(*shape, 1)

    def tokens(*size):
        return torch.randint(1, 30_000, (*shape, *size), dtype=torch.int16, generator=generator)

    # goals spread over the episode's steps, as many as asked for in all
    share = torch.rand(*shape, SLOTS, generator=generator)
    named = share < goals_per_episode / EPISODE / SLOTS
    state = {
        "goal_tokens": tokens(GOAL),
        "observation_tokens": tokens(OBSERVATION),
        "action_tokens": tokens(ACTIONS, ACTION),
        "action_mask": torch.ones(*shape, ACTIONS, dtype=torch.bool),
        "goal_kind": torch.zeros(shape, dtype=torch.int8),
    }
    following = {
        **{key: value.clone() for key, value in state.items()},
        "hindsight": {
            "goal_tokens": tokens(SLOTS, GOAL),
            "kind": torch.where(named, 0, -1).to(torch.int8),
        },
        "reward": torch.zeros(*shape, 1),
        "done": done,
        "terminated": torch.zeros_like(done),
        "truncated": done,
    }
    return TensorDict({**state, "action": torch.zeros(shape).long(), "next": following}, shape)


def make_buffer(sampler):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=sampler,
        transform=Compose(SegmentMultiStepTransform(3, 0.99), HindsightTransform()),
        batch_size=BATCH,
    )


def repeat(function):
    """Calls ``function`` for the time allowed; returns the sum of what it returns, per second."""
    total, begin = 0, time.process_time()
    while (passed := time.process_time() - begin) < BUDGET:
        total += function()
    return total / passed


def measure(goals_per_episode):
    """Rows per second relabelled, stored and drawn, for one number of goals named per episode."""
    generator = torch.Generator().manual_seed(0)
    stream = [collect(step, goals_per_episode, generator) for step in range(4 * EPISODE)]
    results = {}

    def cycle(consume):
        step = -1

        def call():
            nonlocal step
            step += 1
            return consume(stream[step % len(stream)])

        return call

    def relabel(batch, transform=HindsightTransform()):  # noqa: B008
        rows = transform.inv(batch)
        return 0 if rows is None else len(rows)

    results["relabelled"] = repeat(cycle(relabel))
    buffer = make_buffer(HindsightRatioSampler())
    results["stored"] = repeat(cycle(lambda batch: len(buffer.extend(batch))))
    results["drawn, half hindsight"] = repeat(lambda: len(buffer.sample()))
    buffer.set_sampler(RandomSampler())
    results["drawn, uniformly"] = repeat(lambda: len(buffer.sample()))
    return results, buffer


def measure_sampler(capacity):
    """Rows per second noted and drawn by the sampler alone, on a full buffer of one column."""
    sampler = HindsightRatioSampler()
    storage = LazyTensorStorage(capacity)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH)
    kinds = torch.rand(capacity) < 0.9
    buffer.extend(TensorDict({"is_hindsight": kinds}, [capacity]))
    cursor = 0

    def note():  # 400 rows of new kinds, at the writer's next place
        nonlocal cursor
        index = torch.arange(cursor, cursor + 400) % capacity
        storage[:]["is_hindsight"][index] = torch.rand(400) < 0.9
        sampler.mark_update(index, storage=storage)
        cursor = (cursor + 400) % capacity
        return 400

    return {
        "noted by the sampler": repeat(note),
        "drawn by the sampler": repeat(lambda: len(sampler.sample(storage, BATCH)[0])),
    }


def show(columns):
    """Prints a table of {column name: {row name: number}}."""
    print(" " * 24 + "".join(f"{name:>16}" for name in columns))
    for row in next(iter(columns.values())):
        print(f"{row:24}" + "".join(f"{column[row]:16,.0f}" for column in columns.values()))


def main():
    torch.set_num_threads(1)
    print(f"rows/s; {NUM_ENVS} environments, {EPISODE} steps an episode, batches of {BATCH}")
    named = {}
    for goals in (20, 100):
        named[f"{goals} goals"], buffer = measure(goals)
    show(named)
    print(f"bytes per row: {buffer.storage[:].bytes() / len(buffer):.0f}")
    show({f"{rows:,} rows": measure_sampler(rows) for rows in (10_000, 1_000_000)})


if __name__ == "__main__":
    main()
