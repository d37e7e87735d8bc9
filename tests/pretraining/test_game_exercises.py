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
    """Of pairs that are seen once, first those of which a word is seen elsewhere too."""
    seen = "a red key 2 left\na red ball 1 left and 3 ahead"
    follow = {  # "a red" is seen twice; "key 2", "ball 1", "and 3" and "3 ahead" have no such word
        "red key": " 2 left\na red",
        "2 left": "\na red ball 1",
        "left a": " red ball 1 left",
        "red ball": " 1 left and 3",
        "1 left": " and 3 ahead",
        "left and": " 3 ahead",
    }
    asked = Counter()
    for pieces in ask("follow", MOVE._replace(observation=seen), number=20):
        for (asks, read), (told, predicted) in zip(pieces[::2], pieces[1::2], strict=True):
            assert (read, predicted) == (False, True)
            pair = asks.removeprefix("\nQuestion: follow ")
            assert told == follow[pair]
            asked[pair] += 1
    assert asked == dict.fromkeys(follow, 20)
    plain = MOVE._replace(observation="one two three")  # where no pair has such a word
    assert {*map(len, ask("follow", plain, number=5))} == {4}
    assert answer("follow", MOVE._replace(observation=""))[1:] == [(" nothing", True)]


def test_words_about_the_goal():
    def about(goal, observation=KITCHEN):
        pieces = answer("about", MOVE._replace(goal=goal, observation=observation))
        told, _ = pieces[-1]
        assert pieces == question("about", (told, True))
        return told

    assert about("go to the red key") == " 2 forward\nWalls: 1"
    assert about("go to the red ball") == " key 2 forward\nWalls:"
    assert about("go to the blue ball") == " nothing"
    two = "a red key 2 left\na red ball 1 left"
    assert about("go to a red ball", two) == " 1 left"
    assert about("find red things", two) == " nothing"  # there are two


def test_a_prompt_asks_for_what_is_in_sight():
    far = MOVE._replace(goal="go to the green box")
    near = MOVE._replace(goal="go to the red key")
    for moves, goal in (([far, near], near.goal), ([far], far.goal)):
        exercises = GameExercises(moves, weights={"about": 1.0}, questions=1)
        prompts = {reading.prompt for reading in exercises(20)}
        assert prompts == {f"Goal: {goal}\n{KITCHEN}\nAction:"}


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
    assert {name for name, _ in counts.most_common(2)} == {"outcome", "about"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moves": []}, "moves is empty"),
        ({"weights": {"plan": 1.0}}, r"weights has unknown exercises \['plan'\]"),
        ({"weights": {"goal": float("nan"), "shared": 1.0}}, r"weights \(.*\) must be numbers"),
        ({"questions": 0}, r"questions \(0\) must be at least 1 and at most 6"),
        ({"questions": 7}, r"questions \(7\) must be at least 1 and at most 6"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GameExercises(**{"moves": [MOVE], **options})
