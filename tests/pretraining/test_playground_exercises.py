"""Exercises about Playground-Text's words, against answers worked out from their text alone."""

import ast
from collections import Counter
from itertools import product
from pathlib import Path

import playground_reference as reference
import pytest
from scipy.stats import chisquare

import torchrl_glam.pretraining
from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.pretraining import GameExercises, PlaygroundExercises, make_tokenizer, record_play
from torchrl_glam.text import decode_text


def names(phrase, item):
    """Whether a phrase such as "any blue thing" or "red cow" names a thing."""
    return reference.reaches(("Grasp", item), f"Grasp {phrase}")


class Text:
    """A prompt as a reader sees it."""

    def __init__(self, prompt):
        assert prompt.endswith("\nAction:")
        lines = dict(line.split(": ") for line in prompt.splitlines()[:-1])
        self.parts = (lines["Goal"].split(" then ") + ["nothing"])[:2]
        self.on, self.held = lines["You are on"], lines["You are holding"]
        self.seen = lines["You see"].split(", ")
        self.items = self.seen + [self.held] * (self.held != "nothing")
        grown = lines["You have grown"]
        self.grown = [] if grown == "nothing" else grown.split(", ")


def ask(name, number=300):
    for reading in PlaygroundExercises(shares={name: 1.0}, questions=1)(number):
        yield Text(reading.prompt), reading.answers[0]


def things_and_answers(pieces, question):
    assert pieces[0] == (f"\nQuestion: {question}", False)
    for (thing, read), (answer, predicted) in zip(pieces[1::2], pieces[2::2], strict=True):
        assert (read, predicted) == (False, True)
        yield thing.strip(), answer.split()


def test_things_here_that_a_phrase_names():
    found = 0
    for text, [(question, read), (answer, predicted)] in ask("here"):
        phrase = question.removeprefix("\nQuestion: here ")
        wanted = {item for item in text.items if names(phrase, item)}
        assert (read, predicted) == (False, True)
        assert set(answer.strip().split(", ")) == (wanted or {"nothing"})
        found += bool(wanted)
    assert 150 < found < 270


def test_things_of_the_world_that_a_part_of_the_goal_names():
    answers = Counter()
    for text, pieces in ask("named"):
        part = pieces[0][0].split()[1]
        phrase = text.parts[part == "second"].split(" ", 1)[1]
        for thing, answer in things_and_answers(pieces, f"{part} named"):
            assert answer == ["yes" if names(phrase, thing) else "no"]
            answers[part, answer[0]] += 1
    assert len(answers) == 4 and min(answers.values()) > 100


def test_what_the_goal_asks_first_and_second():
    for text, [(question, _), (answer, predicted)] in ask("asked"):
        part = question.split()[1]
        assert answer.strip() == text.parts[part == "second"] and predicted


def test_where_things_are():
    for text, pieces in ask("state"):
        for thing, (place, grown) in things_and_answers(pieces, "state"):
            assert place == {text.held: "held", text.on: "here"}.get(thing, "nothing")
            assert grown == ("grown" if thing in text.grown else "nothing")


def test_what_things_are_and_grow_on():
    for _, pieces in ask("kind"):
        for thing, answer in things_and_answers(pieces, "kind"):
            name = thing.split()[1]
            kinds = [kind for kind, members in reference.CATEGORIES.items() if name in members]
            food = {"animal": ["food", "water"], "plant": ["water"]}.get(kinds[0], ["nothing"])
            assert sorted(answer) == sorted(kinds + food)


def test_actions_are_any_admissible_one_as_often_as_the_others():
    ranks = Counter()
    for text, [(action, predicted)] in ask("action", 4000):
        admissible = [f"Go to {item}" for item in text.seen] + ["Grasp"]
        admissible += ["Release"] * (text.held != "nothing")
        assert predicted
        ranks[len(text.items), text.held != "nothing", admissible.index(action.strip())] += 1
    for size, holds in product((3, 6), (False, True)):
        counts = [count for (*of, _), count in ranks.items() if of == [size, holds]]
        assert len(counts) == size + 1 and chisquare(counts).pvalue > 0.001


