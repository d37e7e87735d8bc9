"""Goals that other episodes pursued: every step of an episode is shown to miss them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_glam.replay import HindsightTransform

from . import toy


def episode(named, outcome="timeout", first_observation=10, pursued=100):
    """One episode that pursues the goal (1, ``pursued``), of kind ``pursued % 4``."""
    line = toy.make_stream([len(named)], [outcome], named, first_observation)
    batch = toy.to_batch([line])
    for td in (batch, batch["next"]):
        td["goal_tokens"] = torch.tensor([1, pursued], dtype=torch.int16).repeat(1, len(named), 1)
        td["goal_kind"] = torch.full((1, len(named)), pursued % 4, dtype=torch.int8)
    return batch


def test_steps_under_a_goal_of_another_episode_bring_nothing_and_end_in_a_time_out():
    transform = HindsightTransform(random_goals_per_episode=1)
    first = transform.inv(episode([[]], pursued=6))
    assert first["goal_tokens"].tolist() == [[1, 6]]  # no other is known yet
    rows = transform.inv(episode([[], [], []], "success", first_observation=20))
    assert rows["is_hindsight"].tolist() == [False] * 3 + [True] * 3
    assert rows["observation"].flatten().tolist() == [20, 21, 22] * 2
    assert rows["goal_tokens"][3:].tolist() == rows["next", "goal_tokens"][3:].tolist()
    assert rows["goal_tokens"][3:].tolist() == [[1, 6]] * 3
    assert rows["goal_kind"].tolist() == [0] * 3 + [2] * 3
    assert rows["next", "reward"].flatten().tolist() == [0, 0, 1, 0, 0, 0]
    # the end of an episode that reached its own goal is none under another
    assert rows["next", "terminated"].flatten().tolist() == [False] * 2 + [True] + [False] * 3
    assert rows["next", "truncated"].flatten().tolist() == [False] * 5 + [True]
    assert rows["next", "done"].flatten().tolist() == [False, False, True] * 2


def test_a_failure_that_ends_the_episode_ends_it_under_every_goal():
    transform = HindsightTransform(random_goals_per_episode=1)
    transform.inv(episode([[]], pursued=6))
    rows = transform.inv(episode([[], []], "failure"))
    assert rows["next", "terminated"].flatten().tolist() == [False, True] * 2
    assert rows["next", "reward"].sum() == 0


def test_goals_that_the_episode_reached_or_pursued_are_not_drawn():
    transform = HindsightTransform(random_goals_per_episode=50)
    for pursued in (6, 7, 8):
        transform.inv(episode([[]], pursued=pursued))
    rows = transform.inv(episode([[(8, 1)], []], pursued=6))
    assert rows["goal_tokens"].tolist() == [[1, 6]] * 2 + [[1, 8]] + [[1, 7]] * 2  # each once


def test_a_goal_that_a_limit_kept_from_relabelling_was_reached_all_the_same():
    transform = HindsightTransform(goals_per_episode=1, random_goals_per_episode=8)
    for pursued in (7, 8):
        transform.inv(episode([[]], pursued=pursued))
    rows = transform.inv(episode([[(7, 2), (8, 1)]]))
    assert len(rows) == 2 and rows["next", "reward"].flatten().tolist() == [0, 1]


def test_only_failed_episodes_are_relabelled_if_asked_for():
    transform = HindsightTransform("failed", random_goals_per_episode=1)
    transform.inv(episode([[]], "success", pursued=6))
    assert len(transform.inv(episode([[], []], "success"))) == 2
    assert transform.inv(episode([[]]))["goal_tokens"].tolist() == [[1, 100], [1, 6]]


@given(
    episodes=st.lists(
        st.tuples(
            st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=8,
    ),
    count=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_rows_are_those_of_the_plain_transform_and_of_goals_of_others_that_were_missed(
    episodes, count, seed
):
    transform = HindsightTransform(random_goals_per_episode=count, seed=seed)
    plain, pursued_before = HindsightTransform(), set()
    for named, pursued in episodes:
        goals = [[(token, token % 4) for token in step] for step in named]
        batch = episode(goals, pursued=pursued)
        rows, expected = transform.inv(batch.clone()), plain.inv(batch.clone())
        assert (rows[: len(expected)] == expected).all()
        rest = rows[len(expected) :]
        drawn = rest["goal_tokens"][:: len(named), 1].tolist()
        assert len(rest) == len(named) * len(drawn) and len(drawn) <= count
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= pursued_before - {token for step in named for token in step}
        assert pursued not in drawn
        assert rest["goal_tokens"].tolist() == [[1, goal] for goal in drawn for _ in named]
        assert rest["goal_kind"].tolist() == [goal % 4 for goal in drawn for _ in named]
        assert rest["observation"].tolist() == batch["observation"][0].tolist() * len(drawn)
        assert not rest["next", "reward"].any() and not rest["next", "terminated"].any()
        pursued_before.add(pursued)


def test_what_is_drawn_goes_on_after_saving():
    one = HindsightTransform(random_goals_per_episode=2)
    for pursued in (5, 6, 7):
        one.inv(episode([[]], pursued=pursued))
    other = HindsightTransform(random_goals_per_episode=2, seed=1)
    other.load_state_dict(one.state_dict())
    copy = one.clone()
    later = episode([[], []])
    expected = one.inv(later.clone())
    assert len(expected) > 2
    assert (other.inv(later.clone()) == expected).all()
    assert (copy.inv(later.clone()) == expected).all()


def test_a_batch_that_is_refused_makes_its_goal_known_to_nobody():
    transform = HindsightTransform(random_goals_per_episode=4, capacity=4)
    with pytest.raises(ValueError, match="capacity"):
        transform.inv(episode([[], [], [], [], []], pursued=6))
    transform.clear()
    assert len(transform.inv(episode([[], []]))) == 2


def test_goals_of_others_keep_their_type():
    """The goals named are floats here, which cannot hold every goal pursued."""
    transform, large = HindsightTransform(random_goals_per_episode=1), 2**24 + 1
    for pursued in (large, 3):
        batch = episode([[(7, 2)]])
        batch["next", "hindsight", "goal_tokens"] = batch[
            "next", "hindsight", "goal_tokens"
        ].float()
        for td in (batch, batch["next"]):
            td["goal_tokens"] = torch.tensor([[[1, pursued]]])
        rows = transform.inv(batch)
    assert rows["goal_tokens"].tolist() == [[1, 3], [1, 7], [1, large]]


def test_a_buffer_stores_them():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        transform=HindsightTransform(random_goals_per_episode=1),
        batch_size=4,
    )
    buffer.extend(episode([[(7, 2)]], pursued=6))
    buffer.extend(episode([[], []]))
    assert len(buffer) == 2 + 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_goals_per_episode": -1}, r"random_goals_per_episode \(-1\) must be at least 0"),
        ({"relabel": "none", "random_goals_per_episode": 2}, r"random_goals_per_episode \(2\)"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HindsightTransform(**settings)
