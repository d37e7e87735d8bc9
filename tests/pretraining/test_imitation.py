"""Imitation of an oracle, on an environment small enough to know what it should learn."""

import pytest
import torch
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.pretraining import imitate
from torchrl_glam.text import TokenizeText


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


def test_less_than_a_batch_is_refused(parts):
    with pytest.raises(ValueError, match=r"num_steps \(10\) must be at least batch_size \(16\)"):
        imitate(*parts, 10, batch_size=16)
