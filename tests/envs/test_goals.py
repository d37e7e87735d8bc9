"""Goals against the second implementation."""

import functools
import itertools

import playground_reference as reference
import pytest
import torch

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.playground.vocabulary import OBJECTS, VERBS

# 8,470 goals and 3,145; of the first 97.9 % are sequential, the paper's 98 %.
COUNTS = {"train": [136, 46, 6218, 2070], "test": [15, 49, 729, 2352]}


def hopeless_goals(split, sequential):
    """Texts of goals that ask to grow furniture or a supply, in one of their parts."""
    names = [*reference.FURNITURE, *reference.SUPPLIES, "furniture", "supply"]
    every = [f"Grow {colour} {name}" for name in names for colour in [*reference.COLOURS, "any"]]
    hopeless = [goal for goal in every if reference.is_held_out(goal) == (split == "test")]
    grasp, grow = reference.simple_goals(split)
    pairs = [(a, b) for a in grow + hopeless for b in grasp + grow + hopeless if sequential]
    return hopeless + [
        f"{a} then g{b[1:]}"
        for a, b in pairs
        if {a, b} & {*hopeless} and a.split()[-2:] != b.split()[-2:]
    ]


@pytest.mark.parametrize("impossible", [0.0, 0.8])
@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("split", COUNTS)
def test_texts_and_kinds(split, sequential, impossible):
    goals = GoalSpace(split, sequential, impossible)
    of_kind = [[] for _ in range(5)]
    for text, kind in zip(goals.texts, goals.kind_ids.tolist(), strict=True):
        of_kind[kind].append(text)
    possible = {text: goals.kinds[kind] for kind in range(4) for text in of_kind[kind]}
    assert possible == reference.all_goals(split, sequential)
    hopeless = [*hopeless_goals(split, sequential), *possible] if impossible else []
    assert sorted(of_kind[4]) == sorted(hopeless)
    assert goals.kinds[4:] == ("impossible",) * bool(impossible)
    counts = [*map(len, of_kind[:4])]
    assert counts == (COUNTS[split] if sequential else [*COUNTS[split][:2], 0, 0])
    shares = [(1 - impossible) * count / len(possible) for count in counts]
    assert goals.kind_shares == pytest.approx([*shares, impossible][: len(goals.kinds)])
    for text in possible:
        goal = goals.id_of(text)
        assert goals[goal] == text and goals.kinds[goals.kind_ids[goal]] == possible[text]
    for goal in range(0, len(goals), 97):
        parts = [goals[part] for part in goals.parts[goal].tolist() if part >= 0]
        assert parts == reference.parts_of(goals[goal])


@pytest.mark.parametrize("split", COUNTS)
def test_goals_that_an_event_reaches(split):
    goals = GoalSpace(split, sequential=False)
    for (verb, name), (item, text) in itertools.product(enumerate(VERBS), enumerate(OBJECTS)):
        possible = name == "Grasp" or reference.feeds("red water", text)
        reached = [possible and reference.reaches((name, text), goal) for goal in goals.texts]
        assert goals.reached_by[:, verb, item].tolist() == reached


def is_subgoal(a, b):
    """The definition on texts: what reaches a simple goal is a step of one of b's parts."""
    (first, *second), (b_first, *b_second) = reference.parts_of(a), reference.parts_of(b)
    if second:
        return bool(b_second) and implies(first, b_first) and is_step(second[0], b_second[0])
    return is_step(first, b_first) or any(is_step(first, part) for part in b_second)


@functools.cache
def events_of(goal):
    living = [item for item in OBJECTS if item.split()[1] in reference.PLANTS + reference.ANIMALS]
    possible = {"Grasp": OBJECTS, "Grow": living}
    events = [event for verb in VERBS for event in itertools.product([verb], possible[verb])]
    return [event for event in events if reference.reaches(event, goal)]


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
    """Of all goals about a few things, which are often related; parts alone are among them."""
    goals = GoalSpace("train")
    words = {*"grow grasp then any red thing lion animal living_thing water".split()}
    chosen = [i for i, text in enumerate(goals.texts) if words >= {*text.lower().split()}]
    ids = torch.tensor(chosen)
    found = goals.is_subgoal(ids.unsqueeze(1), ids)
    assert found.tolist() == [[is_subgoal(goals[a], goals[b]) for b in chosen] for a in chosen]
    is_long = goals.parts[ids, 1] >= 0
    assert 0.05 < found[is_long][:, is_long].float().mean() < 0.8


def test_the_papers_hierarchy():
    """SAC-GLAM, Appendix E: grasp goals serve grow goals, and these serve sequential ones."""
    goals = GoalSpace("train")
    lion, both = "Grow red lion", "Grow red lion then grasp red door"
    any_lion = both.replace("red lion", "any lion")
    serve = [("Grasp red lion", lion), (lion, both), ("Grasp red door", both)]
    serve += [("Grasp any water", both), (both, any_lion)]
    apart = [(any_lion, both), (both, lion), ("Grasp red door", lion)]
    apart += [("Grasp any red thing", lion), (lion, "Grasp red lion")]
    for a, b in serve + apart:
        ids = torch.tensor([goals.id_of(a), goals.id_of(b)])
        assert goals.is_subgoal(ids[0], ids[1]) == ((a, b) in serve), (a, b)


def test_errors():
    goals, simple = GoalSpace("train"), GoalSpace("train", sequential=False)
    with pytest.raises(ValueError, match="no goal 'Grow red loin' .* nearest is 'Grow red lion'"):
        goals.id_of("Grow red loin")
    with pytest.raises(ValueError, match="without sequential goals"):
        simple.id_of("Grow red lion then grasp red door")
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'valid'"):
        GoalSpace("valid")
    with pytest.raises(IndexError, match=r"goal_id must be in \[0, 8470\), got 8470"):
        goals.texts_of(torch.tensor([1, 8470]))
    with pytest.raises(IndexError, match=r"goal ids must be in \[0, 182\), got -1 to 3"):
        simple.is_subgoal(torch.tensor([3, -1]), torch.tensor(0))


def test_texts_of_many_goals():
    goals = GoalSpace("test")
    ids = torch.tensor([[[0, -1, 70]], [[-1, 3144, 1]]])
    expected = [[[goals[0], "", goals[70]]], [["", goals[3144], goals[1]]]]
    assert goals.texts_of(ids) == expected
    assert goals.texts_of(ids[0, 0, 2]) == goals[70]
