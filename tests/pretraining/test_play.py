"""Random play in words, and an oracle's that is imitated, in games whose rules the tests know."""

import pytest
import torch
from corridor import PLACES, Corridor
from torch.nn.utils import parameters_to_vector
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.pretraining import imitate, record_play
from torchrl_glam.text import TokenizeText

WAYS = {"Go to red door": -1, "Go to blue door": 1, "Grasp": 0}


def test_every_step_is_told_as_the_game_plays_it():
    moves = record_play(Corridor(3, names_goals=True, step_reward=0.1), 300, seed=1)
    assert len(moves) == 300 and {move.action for move in moves} == set(WAYS)
    for move in moves:
        place = PLACES.index(move.observation)
        allowed = [way for way in WAYS if 0 <= place + WAYS[way] <= 4]
        assert move.actions == allowed and move.action in allowed
        assert move.after == PLACES[place + WAYS[move.action]]


def test_the_seed_makes_the_play_of_some_steps_and_leaves_the_global_generator():
    before = torch.random.get_rng_state()
    first = record_play(Corridor(2), 20, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first == record_play(Corridor(2), 20, seed=3)
    assert first != record_play(Corridor(2), 20, seed=4)
    with pytest.raises(ValueError, match=r"num_steps \(0\) must be at least 1"):
        record_play(Corridor(2), 0)


@pytest.fixture
def parts():
    model, tokenizer = load_language_model("tiny")
    env = PlaygroundTextEnv(num_envs=16, num_objects=3, sequential=False, seed=0)
    env = TransformedEnv(env, TokenizeText(tokenizer))
    return make_trunk(model, tokenizer), env, OraclePolicy(env.base_env.goals)


def test_a_copy_comes_to_choose_what_the_oracle_chooses(parts):
    trunk, env, oracle = parts
    env.set_seed(1)
    states = env.rollout(4, oracle, break_when_any_done=False).flatten()

    def share():
        with torch.no_grad():
            scores = trunk(states.clone())["log_likelihood"]
        best = scores.masked_fill(~states["action_mask"], -torch.inf).argmax(-1)
        return (best == states["action"]).float().mean().item()

    before = share()
    imitate(trunk, env, oracle, 1600, batch_size=64)
    assert share() > before + 0.2


@pytest.mark.parametrize("num_batches", [1, 2, 10])
def test_a_few_batches_are_enough(parts, num_batches):
    """The rate rises within them, so that the weights move; less than one is refused."""
    before = parameters_to_vector(parts[0].parameters()).detach().clone()
    imitate(*parts, 16 * num_batches, batch_size=16)
    assert (parameters_to_vector(parts[0].parameters()) - before).abs().max() > 1e-5
    with pytest.raises(ValueError, match=r"num_steps \(10\) must be at least batch_size \(16\)"):
        imitate(*parts, 10, batch_size=16)
