"""Random play in words, against a game whose rules the test knows."""

import pytest
import torch
from corridor import PLACES, Corridor

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
    assert {move.action for move in moves} == set(WAYS)


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