def test_scenes_are_written_as_the_environment_writes_them():
    """Each line of play is one that a composed scene could have."""
    env = PlaygroundTextEnv(num_envs=50, seed=0)
    played = decode_text(env.rollout(10, break_when_any_done=False)["observation"].flatten(0, 1))
    composed = [reading.prompt for reading in PlaygroundExercises()(500)]

    def shape(line):
        title, _, things = line.partition(": ")
        return title, tuple(sorted({len(thing.split()) for thing in things.split(", ")}))

    shapes = {shape(line) for text in composed for line in text.splitlines()[1:-1]}
    assert {shape(line) for text in played for line in text.splitlines()} <= shapes


def test_goal_and_scene_are_drawn_apart():
    """A game's scene always has what its goal needs; here a part is seldom satisfiable."""
    texts = [text for text, _ in ask("asked", 600) if len(text.items) == 6]
    satisfiable = sum(
        all(any(names(p.split(" ", 1)[1], item) for item in text.items) for p in text.parts)
        for text in texts
        if text.parts[1] != "nothing"
    )
    assert satisfiable < 0.15 * len(texts)


def test_no_held_out_goal_and_no_phrase_of_one_is_read():
    held_out = set(GoalSpace("test").texts)
    known = {text.split(" ", 1)[1] for text in GoalSpace("train").texts if " then " not in text}
    for reading in PlaygroundExercises()(2000):
        goal = reading.prompt.splitlines()[0].removeprefix("Goal: ")
        assert goal not in held_out
        for pieces in reading.answers:
            question = pieces[0][0]
            if " here " in question:
                assert question.removeprefix("\nQuestion: here ") in known


MODULES = {"dynamics", "partner", "oracle", "scenes", "runs", "training"}
WORDS = ("reached", "reward", "terminated", "hindsight", "'stage'", "'test'")


def test_exercises_import_nothing_that_knows_the_rules_or_the_reward():
    """Imitation, a measuring stick that no model is made with, is the exception."""
    folder = Path(torchrl_glam.pretraining.__file__).parent
    for path in {*folder.glob("*.py")} - {folder / "imitation.py", folder / "__init__.py"}:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert not MODULES & {*".".join(names).split(".")}, f"{path.name}: {names}"
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""  # docstrings may tell of what the code must not use
        code = ast.unparse(tree)
        assert not [word for word in WORDS if word in code], path.name


def test_no_text_is_spelled_in_letters():
    tokenizer = make_tokenizer()
    transcripts = GameExercises(
        record_play(PlaygroundTextEnv(num_envs=8), 64), weights={"outcome": 1.0}, questions=1
    )
    for reading in PlaygroundExercises()(200) + transcripts(100):
        for text in [reading.prompt, *(piece for each in reading.answers for piece, _ in each)]:
            tokens = tokenizer.tokenize(text)
            assert "".join(tokens) == text.replace(",", "")
            assert not [token for token in tokens if len(token.strip()) == 1]


def test_the_seed_makes_the_exercises():
    assert PlaygroundExercises(seed=3)(20) == PlaygroundExercises(seed=3)(20)
    assert PlaygroundExercises(seed=3)(20) != PlaygroundExercises(seed=4)(20)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"unknown exercises \['goal'\]: known are \['here'"):
        PlaygroundExercises(shares={"goal": 1.0})
    for shares in ({"kind": -1.0, "asked": 3.0}, {"kind": 0.0}, {}):
        with pytest.raises(ValueError, match=r"shares \(.*\) must be numbers of at least 0, not"):
            PlaygroundExercises(shares=shares)
    with pytest.raises(ValueError, match=r"questions \(0\) must be at least 1"):
        PlaygroundExercises(questions=0)
