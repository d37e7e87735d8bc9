"""Tokens at the environment's boundary, against the tokenizer applied to the text itself."""

import pytest
import torch
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import check_env_specs

from torchrl_glam.envs import PlaygroundTextEnv, TokenizeText, decode_text
from torchrl_glam.envs.tokenize import playground_lengths
from torchrl_glam.models import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def make_env(tokenizer, num_objects=4, **lengths):
    env = PlaygroundTextEnv(num_envs=5, num_objects=num_objects, seed=0)
    return TransformedEnv(env, TokenizeText(tokenizer, **lengths))


@pytest.mark.parametrize("num_objects", [4, 6])
def test_specs(tokenizer, num_objects):
    check_env_specs(make_env(tokenizer, num_objects))


def test_tokens_are_those_of_the_text(tokenizer):
    steps = make_env(tokenizer).rollout(12, break_when_any_done=False).flatten()
    following = steps["next"]
    slots = [
        (following["goal"], following["goal_tokens"], " "),
        (following["observation"], following["observation_tokens"], "\n"),
        (following["actions"].flatten(0, 1), following["action_tokens"].flatten(0, 1), " "),
        (
            following["hindsight", "goal"].flatten(0, 1),
            following["hindsight", "goal_tokens"].flatten(0, 1),
            " ",
        ),
    ]
    for text, tokens, lead in slots:
        for words, row in zip(decode_text(text), tokens.tolist(), strict=True):
            ids = tokenizer(lead + words, add_special_tokens=False).input_ids if words else []
            assert row == ids + [tokenizer.pad_token_id] * (len(row) - len(ids))
    assert (following["hindsight", "kind"] >= 0).any()


def test_tokens_take_the_smallest_type(tokenizer):
    assert make_env(tokenizer).reset()["goal_tokens"].dtype == torch.int16


def test_lengths_of_playground_hold_every_text(tokenizer):
    env = PlaygroundTextEnv(num_envs=64, num_objects=3, sequential=False, max_steps=40, seed=1)
    lengths = playground_lengths(env, tokenizer)
    transformed = TransformedEnv(env, TokenizeText(tokenizer, **lengths))
    steps = transformed.rollout(80, break_when_any_done=False)
    longest = (steps["observation_tokens"] != tokenizer.pad_token_id).sum(-1).max()
    assert longest <= lengths["observation_length"] <= 20


def test_a_text_that_is_too_long_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"goal_length \(2\) is too small: '.*' has \d tokens"):
        make_env(tokenizer, goal_length=2).reset()


def test_an_environment_without_text_is_named(tokenizer):
    env = PlaygroundTextEnv(num_envs=2, text=False)
    with pytest.raises(KeyError, match="text=True"):
        TransformedEnv(env, TokenizeText(tokenizer)).reset()


def test_a_length_below_one_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"action_length \(0\)"):
        TokenizeText(tokenizer, action_length=0)
