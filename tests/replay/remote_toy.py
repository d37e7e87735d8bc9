"""Collectors of the toy environment for processes elsewhere, which import this module."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector

from .toy_env import NUM_ENVS, ToyEnv


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
    env = ToyEnv(first=NUM_ENVS * number)
    return Collector(
        env, make_policy(number), frames_per_batch=2 * NUM_ENVS, total_frames=-1, trust_policy=True
    )
