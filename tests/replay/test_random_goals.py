"""Goals that other episodes reached: every step of an episode is shown to miss them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_glam.replay import HindsightTransform

from . import toy


def episode(named, outcome="timeout", first_observation=10):
    line = toy.make_stream([len(named)], [outcome], named, first_observation)
    return toy.to_batch([line])


def test_steps_under_a_goal_of_another_episode_bring_nothing_and_end_in_a_time_out():
    transform = HindsightTransform(random_goals_per_episode=1)
    first = transform.inv(episode([[(7, 2)]]))
    assert first["goal_tokens"].tolist() == [[100, 0], [1, 7]]  # nothing is known yet
    rows = transform.inv(episode([[], [], []], outcome="success", first_observation=20))
    assert rows["is_hindsight"].tolist() == [False] * 3 + [True] * 3
    assert rows["observation"].flatten().tolist() == [20, 21, 22] * 2
    assert rows["goal_tokens"][3:].tolist() == rows["next", "goal_tokens"][3:].tolist()
    assert rows["goal_tokens"][3:].tolist() == [[1, 7]] * 3
    assert rows["goal_kind"].tolist() == [0] * 3 + [2] * 3
    assert rows["next", "reward"].flatten().tolist() == [0, 0, 1, 0, 0, 0]
    # the end of an episode that reached its own goal is none under another
    assert rows["next", "terminated"].flatten().tolist() == [False] * 2 + [True] + [False] * 3
    assert rows["next", "truncated"].flatten().tolist() == [False] * 5 + [True]
    assert rows["next", "done"].flatten().tolist() == [False, False, True] * 2


def test_a_failure_that_ends_the_episode_ends_it_under_every_goal():
    transform = HindsightTransform(random_goals_per_episode=1)
    transform.inv(episode([[(7, 2)]]))
    rows = transform.inv(episode([[], []], outcome="failure"))
    assert rows["next", "terminated"].flatten().tolist() == [False, True] * 2
    assert rows["next", "reward"].sum() == 0


def test_goals_that_the_episode_reached_or_pursued_are_not_drawn():
    transform = HindsightTransform(random_goals_per_episode=8)
    transform.inv(episode([[(7, 2), (8, 1), (9, 0)]]))
    again = episode([[(8, 1)], []])
    for td in (again, again["next"]):
        td["goal_tokens"] = torch.tensor([1, 9], dtype=torch.int16).expand(1, 2, 2).clone()
    rows = transform.inv(again)
    missed = [goal for goal in rows["goal_tokens"][2:].tolist() if goal != [1, 8]]
    assert missed == [[1, 7]] * 2  # once, though eight were to be drawn


def test_a_goal_kept_from_relabelling_by_its_number_is_still_reached():
    """A limit on the goals reached makes no failures of those left out."""
    transform = HindsightTransform(goals_per_episode=1, random_goals_per_episode=8)
    for first_observation in (10, 20):
        rows = transform.inv(episode([[(7, 2), (8, 1)]], first_observation=first_observation))
        assert len(rows) == 2 and rows["next", "reward"].flatten().tolist() == [0, 1]


def test_only_failed_episodes_are_relabelled_if_asked_for():
    transform = HindsightTransform("failed", random_goals_per_episode=1)
    transform.inv(episode([[(7, 2)]]))
    assert len(transform.inv(episode([[], []], outcome="success"))) == 2
    assert len(transform.inv(episode([[], []]))) == 4


@given(
    episodes=st.lists(
        st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    ),
    count=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_rows_are_those_of_the_plain_transform_and_of_goals_known_and_missed(episodes, count, seed):
    transform = HindsightTransform(random_goals_per_episode=count, seed=seed)
    plain, known = HindsightTransform(), set()
    for named in episodes:
        batch = episode([[(token, token % 4) for token in step] for step in named])
        rows, expected = transform.inv(batch.clone()), plain.inv(batch.clone())
        assert (rows[: len(expected)] == expected).all()
        rest = rows[len(expected) :]
        reached = {token for step in named for token in step}
        drawn = rest["goal_tokens"][:: len(named), 1].tolist()
        assert len(rest) == len(named) * len(drawn) and len(drawn) <= count
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= known - reached
        assert rest["goal_tokens"].tolist() == [[1, goal] for goal in drawn for _ in named]
        assert rest["goal_kind"].tolist() == [goal % 4 for goal in drawn for _ in named]
        assert rest["observation"].tolist() == batch["observation"][0].tolist() * len(drawn)
        assert not rest["next", "reward"].any() and not rest["next", "terminated"].any()
        known |= reached


def test_what_is_drawn_goes_on_after_saving():
    one = HindsightTransform(random_goals_per_episode=2)
    one.inv(episode([[(token, 0) for token in (5, 6, 7)]]))
    other = HindsightTransform(random_goals_per_episode=2, seed=1)
    other.load_state_dict(one.state_dict())
    copy = one.clone()
    later = episode([[], []])
    expected = one.inv(later.clone())
    assert len(expected) > 2
    assert (other.inv(later.clone()) == expected).all()
    assert (copy.inv(later.clone()) == expected).all()


def test_a_batch_that_is_refused_makes_nothing_known():
    transform = HindsightTransform(random_goals_per_episode=4, capacity=4)
    refused = episode([[(5, 0), (6, 0), (7, 0)], [], []])
    with pytest.raises(ValueError, match="capacity"):
        transform.inv(refused)
    transform.clear()
    assert len(transform.inv(episode([[], []]))) == 2


def test_a_buffer_stores_them():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        transform=HindsightTransform(random_goals_per_episode=1),
        batch_size=4,
    )
    buffer.extend(episode([[(7, 2)]]))
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
