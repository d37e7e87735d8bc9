"""Goals against the second implementation."""

import itertools

import pytest
import torch

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.playground.vocabulary import OBJECTS, VERBS

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


# Sub-goals. Where the second implementation's plans are searched, rooms hold one or two of these.
ROOM = ["red lion", "blue lion", "red rose", "green door", "red food", "blue water", "green tree"]


def shortest_plans(goal, objects):
    """Every shortest plan's events, by a search of all plans of that length."""
    length = reference.shortest_plan(goal, objects)
    if length is None:
        return []
    found, parts = [], reference.parts_of(goal)
    unfinished = [(reference.State(), 0, [])]
    for step in range(length):
        after = []
        for state, stage, events in unfinished:
            for action in reference.list_actions(objects):
                if not reference.is_admissible(state, action):
                    continue
                new, event = reference.act(state, action)
                reached = event is not None and reference.reaches(event, parts[stage])
                seen = [*events, event] if event else events
                if reached and stage + 1 == len(parts):
                    assert step + 1 == length
                    found.append(seen)
                else:
                    after.append((new, stage + reached, seen))
        unfinished = after
    return found


@pytest.mark.parametrize(
    "goal", ["Grasp red lion", "Grasp any lion", "Grow any lion", "Grow red rose", "Grow any plant"]
)
def test_steps_of_a_goal_are_the_events_on_its_shortest_plans(goal):
    """Goals that one event alone reaches are sub-goals where that event is on some plan."""
    split = "test" if goal == "Grow any plant" or "rose" in goal else "train"
    goals = GoalSpace(split, sequential=False)
    on_plans = set()
    for objects in itertools.combinations(ROOM, 2):
        on_plans.update(*shortest_plans(goal, objects))
    for event in itertools.product(VERBS, ROOM):
        named = " ".join(event)
        if named in goals.texts:
            found = goals.is_subgoal(*map(torch.tensor, (goals.id_of(named), goals.id_of(goal))))
            assert found == (event in on_plans), named


def is_subgoal(a, b):
    """The definition on texts: what reaches a simple goal is a step of one of b's parts."""
    (first, *second), (b_first, *b_second) = reference.parts_of(a), reference.parts_of(b)
    if second:
        return bool(b_second) and implies(first, b_first) and is_step(second[0], b_second[0])
    return is_step(first, b_first) or any(is_step(first, part) for part in b_second)


def events_of(goal):
    living = [item for item in OBJECTS if item.split()[1] in reference.PLANTS + reference.ANIMALS]
    possible = {"Grasp": OBJECTS, "Grow": living}
    return [
        e for v in VERBS for e in itertools.product([v], possible[v]) if reference.reaches(e, goal)
    ]


def implies(a, b):
    return all(reference.reaches(event, b) for event in events_of(a))


def is_step(a, b):
    grown = [item for verb, item in events_of(b) if verb == "Grow"]

    def on_the_way(event):
        verb, item = event
        helps = item in grown or any(reference.feeds(item, living) for living in grown)
        return reference.reaches(event, b) or (verb == "Grasp" and helps)

    return all(on_the_way(event) for event in events_of(a))


@pytest.mark.parametrize("split", COUNTS)
def test_subgoals_of_simple_goals(split):
    goals = GoalSpace(split, sequential=False)
    ids = torch.arange(len(goals))
    found = goals.is_subgoal(ids.unsqueeze(1), ids)
    chosen = ids[:: 1 if split == "test" else 3].tolist()
    for a, b in itertools.product(chosen, chosen):
        assert found[a, b] == is_subgoal(goals[a], goals[b]), (goals[a], goals[b])
    assert found.diagonal().all()


def test_subgoals_of_sequential_goals():
    goals = GoalSpace("train")
    draw = torch.Generator().manual_seed(0)
    # Random pairs are seldom related: half of the second goals share parts with the first.
    a = torch.randint(len(goals), (400,), generator=draw)
    b = torch.randint(len(goals), (400,), generator=draw)
    a[::4] = goals.parts[b[::4], 0]
    a[1::4] = goals.sequence_ids[goals.parts[b[1::4], 0]].amax(-1)
    a = a.clamp_min(0)
    found = goals.is_subgoal(a, b)
    expected = [is_subgoal(goals[i], goals[j]) for i, j in zip(a.tolist(), b.tolist(), strict=True)]
    assert found.tolist() == expected
    assert 0.2 < found.float().mean() < 0.8


def test_the_papers_hierarchy():
    """SAC-GLAM, Appendix E: grasp goals serve grow goals, and these serve sequential ones."""
    goals = GoalSpace("train")
    expected = {
        ("Grasp red lion", "Grow red lion"): True,
        ("Grow red lion", "Grow red lion then grasp red door"): True,
        ("Grasp red door", "Grow red lion then grasp red door"): True,
        ("Grasp any water", "Grow red lion then grasp red door"): True,
        ("Grow red lion then grasp red door", "Grow any lion then grasp red door"): True,
        ("Grow any lion then grasp red door", "Grow red lion then grasp red door"): False,
        ("Grow red lion then grasp red door", "Grow red lion"): False,
        ("Grasp red door", "Grow red lion"): False,
        ("Grasp any red thing", "Grow red lion"): False,
        ("Grow red lion", "Grasp red lion"): False,
    }
    for (a, b), value in expected.items():
        ids = torch.tensor([goals.id_of(a), goals.id_of(b)])
        assert goals.is_subgoal(ids[0], ids[1]) == value, (a, b)


def test_subgoals_of_no_goal():
    goals = GoalSpace("train", sequential=False)
    with pytest.raises(IndexError, match=r"goal ids must be in \[0, 182\), got -1 to 3"):
        goals.is_subgoal(torch.tensor([3, -1]), torch.tensor(0))


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
