"""This library's replay buffer against TorchRL's and Stable-Baselines3's hindsight buffers.

Run: pip install -e ".[bench]"; python tests/benchmarks/bench_replay_relatives.py

The same numeric content for all: 32 environments, episodes of 16 steps, an observation of 64
integers and a goal of 12, half of each batch of 256 relabelled. The others store each step once
and relabel when they sample; this library relabels when an episode ends and stores the copies,
here with 4 goals an episode, so that the same memory holds fewer episodes; and it returns 3-step
transitions, with the goal of the next state and its kind. Prints rows per second of processor time
on one thread: insertion counts the environments' own steps, and sampling is the median over turns,
in which the buffers alternate.
"""

import statistics
import time

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from tensordict import TensorDict
from torchrl.data import HERReplayBuffer, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import (
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)

NUM_ENVS, EPISODE, CAPACITY, BATCH = 32, 16, 100_000, 256
OBSERVATION, GOAL, GOALS_PER_EPISODE = 64, 12, 4
BUDGET, ROUNDS = 3.0, 15  # seconds to insert; turns of 0.3 s to sample in


class Stream:
    """Steps of all environments, the same for every buffer; ``next`` goes round and round."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        count = 4 * EPISODE
        self.observation = generator.integers(0, 9, (count + 1, NUM_ENVS, OBSERVATION), np.int32)
        self.achieved = generator.integers(0, 9, (count + 1, NUM_ENVS, GOAL), np.int32)
        self.goal = generator.integers(0, 9, (NUM_ENVS, GOAL), np.int32)
        self.count, self.step = count, -1

    def next(self) -> tuple[int, np.ndarray]:
        """Index of the next step, and which environments' episodes end with it."""
        self.step = (self.step + 1) % self.count
        return self.step, (self.step + np.arange(NUM_ENVS)) % EPISODE == EPISODE - 1


class Ours:
    """HindsightTransform, 3-step returns and an exact half of hindsight."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(CAPACITY),
            sampler=HindsightRatioSampler(0.5),
            transform=Compose(SegmentMultiStepTransform(3, 0.99), HindsightTransform()),
            batch_size=BATCH,
        )

    def insert(self) -> int:
        step, done = self.stream.next()
        named = (step + np.arange(NUM_ENVS)) % EPISODE % (EPISODE // GOALS_PER_EPISODE) == 3
        achieved = torch.from_numpy(self.stream.achieved[step + 1])
        state = {"goal_tokens": torch.from_numpy(self.stream.goal)}
        done = torch.from_numpy(done)
        batch = TensorDict(
            {
                **state,
                "observation": torch.from_numpy(self.stream.observation[step]),
                "goal_kind": torch.zeros(NUM_ENVS, dtype=torch.int8),
                "action": torch.zeros(NUM_ENVS, dtype=torch.int64),
                "next": {
                    **state,
                    "observation": torch.from_numpy(self.stream.observation[step + 1]),
                    "hindsight": {
                        "goal_tokens": achieved.unsqueeze(1),
                        "kind": torch.from_numpy(named).to(torch.int8).unsqueeze(1) - 1,
                    },
                    "reward": torch.zeros(NUM_ENVS, 1),
                    "done": done.unsqueeze(1),
                    "terminated": torch.zeros(NUM_ENVS, 1, dtype=torch.bool),
                },
            },
            [NUM_ENVS],
        )
        self.buffer.extend(batch.unsqueeze(1))
        return NUM_ENVS

    def sample(self) -> int:
        return len(self.buffer.sample())


class TorchRL:
    """HERReplayBuffer; one line of steps for each environment, stored episode by episode."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.buffer = HERReplayBuffer(
            reward_fn=lambda rows: (
                (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1, keepdim=True)
            ).float(),
            her_ratio=0.5,
            storage=LazyTensorStorage(CAPACITY),
            batch_size=BATCH,
        )
        self.columns: list[TensorDict] = []

    def insert(self) -> int:
        step, _ = self.stream.next()
        goal = torch.from_numpy(self.stream.goal)
        content = {
            "observation": torch.from_numpy(self.stream.observation[step]),
            "achieved_goal": torch.from_numpy(self.stream.achieved[step]),
            "desired_goal": goal,
            "action": torch.zeros(NUM_ENVS, dtype=torch.int64),
            "next": {
                "observation": torch.from_numpy(self.stream.observation[step + 1]),
                "achieved_goal": torch.from_numpy(self.stream.achieved[step + 1]),
                "desired_goal": goal,
                "reward": torch.zeros(NUM_ENVS, 1),
                "done": torch.full((NUM_ENVS, 1), step % EPISODE == EPISODE - 1),
                "terminated": torch.zeros(NUM_ENVS, 1, dtype=torch.bool),
            },
        }
        self.columns.append(TensorDict(content, [NUM_ENVS]))
        if len(self.columns) == EPISODE:  # its rows must be whole episodes, so all end together
            self.buffer.extend(torch.stack(self.columns, 1).flatten())
            self.columns = []
        return NUM_ENVS

    def sample(self) -> int:
        return len(self.buffer.sample())


class StableBaselines3:
    """HerReplayBuffer; the reward comes from an environment, here a stand-in."""

    def __init__(self) -> None:
        self.stream = Stream()
        goal = spaces.Box(0, 9, (GOAL,), np.int32)
        observation = spaces.Box(0, 9, (OBSERVATION,), np.int32)
        space = {"observation": observation, "achieved_goal": goal, "desired_goal": goal}
        self.buffer = HerReplayBuffer(
            CAPACITY,
            spaces.Dict(space),
            spaces.Discrete(8),
            env=self,
            n_envs=NUM_ENVS,
            n_sampled_goal=1,
            device="cpu",
        )
        self.infos = [{} for _ in range(NUM_ENVS)]

    def env_method(self, name, achieved, desired, infos, indices) -> list[np.ndarray]:
        return [(achieved == desired).all(-1).astype(np.float32)]

    def insert(self) -> int:
        step, done = self.stream.next()
        now, later = (
            {
                "observation": self.stream.observation[at],
                "achieved_goal": self.stream.achieved[at],
                "desired_goal": self.stream.goal,
            }
            for at in (step, step + 1)
        )
        zeros = np.zeros(NUM_ENVS)
        self.buffer.add(now, later, zeros.astype(np.int64), zeros, done, self.infos)
        return NUM_ENVS

    def sample(self) -> int:
        return len(self.buffer.sample(BATCH).rewards)


def repeat(function, budget=BUDGET):
    """Calls ``function`` for the time allowed; returns the sum of what it returns, per second."""
    total, begin = 0, time.process_time()
    while (passed := time.process_time() - begin) < budget:
        total += function()
    return total / passed


def main():
    torch.set_num_threads(1)
    kinds = (Ours, TorchRL, StableBaselines3)
    subjects = {kind.__name__: kind() for kind in kinds}
    inserted = {name: repeat(subject.insert) for name, subject in subjects.items()}
    rounds = [{name: repeat(x.sample, 0.3) for name, x in subjects.items()} for _ in range(ROUNDS)]
    print(f"{'rows/s':20}{'inserted':>14}{'sampled':>14}{'against SB3':>14}")
    for name in subjects:
        sampled = statistics.median(rates[name] for rates in rounds)
        ratio = statistics.median(rates[name] / rates["StableBaselines3"] for rates in rounds)
        print(f"{name:20}{inserted[name]:14,.0f}{sampled:14,.0f}{ratio:14.2f}")


if __name__ == "__main__":
    main()
