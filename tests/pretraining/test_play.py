"""Random play in words, against a game whose rules the test knows."""

import pytest
import torch
from corridor import PLACES, Corridor

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.pretraining import record_play

WAYS = {"Go to red door": -1, "Go to blue door": 1, "Grasp": 0}


@pytest.fixture(scope="module")
def moves():
    return record_play(Corridor(3, names_goals=True, step_reward=0.1), 300, seed=1)


def test_every_step_is_told_as_the_game_plays_it(moves):
    assert len(moves) == 300
    for move in moves:
        place = PLACES.index(move.observation)
        allowed = [way for way in WAYS if 0 <= place + WAYS[way] <= 4]
        assert sorted(move.actions) == sorted(allowed)
        assert move.action in allowed
        assert move.after == PLACES[place + WAYS[move.action]]
        assert move.reached == (move.goal == f"Grasp {move.after}")
        assert move.named == ([] if move.after == "nothing" else [f"Grasp {move.after}"])
    assert {move.action for move in moves} == set(WAYS)
    assert 0 < sum(move.reached for move in moves) < 150


def test_later_goals_are_those_of_the_episode_alone(moves):
    """An episode is over when its goal is reached, or after six steps."""
    later, steps, starts = [], 0, []
    for index, move in enumerate(moves):
        if index % 100 == 0:
            steps = 0
        starts.append(steps == 0)
        steps = 0 if move.reached or steps == 5 else steps + 1
    assert sum(starts) >= 50
    for index in reversed(range(len(moves))):
        last = (index + 1) % 100 == 0 or starts[index + 1]
        later = [] if last else later
        later = moves[index].named + [goal for goal in later if goal not in moves[index].named]
        assert moves[index].later == later


def test_goals_named_by_id_and_by_nobody():
    named = record_play(PlaygroundTextEnv(num_envs=8, num_objects=3, sequential=False), 200)
    goals = {goal for move in named for goal in move.named}
    assert goals and all(goal.startswith(("Grasp ", "Grow ")) for goal in goals)
    alone = record_play(Corridor(2), 20)
    assert all(move.named == move.later == [] for move in alone)


def test_the_seed_makes_the_play_and_leaves_the_global_generator():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = record_play(Corridor(2), 20, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first == record_play(Corridor(2), 20, seed=3)
    assert first != record_play(Corridor(2), 20, seed=4)


def test_no_step_is_refused():
    with pytest.raises(ValueError, match=r"num_steps \(0\) must be at least 1"):
        record_play(Corridor(2), 0)
