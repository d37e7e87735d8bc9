"""A game in Gymnasium's interface that is played on stairs, and its wrapped environments."""

import random
from functools import partial

from torchrl_glam.envs import TextEnvWrapper


class Stairs:
    """From floor 0 up or down to a floor that the seed draws, in eight steps at most."""

    def reset(self, *, seed=None, options=None):
        self.goal = random.Random(seed).choice([-2, -1, 1, 2])
        self.floor, self.steps = 0, 0
        return self.look()

    def look(self):
        ways = ["up", "down", "up", *["wait"] * (self.floor == 0), ""]
        info = {"goal": f"Reach floor {self.goal}", "ways": ways, "won": self.floor == self.goal}
        return f"You are on floor {self.floor}", info

    def step(self, action):
        self.floor += {"up": 1, "down": -1, "wait": 0}[action]
        self.steps += 1
        observation, info = self.look()
        if info["won"]:
            info["ways"] = []  # games may list none where an episode ends
        return observation, float(info["won"]), info["won"], self.steps == 8, info


class Unruly(Stairs):
    """Follows no seed: every episode is in another house."""

    drawn = 0

    def reset(self, **_):
        self.drawn += 1
        return super().reset(seed=self.drawn)

    def look(self):
        observation, info = super().look()
        return f"{observation} of house {self.drawn}", info


class Chosen(Stairs):
    """It is told which floor to reach."""

    def reset(self, *, seed=None, goal=None):
        super().reset(seed=seed)
        self.goal = int(goal.split()[-1])
        return self.look()


FLOORS = [f"Reach floor {floor}" for floor in (-1, 1, -2, 2)]


def is_far(goal):
    """The kind of a goal: 1 for two floors away."""
    return int(goal.endswith("2"))


def floors(steps):
    """The goals that the last step of an episode on the stairs reached."""
    return [f"Reach floor {steps[-1].observation.split()[-1]}"]


wrap = partial(
    TextEnvWrapper,
    max_actions=4,
    actions="ways",
    goal="goal",
    success="won",
    hindsight=floors,
    max_hindsight=2,
)


def make(num_envs=3, **kwargs):
    """``num_envs`` stairs in one environment, or one without a batch for None."""
    return wrap(Stairs() if num_envs is None else [Stairs() for _ in range(num_envs)], **kwargs)


def make_chosen(num_envs=3, **kwargs):
    """The same of stairs that are told their goal."""
    games = Chosen() if num_envs is None else [Chosen() for _ in range(num_envs)]
    return wrap(games, **{"goal": None, "goal_texts": FLOORS, **kwargs})


alone = partial(make, None)


def alone_chosen(goal_sampler=None):
    """One game that is told its goal, with as many floors to tell apart as ``FLOORS``."""
    return make_chosen(None, goal_sampler=goal_sampler)


def of_size(num_objects=1):
    """One game that is over at once if it is small."""
    return make(None, max_steps=num_objects)
