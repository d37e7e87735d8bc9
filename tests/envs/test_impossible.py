"""Goals that cannot be reached, and that everything is as it was where there are none."""

import random

import numpy as np
import playground_reference as reference
import pytest
import torch

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS

IMPOSSIBLE = 4  # the kind


@pytest.mark.parametrize("impossible", [0.25, 0.8, 1.0])
def test_the_share_is_that_of_the_episodes(impossible):
    env = PlaygroundTextEnv(20_000, 3, sequential=False, impossible=impossible, seed=0, text=False)
    state = env.reset()
    goal_id, objects = state["goal_id"], state["state", "objects"].sort(1).values
    assert objects.diff(dim=1).all(), "objects of a scene differ"
    spread = (impossible * (1 - impossible) / 20_000) ** 0.5
    chosen = env.goals.kind_ids[goal_id] == IMPOSSIBLE
    assert abs(chosen.float().mean() - impossible) <= 5 * spread
    for drawn_ids, number in ((goal_id[chosen], 237), (goal_id[~chosen], 182)):
        if len(drawn_ids):  # all of them, alike
            count = drawn_ids.bincount()
            assert (count > 0).sum() == number and count.max() < 2 * len(drawn_ids) / number


def test_random_play_never_gets_there():
    """In thousands of episodes; the partner names other goals, and none of these."""
    env = PlaygroundTextEnv(400, 6, impossible=1.0, seed=0, text=False)
    steps = env.rollout(176, break_when_any_done=False)
    assert steps["next", "done"].sum() == steps["next", "truncated"].sum() >= 4_400
    assert not steps["next", "terminated"].any() and not steps["next", "reward"].any()
    kinds = steps["next", "hindsight", "kind"]
    assert (kinds >= 0).sum() > 5_000 and (kinds < IMPOSSIBLE).all()


def drawn(goals, count, size, generator):
    """Goals and scenes once more, one at a time: the order of draws that seeds hang on."""
    ids = torch.randint(len(goals), (count,), generator=generator)
    draw = torch.rand((count, 3 + 96 + size), generator=generator)
    keys = draw[:, 3:99].clone()
    for row, goal_id in enumerate(ids.tolist()):
        first, second, third = draw[row, :3].numpy()
        parts = reference.parts_of(goals[goal_id])
        fits = [[x for x in OBJECTS if is_reached(part, x)] for part in parts]
        narrow, *wide = sorted(range(len(parts)), key=lambda i, fits=fits: len(fits[i]))
        item = fits[narrow][int(first * np.float32(len(fits[narrow])))]
        needs = {narrow: item}
        for i in wide:
            others = [x for x in fits[i] if x != item]
            needs[i] = others[int(second * np.float32(len(others)))]
        if parts[0].startswith("Grow"):
            foods, waters = ([f"{c} {s}" for c in reference.COLOURS] for s in reference.SUPPLIES)
            grown = [x for i, x in needs.items() if parts[i].startswith("Grow")]
            dry = any(x.split()[1] in reference.PLANTS for x in grown)
            needs["supply"] = ((waters if dry else foods) + waters)[int(third * np.float32(6))]
        keys[row, [OBJECTS.index(x) for x in needs.values()]] = -1.0
    scene = keys.topk(size, dim=1, largest=False, sorted=False).indices
    return ids, scene.gather(1, draw[:, 99:].argsort(1))


def is_reached(part, item):
    living = reference.feeds("red water", item)
    return reference.reaches((part.split()[0], item), part) and (living or part[:5] == "Grasp")


@pytest.mark.parametrize("size", [(3, False), (6, True), (12, True)])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_default_draws_are_these(split, size):
    seed = random.Random(repr((split, size))).getrandbits(31)
    env = PlaygroundTextEnv(200, size[0], split, size[1], max_steps=1, seed=seed, text=False)
    generator, state = torch.Generator().manual_seed(seed), env.reset()
    for _ in range(3):
        ids, scene = drawn(env.goals, 200, size[0], generator)
        assert torch.equal(state["goal_id"], ids)
        assert torch.equal(state["state", "objects"], scene)
        assert torch.equal(env.get_extra_state(), generator.get_state())  # nothing else is drawn
        env.step(env.rand_action(state))
        state = env.reset()
