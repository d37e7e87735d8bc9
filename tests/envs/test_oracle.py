"""The oracle's plans are shortest."""

import math

import playground_reference as reference
import pytest
import torch
from tensordict import TensorDict

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS

LENGTHS = {"grasp": {2}, "grow": {3}, "grow_then_grasp": {5, 6}, "grow_then_grow": {4}}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("size", [(2, False), (3, False), (3, True), (6, True), (12, True)])
def test_always_succeeds(split, size):
    env = PlaygroundTextEnv(2000, *size[:1], split, size[1], seed=0, text=False)
    rollout = env.rollout(7, OraclePolicy(env.goals), break_when_any_done=False)
    ends = rollout["next", "terminated"].squeeze(-1)
    assert ends.any(1).all()
    length = ends.long().argmax(1) + 1
    for kind, lengths in enumerate(LENGTHS.values()):
        assert {*length[rollout["goal_kind"][:, 0] == kind].tolist()} <= lengths


def transitions(goal, objects):
    """Every state that episodes come through, by the second implementation.

    Maps a state and the number of goal parts reached to what each action leads to: another such
    node, ``None`` where it is masked out, or ``"end"`` where it completes the goal.
    """
    parts, found = reference.parts_of(goal), {}
    unseen = [(reference.State(), 0)]
    while unseen:
        node = unseen.pop()
        if node in found:
            continue
        (state, stage), found[node] = node, []
        for action in reference.list_actions(objects):
            if not reference.is_admissible(state, action):
                found[node].append(None)
                continue
            after, event = reference.act(state, action)
            reached = event is not None and reference.reaches(event, parts[stage])
            done = reached and stage + 1 == len(parts)
            found[node].append("end" if done else (after, stage + reached))
        unseen += [after for after in found[node] if after not in (None, "end")]
    return found


def steps_left(found):
    left, before = {"end": 0} | dict.fromkeys(found, math.inf), None
    while left != before:
        before = dict(left)
        for node, after in found.items():
            left[node] = 1 + min(before[x] for x in after if x is not None)
    return left


def tensors_of(nodes, goal_id, objects):
    slots = {None: -1} | {item: slot for slot, item in enumerate(objects)}
    columns = {
        "objects": [[OBJECTS.index(item) for item in objects] for _ in nodes],
        "on": [slots[state.on] for state, _ in nodes],
        "holding": [slots[state.holding] for state, _ in nodes],
        "grown": [[item in state.grown for item in objects] for state, _ in nodes],
        "stage": [stage for _, stage in nodes],
    }
    state = {key: torch.tensor(column) for key, column in columns.items()}
    return TensorDict({"goal_id": torch.full((len(nodes),), goal_id), "state": state}, [len(nodes)])


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("size", [(2, False), (3, True), (4, True)])
def test_shortest_plans_in_every_state_of_a_scene(split, size):
    env = PlaygroundTextEnv(8, *size[:1], split, size[1], impossible=0.4, seed=4, text=False)
    oracle, start = OraclePolicy(env.goals), env.reset()
    lengths, keys = set(), ("goal_id", "goal_kind", ("state", "objects"))
    for goal_id, kind, ids in zip(*(start[key].tolist() for key in keys), strict=True):
        objects = [OBJECTS[item] for item in ids]
        found = transitions(env.goals[goal_id], objects)
        left = steps_left(found)
        on_plan = [
            [x is not None and left[x] + 1 == left[node] < math.inf for x in found[node]]
            for node in found
        ]
        steps = [-1 if left[node] == math.inf else left[node] for node in found]
        assert (steps[0] < 0) == (env.goals.kinds[kind] == "impossible")
        state = tensors_of(list(found), goal_id, objects)
        mask, number = oracle.shortest_plans(state)
        assert number.tolist() == steps and mask.tolist() == on_plan
        action = oracle(state)["action"]
        assert torch.equal(mask.gather(1, action.unsqueeze(1)).squeeze(1), number >= 0)
        lengths |= {*steps}
        for one, *expected in zip(state[:20], mask, number, action, strict=False):  # unbatched
            alone = [*oracle.shortest_plans(one), oracle(one)["action"]]
            torch.testing.assert_close(alone, expected)
        nested = torch.stack([state, state], 1)
        assert oracle.shortest_plans(nested)[0].shape[:2] == (len(found), 2)
    assert {1, 2, 3} <= lengths
