"""A vectorised environment whose observations number its steps and whose partner names goals."""

from collections import defaultdict

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import make_composite_from_td

from . import toy

NUM_ENVS = 3


class ToyEnv(EnvBase):
    """Episodes of environment i: i + 2 steps, alternately reaching the goal and running out.

    The observation is 10,000 * environment + 100 * episode + step; the goal (episode + 1, 0). After
    each step the partner names goal (100, step).

    Args:
        first: Number of the first environment, in observations only.
    """

    def __init__(self, first=0):
        super().__init__(batch_size=[NUM_ENVS])
        self.first = first
        self.env_index = torch.arange(NUM_ENVS)
        self.episode = torch.full((NUM_ENVS,), -1)
        self.step_index = torch.zeros(NUM_ENVS, dtype=torch.int64)
        self.observation_spec = make_composite_from_td(TensorDict(self._observe(), [NUM_ENVS]))
        self.action_spec = Categorical(5, shape=(NUM_ENVS,))
        self.reward_spec = Unbounded((NUM_ENVS, 1))
        flags = {end: Binary(1, (NUM_ENVS, 1), dtype=torch.bool) for end in toy.ENDS}
        self.done_spec = Composite(flags, shape=[NUM_ENVS])

    def _observe(self):
        goal = torch.stack([self.episode + 1, torch.zeros_like(self.episode)], -1)
        named = torch.zeros(NUM_ENVS, toy.SLOTS, toy.WIDTH, dtype=torch.int16)
        named[:, 0, 0], named[:, 0, 1] = 100, self.step_index
        kind = torch.full((NUM_ENVS, toy.SLOTS), -1, dtype=torch.int8)
        kind[:, 0] = torch.where(self.step_index > 0, 3, -1)
        number = 10_000 * (self.first + self.env_index) + 100 * self.episode + self.step_index
        return {
            "observation": number.unsqueeze(-1),
            "goal_tokens": goal.to(torch.int16),
            "goal_kind": (self.episode % 4).to(torch.int8),
            "hindsight": TensorDict({"goal_tokens": named, "kind": kind}, [NUM_ENVS]),
        }

    def _reset(self, tensordict):
        mask = torch.ones(NUM_ENVS, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():
            mask = tensordict["_reset"].view(NUM_ENVS)
        self.episode = self.episode + mask
        self.step_index = torch.where(mask, 0, self.step_index)
        return TensorDict(self._observe(), [NUM_ENVS])

    def _step(self, tensordict):
        self.step_index = self.step_index + 1
        last = (self.step_index == self.env_index + 2).unsqueeze(-1)
        success = last & (self.episode % 2 == 0).unsqueeze(-1)
        ends = {"done": last, "terminated": success, "truncated": last & ~success}
        return TensorDict({**self._observe(), "reward": success.float(), **ends}, [NUM_ENVS])

    def _set_seed(self, seed):
        return None


def expected_rows(data, **returns):
    """The reference's rows of all episodes that end, told apart by their observations alone."""
    episodes = defaultdict(dict)
    for step in (step for batch in data for step in batch.reshape(-1)):
        number, following = int(step["observation"]), step["next"]
        named = following["hindsight"]
        slots = zip(named["goal_tokens"].tolist(), named["kind"].tolist(), strict=True)
        episodes[number // 100][number] = toy.Step(
            number,
            int(following["observation"]),
            tuple(step["goal_tokens"].tolist()),
            int(step["goal_kind"]),
            *(following[key].item() for key in ("reward", *toy.ENDS)),
            tuple((tuple(goal), kind) if kind >= 0 else None for goal, kind in slots),
        )
    lines = [[steps[number] for number in sorted(steps)] for steps in episodes.values()]
    return toy.reference_rows(lines, **returns)


class Constant(nn.Module):
    """Always the action that its one trained weight says; the other weight is its own."""

    def __init__(self, number):
        super().__init__()
        self.action = nn.Parameter(torch.tensor(-1.0))
        self.number = nn.Parameter(torch.tensor(float(number)), requires_grad=False)

    def forward(self, observation):
        assert self.number >= 0
        return self.action.round().long().expand(observation.shape[:-1])


def make_policy(number):
    return TensorDictModule(Constant(number), in_keys=["observation"], out_keys=["action"])


def make_toy_collector(number):
    """A collector for a process elsewhere, which imports this module."""
    return Collector(
        ToyEnv(first=NUM_ENVS * number),
        make_policy(number),
        frames_per_batch=2 * NUM_ENVS,
        total_frames=-1,
        trust_policy=True,
    )
