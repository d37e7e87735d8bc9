"""Hindsight rows of each goal as often as of the others of its kind."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_glam.replay import GoalBalancedSampler

PRIOR = [1.0, 3.0]


def make_buffer(sampler, capacity=60, batch_size=64, storage=LazyTensorStorage):
    return TensorDictReplayBuffer(
        storage=storage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )


def rows(goals, is_hindsight=True, first=0):
    """Rows of the goals named; the kind of a goal is whether its number is odd."""
    goals = torch.as_tensor(goals)
    is_hindsight = torch.as_tensor(is_hindsight).expand(len(goals)).clone()
    content = {
        "goal_tokens": torch.stack([goals, goals // 3], -1).int(),
        "goal_kind": (goals % 2).to(torch.int8),
        "is_hindsight": is_hindsight.unsqueeze(-1),
        "number": torch.arange(first, first + len(goals)),
    }
    return TensorDict(content, [len(goals)])


def chances(stored, hindsight_share):
    """Chance of each stored row (goal, hindsight) in a draw, by the definition, row by row."""
    result = []
    for goal, is_hindsight in stored:
        side = [g for g, h in stored if h == is_hindsight]
        kind = [g for g in side if g % 2 == goal % 2]
        prior = {k: PRIOR[k] for k in {g % 2 for g in side}}
        chance = hindsight_share if is_hindsight else 1 - hindsight_share
        chance *= prior[goal % 2] / sum(prior.values())
        if is_hindsight:
            chance /= len(set(kind)) * kind.count(goal)
        else:
            chance /= len(kind)
        result.append(chance)
    return torch.tensor(result)


@settings(deadline=None, max_examples=25)
@given(
    calls=st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12),
        min_size=1,
        max_size=6,
    )
)
@pytest.mark.filterwarnings("ignore:The replay buffer holds no")
def test_chances_are_those_of_the_definition(calls):
    """Also where rows were overwritten, and goals have lost all of theirs."""
    buffer = make_buffer(GoalBalancedSampler(PRIOR, ratio=0.5), capacity=16, batch_size=8000)
    stored, cursor = {}, 0
    for call in calls:
        goals, hindsight = zip(*call, strict=True)
        buffer.extend(rows(goals, torch.tensor(hindsight), first=cursor))
        for row in call:
            stored[cursor % 16] = row
            cursor += 1
    now = [stored[place] for place in sorted(stored)]
    sides = {is_hindsight for _, is_hindsight in now}
    share = 0.5 if len(sides) == 2 else float(sides == {True})
    expected = chances(now, share) * 8000
    counts = torch.bincount(buffer.sample()["index"], minlength=len(now))
    assert ((counts - expected).abs() < 6 * expected.sqrt() + 1).all()


def test_a_goal_reached_often_crowds_out_no_other():
    buffer = make_buffer(GoalBalancedSampler(PRIOR, 1.0), batch_size=6000)
    buffer.extend(rows([1] * 50 + [3, 5]))
    with pytest.warns(UserWarning, match=r"kind \[0\]"):
        drawn = Counter(buffer.sample()["goal_tokens"][:, 0].tolist())
    assert drawn.keys() == {1, 3, 5}
    assert all(abs(count - 2000) < 5 * 2000**0.5 for count in drawn.values())


def test_rows_without_a_goal_are_refused():
    buffer = make_buffer(GoalBalancedSampler(PRIOR))
    with pytest.raises(KeyError, match="goal_tokens"):
        buffer.extend(rows([1, 2]).exclude("goal_tokens"))
