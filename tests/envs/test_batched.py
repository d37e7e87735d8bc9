"""Playground-Text under TorchRL's collectors, batched environments and transforms."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import Categorical
from torchrl.envs import (
    ActionMask,
    Compose,
    ParallelEnv,
    RewardSum,
    SelectTransform,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

from torchrl_glam.envs import CandidateActions, CandidateMask, PlaygroundTextEnv
from torchrl_glam.text import TokenizeText

make = partial(PlaygroundTextEnv, 4, num_objects=3, sequential=False, max_steps=5)


def of_another_make():
    env = make(seed=0)
    env.action_spec = Categorical(5, shape=(4,))
    return TransformedEnv(env, CandidateMask())


def test_draws_are_uniform_over_what_is_admissible():
    spec = CandidateActions(4, shape=(3000,))
    copy, other = spec.clone(), spec.expand(2, 3000)
    assert copy.rand().bincount(minlength=4).min() > 600  # 750 in the mean
    spec.update_mask(torch.tensor([True, False, True, True]).expand(3000, -1))
    for drawn in (spec.rand(), copy.rand(), copy.clone().rand()):
        count = drawn.bincount(minlength=4)
        assert count[1] == 0 and (count[[0, 2, 3]] - 1000).abs().max() < 150
    assert copy.rand(torch.Size([2])).shape == (2, 3000)
    assert (other.rand() == 1).any(), "of another shape, so of other environments"
    assert spec.is_in(torch.ones(3000).long()), "an action of an earlier state"


def collect_at_random(env, steps=30):
    frames = steps * env.batch_size.numel()
    collector = Collector(env, None, frames_per_batch=frames, total_frames=2 * frames)
    for batch in collector:
        assert batch["action_mask"].gather(-1, batch["action"].unsqueeze(-1)).all()
        assert batch["next", "done"].any() and batch["next", "terminated"].any()
        assert batch["action"].flatten().bincount(minlength=5).min() > 0
    collector.shutdown()


@pytest.mark.parametrize(
    "env",
    [make, lambda: TransformedEnv(make(), ActionMask()), of_another_make],
    ids=["plain", "torchrl's mask", "of another make"],
)
def test_random_play_without_a_policy(env):
    collect_at_random(env())


def around(tokenizer, env):
    """The transforms of a recipe and more, around an environment."""
    read = [f"{slot}_tokens" for slot in ("goal", "observation", "action")]
    read = SelectTransform(*read, "action_mask", "hindsight")
    tokens = TokenizeText(tokenizer, observation_length=40)
    return TransformedEnv(env, Compose(tokens, read, StepCounter(), RewardSum(), CandidateMask()))


@pytest.mark.parametrize("batched", [SerialEnv, partial(ParallelEnv, mp_start_method="fork")])
def test_transforms_around_a_batch_do_what_they_do_around_each_and_it_plays_at_random(
    tokenizer, batched
):
    makers = [partial(make, seed=seed) for seed in (3, 4)]
    alone = [around(tokenizer, maker()) for maker in makers]
    expected = torch.stack([env.rollout(17, break_when_any_done=False) for env in alone])
    env = around(tokenizer, batched(2, makers))
    actions = iter(expected["action"].unbind(-1))
    same = TensorDictModule(lambda mask: next(actions), ["action_mask"], ["action"])
    found = env.rollout(17, same, break_when_any_done=False)
    assert (found == expected).all()
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    assert found["next", "done"].any(2).all() and found["next", "terminated"].any()
    named = (found["next", "hindsight", "goal_tokens"] != tokenizer.pad_token_id).any(-1)
    assert torch.equal(named, found["next", "hindsight", "goal_id"] >= 0) and named.any()
    collect_at_random(env, steps=15)  # closes it


def test_goals_of_environments_that_differ_are_refused(tokenizer):
    def renumbered():
        env = make()
        env.goal_texts = env.goals.texts[::-1]
        return env

    env = around(tokenizer, SerialEnv(2, [make, renumbered]))
    with pytest.raises(ValueError, match="goal_texts differ from one environment of the batch"):
        env.reset()
