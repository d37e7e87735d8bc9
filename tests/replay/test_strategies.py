"""Hindsight strategies by hand, and the limit on the number of goals, drawn at random."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.replay.strategies import draw_from_each, future

from . import toy
from .test_hindsight import one_episode, streams


def relabelled_rows(transform, batch):
    rows = transform.inv(batch)
    return rows[rows["is_hindsight"]]


def test_a_strategy_can_be_a_function():
    """The goals that were named first, by hand: 8, after the first step."""

    def first(named, episodes):
        copies = future(named, episodes)
        return copies.where(named.place == named.place.min())

    batch = one_episode([[(8, 1)], [(7, 2)], []])
    rows = relabelled_rows(HindsightTransform(strategy=first), batch)
    assert rows["observation"].flatten().tolist() == [10]
    assert rows["goal_tokens"][:, 1].tolist() == [8]


@pytest.mark.parametrize("goals", [torch.tensor([1, 2]), torch.tensor([1 + 1j, 1 - 1j])])
def test_goals_may_be_single_numbers_or_complex(goals):
    batch = one_episode([[(1, 0)], [(2, 0)]])
    batch["next", "hindsight", "goal_tokens"] = goals.view(1, 2, 1).expand(1, 2, toy.SLOTS)
    for td in (batch, batch["next"]):
        td["goal_tokens"] = torch.zeros(1, 2, dtype=goals.dtype)
    rows = relabelled_rows(HindsightTransform(), batch)
    assert rows["goal_tokens"].tolist() == goals[[0, 1, 1]].tolist()


@settings(deadline=None, max_examples=40)
@given(
    data=streams(),
    limit=st.integers(1, 4),
    n_steps=st.integers(1, 4),
    strategy=st.sampled_from(["future", "final"]),
)
def test_at_most_k_goals_with_a_transition(data, limit, n_steps, strategy):
    """Rows are those of the strategy, n-step returns included, and the smaller of k and all."""
    lines, splits = data
    hindsight = HindsightTransform(strategy=strategy, goals_per_transition=limit)
    transform = Compose(SegmentMultiStepTransform(n_steps, 0.5), hindsight)
    rows = [r for b in toy.batches(lines, splits) for r in toy.to_rows(transform.inv(b))]
    possible = [
        row for line in lines for row in toy.reference_rows(line, "all", n_steps, 0.5, strategy)
    ]
    assert Counter(toy.as_multiset(rows)) <= Counter(toy.as_multiset(possible))
    for hindsight, most in ((True, limit), (False, 1)):
        stored = Counter(row.observation for row in rows if row.hindsight == hindsight)
        expected = Counter(row.observation for row in possible if row.hindsight == hindsight)
        assert stored == Counter({key: min(most, n) for key, n in expected.items()})


def test_draws_are_uniform_and_without_replacement():
    groups = torch.tensor([3, 1, 3, 3, 3])  # two of the four members of group 3
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([draw_from_each(groups, 2, generator) for _ in range(2000)])
    assert draws[:, 1].all() and (draws.sum(1) == 3).all()
    share = draws.float().mean(0)[groups == 3]
    assert ((share - 0.5).abs() < 5 * (0.25 / 2000) ** 0.5).all()


def test_a_restored_transform_draws_as_the_unbroken_one():
    named = [[(t % 9 + 1, 0), (t % 5 + 10, 1)] for t in range(24)]
    line = toy.make_stream([6] * 4, ["timeout"] * 4, named, first_observation=0)
    unbroken = HindsightTransform(goals_per_transition=2, seed=4)
    first, *rest = toy.batches([line], [10, 8, 6])
    unbroken.inv(first)
    restored = HindsightTransform(goals_per_transition=2, seed=5)
    restored.load_state_dict(unbroken.state_dict())
    clone = unbroken.clone()
    for batch in rest:
        expected = unbroken.inv(batch)
        assert (restored.inv(batch) == expected).all()
        assert (clone.inv(batch) == expected).all()
