"""Reading exercises of any game against answers worked out by hand."""

from collections import Counter
from itertools import product

import pytest

from torchrl_glam.pretraining import GAME_EXERCISES, GameExercises, Move

KITCHEN = "You see: red key 2 forward\nWalls: 1 left\nYou carry: nothing"
NEARER = "You see: red key 1 forward\nWalls: 1 left\nYou carry: nothing"
MOVE = Move(
    goal="go to the red ball",
    observation=KITCHEN,
    actions=["turn left", "go forward"],
    action="go forward",
    after=NEARER,
)


def ask(name, move=MOVE, number=1):
    exercises = GameExercises([move], weights={name: 1.0}, questions=1)
    return [reading.answers[0] for reading in exercises(number)]


def answer(name, move=MOVE):
    return ask(name, move)[0]


def question(text, *pieces):
    return [(f"\nQuestion: {text}", False), *pieces]


def test_outcome_tells_the_lines_that_are_new_up_to_32_words():
    told = "\nYou see: red key 1 forward"
    assert answer("outcome") == [(" go forward", True), (told, True)]
    alike = MOVE._replace(after=KITCHEN)
    assert answer("outcome", alike) == [(" go forward", True), (" nothing", True)]
    assert answer("outcome", MOVE._replace(after=KITCHEN + "\n")) == answer("outcome", alike)
    long = MOVE._replace(after=" ".join(["a word"] * 20))
    assert answer("outcome", long)[1][0] == "\n" + " ".join(["a word"] * 16)


def test_other_questions():
    assert answer("goal") == question("goal", (" go to the red ball", True))
    assert answer("goal", MOVE._replace(goal="")) == question("goal", (" nothing", True))
    assert answer("shared") == question("shared", (" red", True))
    apart = MOVE._replace(goal="find it")
    assert answer("shared", apart) == question("shared", (" nothing", True))


def test_words_that_follow():
    words = f" {' '.join(KITCHEN.split())} "
    for pieces in ask("follow", number=50):
        (asked, read), (told, predicted) = pieces
        assert (read, predicted) == (False, True)
        first, second = asked.removeprefix("\nQuestion: follow").split()
        assert f" {' '.join([first, second, *told.split()])} " in words
    assert answer("follow", MOVE._replace(observation=""))[1] == (" nothing", True)


def test_admissible_are_those_of_the_state_and_others_are_asked_about():
    other = MOVE._replace(actions=["drop"], action="drop")
    exercises = GameExercises([MOVE, other], weights={"admissible": 1.0}, questions=1)
    seen = Counter()
    for reading in exercises(200):
        pieces = reading.answers[0]
        assert pieces[:1] == question("admissible")
        for (action, read), (told, predicted) in zip(pieces[1::2], pieces[2::2], strict=True):
            assert (read, predicted) == (False, True)
            seen[action, told] += 1
    # Both states look alike, so each action is admissible in one of them.
    assert seen.keys() == {*product((" turn left", " go forward", " drop"), (" yes", " no"))}
    assert seen[" drop", " yes"] > seen[" drop", " no"]


def test_questions_about_a_state_differ_and_come_by_their_weights():
    counts = Counter()
    for reading in GameExercises([MOVE], questions=3)(400):
        starts = [pieces[0][0].split()[:2] for pieces in reading.answers]
        names = [start[1] if start[0] == "Question:" else "outcome" for start in starts]
        assert len(set(names)) == 3
        counts.update(names)
    assert counts.keys() == set(GAME_EXERCISES)
    assert max(counts, key=counts.get) == "outcome"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moves": []}, "moves is empty"),
        ({"weights": {"plan": 1.0}}, r"weights has unknown exercises \['plan'\]"),
        ({"weights": {"goal": float("nan"), "shared": 1.0}}, r"weights \(.*\) must be numbers"),
        ({"questions": 0}, r"questions \(0\) must be at least 1 and at most 5"),
        ({"questions": 6}, r"questions \(6\) must be at least 1 and at most 5"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GameExercises(**{"moves": [MOVE], **options})
