"""Episodes to show: written by hand, or played by agents that need no language model; runs, too."""

import json
from types import SimpleNamespace

import torch
from tensordict import TensorDict

from torchrl_glam.envs import OraclePolicy
from torchrl_glam.report.comparison import METRIC
from torchrl_glam.report.games import HELD_OUT
from torchrl_glam.text import PromptTemplate

SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 10}
"""What small games are made with."""

READER = SimpleNamespace(template=PromptTemplate())
"""What a page asks of an agent."""


def step(chosen, probability, value=None, *, named=(), reward=0.0, scene=None):
    record = {
        "observation": "You see: red lion, blue water\nYou are on: nothing",
        "candidates": ["Go to red lion", "Go to blue water", "Grasp"],
        "probability": probability,
        "chosen": chosen,
        "reward": reward,
        "named": list(named),
    }
    return record | ({"value": value} if value else {}) | ({"scene": scene} if scene else {})


def scene(on=-1, holding=-1, grown=()):
    objects = ["red lion", "blue water"]
    return {"objects": objects, "on": on, "holding": holding, "grown": list(grown)}


def by_hand():
    """Three episodes: a success of three steps, a failure with a surprise, a plain failure."""
    won = [
        step(1, [0.25, 0.6, 0.15], [0.1, 0.5, -0.2], scene=scene()),
        step(2, [0.2, 0.1, 0.7], [0.3, 0.2, 0.8], named=["Grasp blue water"], scene=scene(on=1)),
        step(0, [0.9, 0.05, 0.05], [0.9, 0.1, 0.1], reward=1.0, scene=scene(holding=1)),
    ]
    odd = [step(2, [0.85, 0.1, 0.05], [0.7, 0.2, 0.1], scene=scene())]
    plain = [step(0, [0.9, 0.05, 0.05], [0.7, 0.2, 0.1], scene=scene(grown=[0]))]
    return [
        {"goal": "Grow red lion", "kind": 1, "success": True, "over": True, "steps": won},
        {"goal": "Grasp </script><b>lion", "kind": 0, "success": False, "over": True, "steps": odd},
        {"goal": "Grow any lion", "kind": 1, "success": False, "over": False, "steps": plain},
    ]


def measured(*rows):
    """A run's measurements: steps, seconds, success and, in some games, that on new ones."""
    return [dict(zip(("step", "seconds", METRIC, HELD_OUT), row, strict=False)) for row in rows]


def write_run(folder, success, **settings):
    """What a run leaves that measured success, and half of it on new goals, every 100 steps."""
    folder.mkdir(parents=True)
    names = "step,seconds,eval/train/sampled/success,eval/test/sampled/success\n"
    rows = [f"{100 * i},{i},{value},{value / 2}\n" for i, value in enumerate(success)]
    (folder / "metrics.csv").write_text(names + "50,0.5,,\n".join(rows))
    (folder / "config.yaml").write_text(json.dumps(settings))
    return str(folder)


class Planner:
    """Follows shortest plans, and values what begins one at 1."""

    def __init__(self, goals):
        self.oracle = OraclePolicy(goals)
        self.trunk = SimpleNamespace(in_keys=["action_mask", *self.oracle.in_keys])

    def read(self, states):
        action = self.oracle(states.select(*self.oracle.in_keys))["action"]
        shape = states["action_mask"].shape
        probability = torch.zeros(shape).scatter_(-1, action.unsqueeze(-1), 1.0)
        value = self.oracle.shortest_plans(states)[0].float()
        return TensorDict(probability=probability, action_value=value, batch_size=shape[:-1])


class Dabbler:
    """Does anything, with values of its own for everything."""

    trunk, template = SimpleNamespace(in_keys=["action_mask"]), READER.template

    def read(self, states):
        mask = states["action_mask"].float()
        probability, value = mask / mask.sum(-1, keepdim=True), torch.rand_like(mask)
        return TensorDict(probability=probability, action_value=value, batch_size=mask.shape[:-1])
