"""Reading exercises of any game against answers worked out by hand."""

from collections import Counter

import pytest

from torchrl_glam.pretraining import GAME_EXERCISES, GameExercises, Move, make_word_tokenizer

KITCHEN = "You see: red key 2 forward\nWalls: 1 left\nYou carry: nothing"
NEARER = "You see: red key 1 forward\nWalls: 1 left\nYou carry: nothing"
MOVE = Move(
    goal="go to the red ball",
    observation=KITCHEN,
    actions=["turn left", "go forward"],
    action="go forward",
    after=NEARER,
    reached=False,
    named=["go to the red key"],
    later=["go to the red key", "pick up the red key"],
)


def ask(name, move=MOVE, number=1, **options):
    exercises = GameExercises([move], weights={name: 1.0}, questions=1, **options)
    for reading in exercises(number):
        yield reading.prompt, reading.answers[0]


def answer(name, move=MOVE, **options):
    return next(ask(name, move, exchange=0.0, **options))[1]


def test_outcome_tells_the_lines_that_are_new():
    told = " nothing\nYou see: red key 1 forward"
    assert answer("outcome") == [(" go forward", True), (told, True)]
    reached = MOVE._replace(reached=True, after=KITCHEN)
    assert answer("outcome", reached) == [(" go forward", True), (" reached", True)]


def test_answers_break_off_between_words():
    assert answer("outcome", longest=4)[1][0] == " nothing\nYou see: red"


def test_other_questions():
    def question(text, *pieces):
        return [(f"\nQuestion: {text}", False), *pieces]

    assert answer("named") == question("named go forward", (" go to the red key", True))
    nowhere = MOVE._replace(named=[])
    assert answer("named", nowhere) == question("named go forward", (" nothing", True))
    assert answer("goal") == question("goal", (" go to the red ball", True))
    assert answer("shared") == question("shared", (" red", True))
    apart = MOVE._replace(goal="find it")
    assert answer("shared", apart) == question("shared", (" nothing", True))


def test_words_that_follow():
    words = KITCHEN.split()
    for _, pieces in ask("follow", number=50):
        (question, read), (told, predicted) = pieces
        assert (read, predicted) == (False, True)
        first, second = question.removeprefix("\nQuestion: follow").split()
        after = told.split()
        assert any(
            words[at : at + 2 + len(after)] == [first, second, *after] for at in range(len(words))
        )
    (_, answer_to_little), *_ = [
        pieces for _, pieces in ask("follow", MOVE._replace(observation=""))
    ]
    assert answer_to_little == (" nothing", True)


def test_admissible_are_those_of_the_state_and_others_are_asked_about():
    other = MOVE._replace(actions=["drop"], action="drop")
    exercises = GameExercises([MOVE, other], weights={"admissible": 1.0}, questions=1)
    seen = Counter()
    for reading in exercises(200):
        pieces = reading.answers[0]
        here = "red key 2" in reading.prompt
        assert pieces[0] == ("\nQuestion: admissible", False) and here
        for (action, read), (told, predicted) in zip(pieces[1::2], pieces[2::2], strict=True):
            assert (read, predicted) == (False, True)
            seen[action.strip(), told] += 1
    # Both states look alike, so each action is admissible in one of them.
    assert seen.keys() == {
        (action, told) for action in ("turn left", "go forward", "drop") for told in (" yes", " no")
    }
    assert seen["drop", " yes"] > seen["drop", " no"]


def test_exchanged_goals_are_reached_by_this_step_or_later_ones_and_the_action_is_only_read():
    goals = Counter()
    for prompt, pieces in ask("outcome", number=300, exchange=1.0):
        goal = prompt.split("\n")[0].removeprefix("Goal: ")
        goals[goal] += 1
        reached = " reached" if goal in MOVE.named else " nothing"
        assert pieces[0] == (" go forward", False)
        assert pieces[1][0].split("\n")[0] == reached
    assert goals.keys() == set(MOVE.later)
    assert goals["go to the red key"] == pytest.approx(0.75 * 300, abs=40)


def test_the_action_is_not_predicted_where_no_goal_could_be_exchanged_either():
    """Else the actions that reach something would be rarer among those predicted than drawn."""
    nowhere = MOVE._replace(named=[], later=[])
    for prompt, pieces in ask("outcome", nowhere, number=20, exchange=1.0):
        assert "Goal: go to the red ball\n" in prompt
        assert pieces[0] == (" go forward", False)


def test_questions_about_a_state_differ_and_come_by_their_weights():
    counts = Counter()
    for reading in GameExercises([MOVE], questions=3)(400):
        starts = [pieces[0][0].split()[:2] for pieces in reading.answers]
        names = [start[1] if start[0] == "Question:" else "outcome" for start in starts]
        assert len(set(names)) == 3
        counts.update(names)
    assert counts.keys() == set(GAME_EXERCISES)
    assert max(counts, key=counts.get) == "outcome"


def test_no_text_is_spelled_in_letters():
    exercises = GameExercises([MOVE], questions=len(GAME_EXERCISES))
    tokenizer = make_word_tokenizer(exercises.texts())
    for reading in exercises(20):
        for text in [reading.prompt, *(piece for each in reading.answers for piece, _ in each)]:
            tokens = tokenizer.tokenize(text)
            assert "".join(tokens) == text
            assert not [token for token in tokens if len(token.strip()) == 1 and token.isalpha()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moves": []}, "moves is empty"),
        ({"weights": {"plan": 1.0}}, r"weights has unknown exercises \['plan'\]"),
        ({"questions": 0}, r"questions \(0\) must be at least 1 and at most 6"),
        ({"questions": 7}, r"questions \(7\) must be at least 1 and at most 6"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GameExercises(**{"moves": [MOVE], **options})
