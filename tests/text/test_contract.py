"""What an environment says of itself, bare and in wrappers."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import Compose, ParallelEnv, SelectTransform, SerialEnv, StepCounter
from torchrl.envs import TransformedEnv as Transformed

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.text import PromptTemplate, describe_env, token_lengths


class Silent(SimpleNamespace):
    """Five candidate actions, and nothing said but what a test gives as attributes."""

    observation_spec = Composite(action_mask=Categorical(2, shape=(5,), dtype=torch.bool))


game = partial(PlaygroundTextEnv, 2, num_objects=3, sequential=False, max_steps=7, seed=0)


def test_what_is_not_said_is_unknown():
    assert describe_env(Silent()).num_actions == 5
    env = PlaygroundTextEnv(2, goal_sampler=lambda _, n: torch.zeros(n, dtype=torch.int64))
    assert describe_env(env).goal_kind_prior is None  # which a sampler of one's own does not tell
    assert describe_env(Silent(goal_texts=[], goal_kind_ids=[])).goal_texts == []


@pytest.mark.parametrize(
    "wrap",
    [
        lambda make: make(),
        lambda make: Transformed(make(), Compose(StepCounter(), SelectTransform("action_mask"))),
        lambda make: Transformed(SerialEnv(2, make), StepCounter()),
        lambda make: SerialEnv(2, lambda: Transformed(make(), StepCounter())),
        lambda make: SerialEnv(2, lambda: SerialEnv(2, make)),
        lambda make: ParallelEnv(2, make, mp_start_method="fork"),
    ],
    ids=["bare", "transformed", "serial", "transformed in serial", "serial in serial", "parallel"],
)
def test_wrappers_hide_nothing(wrap):
    """136 goals to grasp and 46 to grow; three objects, so five actions."""
    env = wrap(game)
    description = describe_env(env)
    assert (description.num_actions, description.max_steps) == (5, 7)
    assert description.goal_kinds == ("grasp", "grow", "grow_then_grasp", "grow_then_grow")
    assert description.goal_kind_prior == pytest.approx((136 / 182, 46 / 182, 0, 0))
    assert len(description.goal_texts) == 182
    assert callable(description.is_subgoal)
    assert description.make_oracle().in_keys[0] == "goal_id"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"goal_kinds": "grasp"}, r"Silent.goal_kinds \('grasp'\) must be names of goal kinds"),
        ({"goal_kinds": ()}, r"Silent.goal_kinds \(\(\)\) must"),
        ({"goal_kinds": ("a", "a")}, r"Silent.goal_kinds .* no two alike"),
        ({"goal_kind_prior": (0.5, 0.5)}, r"Silent.goal_kind_prior .* must be 1 weights"),
        ({"goal_kind_prior": (0.0,)}, r"Silent.goal_kind_prior .* not all 0"),
        ({"max_steps": 0}, r"Silent.max_steps \(0\) must be at least 1, or None"),
        ({"longest_texts": {"goal": "Go"}}, r"Silent.longest_texts .* must be lists of texts"),
        (
            {"goal_texts": ["Go"], "goal_kind_ids": [1]},
            r"Silent.goal_kind_ids .* index into goal_k",
        ),
        ({"goal_kind_ids": [0]}, r"Silent.goal_kind_ids .* for each of goal_texts"),
        ({"goal_texts": ["Go"], "goal_kind_ids": [-1]}, r"Silent.goal_kind_ids .* index into goal"),
        ({"goal_texts": "Go"}, r"Silent.goal_texts \('Go'\) must be a list of texts"),
        ({"longest_texts": {"actions": ["Go"]}}, r"Silent.longest_texts .* no keys but \('goal',"),
    ],
)
def test_what_an_environment_says_wrongly_is_named(said, message):
    with pytest.raises(ValueError, match=message):
        describe_env(Silent(**said))


def test_an_environment_without_a_mask_is_named():
    env = Silent(observation_spec=Composite(observation=Unbounded((1,))))
    with pytest.raises(KeyError, match=r"'action_mask' is missing .* bool \[\*B, A\]"):
        describe_env(env)


def test_token_lengths_are_of_the_longest_texts_with_what_stands_before_them():
    """A tokenizer of one token a character: lengths can be counted."""

    def characters(texts, add_special_tokens):
        assert not add_special_tokens
        return SimpleNamespace(input_ids=[list(text) for text in texts])

    env = Silent(goal_texts=["go", "stay"], longest_texts={"action": ["jump", "run away"]})
    template = PromptTemplate("{goal}\n\n{observation}", action_lead=" ")
    lengths = token_lengths(env, characters, template)
    assert lengths == {"goal_length": 4, "action_length": 9}
    assert token_lengths(Silent(), characters) == {}
