"""The oracle's plans are shortest."""

import pytest
import torch

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.envs.vocabulary import OBJECTS

from . import reference

LENGTHS = {"grasp": {2}, "grow": {3}, "grow_then_grasp": {5, 6}, "grow_then_grow": {4}}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("size", [(3, False), (3, True), (6, True)])
def test_always_succeeds(split, size):
    env = PlaygroundTextEnv(2000, *size[:1], split, size[1], seed=0, text=False)
    rollout = env.rollout(7, OraclePolicy(env.goals), break_when_any_done=False)
    ends = rollout["next", "terminated"].squeeze(-1)
    assert ends.any(1).all()
    length = ends.long().argmax(1) + 1
    for kind, lengths in enumerate(LENGTHS.values()):
        assert {*length[rollout["goal_kind"][:, 0] == kind].tolist()} <= lengths


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("wander", [0, 3, 8])
def test_plans_are_as_short_as_breadth_first_search_finds(split, wander):
    """From the start, and after wandering about at random."""
    env = PlaygroundTextEnv(40, 5, split, max_steps=100, seed=wander, text=False)
    state = env.reset()
    for _ in range(wander):
        state = env.step_and_maybe_reset(env.rand_action(state))[1]
    expected = []
    for row in state:
        objects = [OBJECTS[item] for item in row["state", "objects"].tolist()]
        names = [*objects, None]  # slot -1 is nothing
        grown = frozenset(names[slot] for slot in row["state", "grown"].nonzero().flatten())
        now = reference.State(names[row["state", "on"]], names[row["state", "holding"]], grown)
        goal, stage = env.goals[row["goal_id"].item()], int(row["state", "stage"])
        expected.append(reference.shortest_plan(goal, objects, now, stage))
    rollout = env.rollout(
        12,
        OraclePolicy(env.goals),
        tensordict=state,
        auto_reset=False,
        break_when_any_done=False,
    )
    ends = rollout["next", "terminated"].squeeze(-1)
    found = torch.where(ends.any(1), ends.long().argmax(1) + 1, -1).tolist()
    assert found == [-1 if length is None else length for length in expected]
