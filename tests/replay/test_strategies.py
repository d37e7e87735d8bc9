"""Hindsight strategies by hand, and the limits on the number of goals drawn at random."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.replay.strategies import draw_from_each, future

from . import toy
from .test_hindsight import streams


def relabelled_rows(transform, batch):
    rows = transform.inv(batch)
    return rows[rows["is_hindsight"]]


def test_final_by_hand():
    """Goals 7 and 9 are named last, after the third of four steps; 8 was named before."""
    named = [[(8, 1)], [], [(7, 2), (9, 0)], []]
    line = toy.make_stream([4], ["timeout"], named, first_observation=10)
    rows = relabelled_rows(HindsightTransform(strategy="final"), toy.to_batch([line]))
    assert rows["observation"].flatten().tolist() == [10, 11, 12] * 2
    assert rows["goal_tokens"][:, 1].tolist() == [7] * 3 + [9] * 3
    assert rows["next", "reward"].flatten().tolist() == [0, 0, 1] * 2


@pytest.mark.parametrize(
    ("outcome", "terminated"), [("timeout", False), ("success", False), ("failure", True)]
)
def test_episode_by_hand(outcome, terminated):
    """Goal 7 is named after the first and second of four steps: the last two do not reach it."""
    line = toy.make_stream([4], [outcome], [[(7, 2)], [(7, 2)], [], []], first_observation=10)
    rows = relabelled_rows(
        HindsightTransform(strategy="episode", naming="every"), toy.to_batch([line])
    )
    following = rows["next"]
    assert rows["observation"].flatten().tolist() == [10, 11, 12, 13]
    assert (rows["goal_tokens"][:, 1] == 7).all()
    assert following["reward"].flatten().tolist() == [1, 1, 0, 0]
    assert following["done"].flatten().tolist() == [True, True, False, True]
    assert following["terminated"].flatten().tolist() == [True, True, False, terminated]
    assert following["truncated"].flatten().tolist() == [False] * 3 + [not terminated]


@pytest.mark.parametrize("goals", [torch.tensor([1, 2]), torch.tensor([1 + 1j, 1 - 1j])])
def test_goals_may_be_single_numbers_or_complex(goals):
    line = toy.make_stream([2], ["timeout"], [[(1, 0)], [(2, 0)]], first_observation=10)
    batch = toy.to_batch([line])
    batch["next", "hindsight", "goal_tokens"] = goals.view(1, 2, 1).expand(1, 2, toy.SLOTS)
    for td in (batch, batch["next"]):
        td["goal_tokens"] = torch.zeros(1, 2, dtype=goals.dtype)
    rows = relabelled_rows(HindsightTransform(), batch)
    assert rows["goal_tokens"].tolist() == goals[[0, 1, 1]].tolist()


def test_where_goals_are_named_once_the_episode_strategy_is_refused():
    for naming in ({}, {"naming": "first"}):
        with pytest.raises(ValueError, match=r'strategy \("episode"\) .* PlaygroundTextEnv'):
            HindsightTransform(strategy="episode", **naming)
    HindsightTransform("none", strategy="episode")  # nothing is relabelled


def test_a_strategy_can_be_a_function():
    """The goals that were named first, by hand: 8, after the first step."""

    def first(named, episodes):
        copies = future(named, episodes)
        return copies.where(named.place == named.place.min())

    line = toy.make_stream([3], ["timeout"], [[(8, 1)], [(7, 2)], []], first_observation=10)
    rows = relabelled_rows(HindsightTransform(strategy=first), toy.to_batch([line]))
    assert rows["observation"].flatten().tolist() == [10]
    assert rows["goal_tokens"][:, 1].tolist() == [8]


def counted(rows):
    return Counter(toy.as_multiset(rows))


@settings(deadline=None, max_examples=40)
@given(
    data=streams(),
    limit=st.integers(1, 4),
    strategy=st.sampled_from(["future", "final", "episode"]),
)
def test_at_most_k_goals_of_an_episode(data, limit, strategy):
    """Goals are drawn, not namings: all rows of a goal, of the smaller of k goals and all."""
    lines, splits = data
    transform = Compose(
        SegmentMultiStepTransform(2, 0.5),
        HindsightTransform(strategy=strategy, naming="every", goals_per_episode=limit),
    )
    rows = [r for b in toy.batches(lines, splits) for r in toy.to_rows(transform.inv(b))]
    rows = [row for row in rows if row.hindsight]
    for line in lines:
        for episode in toy.episodes_of(line):
            steps = range(episode[0].observation, episode[-1].observation + 1)
            own = [row for row in rows if row.observation in steps]
            possible = toy.reference_rows(episode, "all", 2, 0.5, strategy)
            possible = [row for row in possible if row.hindsight]
            drawn = {row.goal for row in own}
            assert len(drawn) == min(limit, len({row.goal for row in possible}))
            assert toy.as_multiset(own) == toy.as_multiset(r for r in possible if r.goal in drawn)


@settings(deadline=None, max_examples=40)
@given(
    data=streams(),
    limit=st.integers(1, 4),
    n_steps=st.integers(1, 4),
    strategy=st.sampled_from(["future", "final", "episode"]),
)
def test_at_most_k_goals_with_a_transition(data, limit, n_steps, strategy):
    """Rows are those of the strategy, n-step returns included, and the smaller of k and all."""
    lines, splits = data
    transform = Compose(
        SegmentMultiStepTransform(n_steps, 0.5),
        HindsightTransform(strategy=strategy, naming="every", goals_per_transition=limit),
    )
    rows = [r for b in toy.batches(lines, splits) for r in toy.to_rows(transform.inv(b))]
    possible = [
        row for line in lines for row in toy.reference_rows(line, "all", n_steps, 0.5, strategy)
    ]
    assert counted(rows) <= counted(possible)
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


@pytest.mark.parametrize("limit", ["goals_per_episode", "goals_per_transition"])
def test_a_restored_transform_draws_as_the_unbroken_one(limit):
    named = [[(t % 9 + 1, 0), (t % 5 + 10, 1)] for t in range(24)]
    line = toy.make_stream([6] * 4, ["timeout"] * 4, named, first_observation=0)
    unbroken = HindsightTransform(**{limit: 2}, seed=4)
    first, *rest = toy.batches([line], [10, 8, 6])
    unbroken.inv(first)
    restored = HindsightTransform(**{limit: 2}, seed=5)
    restored.load_state_dict(unbroken.state_dict())
    clone = unbroken.clone()
    for batch in rest:
        expected = unbroken.inv(batch)
        assert (restored.inv(batch) == expected).all()
        assert (clone.inv(batch) == expected).all()


def test_rows_that_are_dropped_do_not_count_for_the_capacity():
    line = toy.make_stream([3], ["timeout"], [[(1, 0)], [(2, 0)], [(3, 0)]], 0)
    transform = HindsightTransform(goals_per_transition=1, capacity=6)
    assert int((~transform.inv(toy.to_batch([line]))["is_context"]).sum()) == 6
    with pytest.raises(ValueError, match=r"6 rows .* capacity \(5\)"):
        HindsightTransform(goals_per_transition=1, capacity=5).inv(toy.to_batch([line]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "past"}, r"strategy \('past'\) must be"),
        ({"goals_per_episode": 0}, r"goals_per_episode \(0\) must be at least 1"),
        ({"goals_per_transition": -1}, r"goals_per_transition \(-1\) must be at least 1"),
        ({"goals_per_episode": 2, "goals_per_transition": 3}, "must not both be given"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        HindsightTransform(**settings)
