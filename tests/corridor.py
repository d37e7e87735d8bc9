"""A small game that is not Playground-Text: a corridor of five places, a door at either end."""

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import make_composite_from_td

from torchrl_glam.text import encode_text

PLACES = ["red door", "red chair", "nothing", "blue chair", "blue door"]
GOALS = [f"Grasp {place}" for place in PLACES]
ACTIONS = ["Go to red door", "Go to blue door", "Grasp"]


class Corridor(EnvBase):
    """Start in the middle, go one place at a time, and end at the door that the goal names.

    Rewards count steps, so they do not say success; ``"reached"`` does.

    Args:
        num_envs: instances; None for one alone, of batch size ``[]``.
        names_goals: name the door or chair that a step reached, in hindsight.
        step_reward: of every step that does not reach the goal.
    """

    goal_kinds = ("red", "blue")
    goal_kind_prior = (1, 1)
    success_key = "reached"
    max_steps = 6

    def __init__(self, num_envs=None, names_goals=False, step_reward=0.0):
        super().__init__(batch_size=[] if num_envs is None else [num_envs])
        self.names_goals, self.step_reward = names_goals, step_reward
        self.tables = [encode_text(texts) for texts in (GOALS, PLACES, ACTIONS)]
        self._set_seed(0)
        self.place, self.door, self.steps = torch.zeros((3, *self.batch_size), dtype=torch.int64)
        never = torch.zeros(self.batch_size, dtype=torch.bool)
        self.observation_spec = make_composite_from_td(
            self._observe(never, never), unsqueeze_null_shapes=False
        )
        self.action_spec = Categorical(3, shape=self.batch_size)
        self.reward_spec = Unbounded((*self.batch_size, 1))
        end = Categorical(2, shape=(*self.batch_size, 1), dtype=torch.bool)
        ends = {name: end.clone() for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=self.batch_size)

    def _set_seed(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def _observe(self, reached, stepped):
        goals, places, actions = self.tables
        at = self.place
        state = {
            "goal": goals[self.door],
            "observation": places[at],
            "actions": actions.expand(*self.batch_size, -1, -1),
            "action_mask": torch.stack([at > 0, at < 4, torch.ones_like(at, dtype=torch.bool)], -1),
            "goal_kind": (self.door > 2).to(torch.int8),
            "reached": reached.unsqueeze(-1),
        }
        if self.names_goals:
            named = stepped & (at != 2)
            goal = goals[at] * named.unsqueeze(-1)
            kind = torch.where(named, (at > 2).to(torch.int8), -1).to(torch.int8)
            state["hindsight"] = {"goal": goal.unsqueeze(-2), "kind": kind.unsqueeze(-1)}
        return TensorDict(state, self.batch_size)

    def _reset(self, tensordict):
        new = torch.ones(self.batch_size, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():
            new = tensordict["_reset"].reshape(self.batch_size)
        door = 4 * torch.randint(2, self.batch_size, generator=self.generator)
        self.door = torch.where(new, door, self.door)
        self.place = torch.where(new, 2, self.place)
        self.steps = torch.where(new, 0, self.steps)
        return self._observe(torch.zeros_like(new), torch.zeros_like(new))

    def _step(self, tensordict):
        action = tensordict["action"]
        self.place = (self.place + (action == 1).long() - (action == 0).long()).clamp(0, 4)
        self.steps = self.steps + 1
        reached = self.place == self.door
        truncated = ~reached & (self.steps >= self.max_steps)
        reward = torch.where(reached, 1.0, self.step_reward)
        ends = {"terminated": reached, "truncated": truncated, "done": reached | truncated}
        out = {name: end.unsqueeze(-1) for name, end in ends.items()}
        return self._observe(reached, torch.ones_like(reached)).update(
            out | {"reward": reward.unsqueeze(-1)}
        )


def alone(**options):
    return Corridor(**options)
