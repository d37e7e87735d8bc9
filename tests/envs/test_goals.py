"""Goals against the second implementation."""

import itertools

import pytest
import torch

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.vocabulary import OBJECTS, VERBS

from . import reference

COUNTS = {"train": [136, 46, 6218, 2070], "test": [15, 49, 729, 2352]}


@pytest.mark.parametrize("split", COUNTS)
def test_number_of_goals_of_each_kind(split):
    goals = GoalSpace(split)
    assert len(goals) == sum(COUNTS[split]) == {"train": 8470, "test": 3145}[split]
    assert torch.bincount(goals.kind_ids.int()).tolist() == COUNTS[split]
    simple = GoalSpace(split, sequential=False)
    assert len(simple) == sum(COUNTS[split][:2])
    assert simple.kinds == goals.kinds == ("grasp", "grow", "grow_then_grasp", "grow_then_grow")


def test_share_of_sequential_goals():
    kinds = GoalSpace("train").kind_ids
    assert (kinds >= 2).float().mean() == pytest.approx(0.979, abs=5e-4)


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("split", COUNTS)
def test_texts_and_kinds(split, sequential):
    goals = GoalSpace(split, sequential)
    found = {text: goals.kind_of(index) for index, text in enumerate(goals.texts)}
    assert found == reference.all_goals(split, sequential)
    assert all(goals.id_of(text) == index for index, text in enumerate(goals.texts))
    for goal in range(0, len(goals), 97):
        parts = [goals[part] for part in goals.parts[goal].tolist() if part >= 0]
        assert parts == reference.parts_of(goals[goal])


@pytest.mark.parametrize("split", COUNTS)
def test_matches(split):
    goals = GoalSpace(split, sequential=False)
    for event in itertools.product(VERBS, OBJECTS):
        possible = event[0] == "Grasp" or reference.feeds("red water", event[1])
        expected = [text for text in goals.texts if possible and reference.reaches(event, text)]
        assert [goals[goal] for goal in goals.matches(event)] == expected


def test_grasped_red_lion():
    goals = GoalSpace("train")
    named = {goals[goal] for goal in goals.matches(("Grasp", "red lion"))}
    assert named == {
        "Grasp red lion",
        "Grasp any lion",
        "Grasp red living_thing",
        "Grasp any living_thing",
        "Grasp any red thing",
    }


def test_errors():
    goals = GoalSpace("train")
    with pytest.raises(ValueError, match="no goal 'Grow red loin' .* nearest is 'Grow red lion'"):
        goals.id_of("Grow red loin")
    with pytest.raises(ValueError, match="without sequential goals"):
        GoalSpace("train", sequential=False).id_of("Grow red lion then grasp red door")
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'valid'"):
        GoalSpace("valid")
    with pytest.raises(IndexError, match=r"goal_id must be in \[0, 8470\), got 8470"):
        goals[8470]
    with pytest.raises(ValueError, match="verb of an event must be one of .* got 'Eat'"):
        goals.matches(("Eat", "red lion"))
    with pytest.raises(ValueError, match="no object 'red loin'. The nearest is 'red lion'"):
        goals.matches(("Grow", "red loin"))


def test_texts_of_many_goals():
    goals = GoalSpace("test")
    ids = torch.tensor([[[0, -1, 70]], [[-1, 3144, 1]]])
    expected = [[[goals[0], "", goals[70]]], [["", goals[3144], goals[1]]]]
    assert goals.texts_of(ids) == expected
    assert goals.texts_of(ids[0, 0, 2]) == goals[70]
    with pytest.raises(IndexError, match=r"goal_id must be in \[0, 3145\), got 3145"):
        goals.texts_of(torch.tensor([1, 3145]))
