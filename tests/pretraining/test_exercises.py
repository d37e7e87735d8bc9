"""Reading exercises against answers worked out from the text of the prompt alone."""

from collections import Counter

import pytest

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.pretraining import EXERCISES, Exercises, make_tokenizer

ANIMALS = "dog cat chameleon human fly parrot mouse lion pig cow".split()
PLANTS = "cactus carnivorous flower tree bush grass algae tea rose bonsai".split()
FURNITURE = "door chair desk lamp table cupboard sink window sofa carpet".split()


@pytest.fixture(scope="module")
def env():
    return PlaygroundTextEnv(num_envs=200, num_objects=5, seed=0)


@pytest.fixture(scope="module")
def steps(env):
    return env.rollout(6, break_when_any_done=False).flatten()


def pairs(env, steps, name, seed=0):
    return Exercises(env.goals, seed, shares={name: 1.0})(steps)


def categories(kind):
    living = ["living_thing"] if kind in ANIMALS + PLANTS else []
    groups = {"animal": ANIMALS, "plant": PLANTS, "furniture": FURNITURE}
    groups["supply"] = ["food", "water"]
    return [name for name, kinds in groups.items() if kind in kinds] + living


def named(goal, item):
    """Whether a simple goal's words name the object, read from its text."""
    verb, colour, name = goal.split()[:3]
    if name in ("red", "blue", "green"):  # "any red thing"
        colour, name = name, "thing"
    has_colour, kind = item.split()
    if verb.lower() == "grow" and "living_thing" not in categories(kind):
        return False
    return colour in ("any", has_colour) and name in ("thing", kind, *categories(kind))


def part_of(prompt):
    """The simple goal that the question is about."""
    goal = prompt.splitlines()[0].removeprefix("Goal: ")
    first, _, second = goal.partition(" then ")
    return second if prompt.endswith("second") else first


def test_objects_are_labelled_by_whether_the_goal_names_them(env, steps):
    answers = Counter()
    for prompt, target in pairs(env, steps, "label_goal"):
        for label in target.strip().split(", "):
            item, answer = label.rsplit(" ", 1)
            assert (answer == "yes") == named(part_of(prompt), item), (prompt, label)
            answers[answer] += 1
    assert min(answers["yes"], answers["no"]) > 100


def test_supplies_are_labelled_by_what_they_feed(env, steps):
    for prompt, target in pairs(env, steps, "feeds"):
        supply = prompt.rsplit("Question: ", 1)[1].split()[1]
        for label in target.strip().split(", "):
            item, answer = label.rsplit(" ", 1)
            kind = item.split()[1]
            eats = kind in ANIMALS or (kind in PLANTS and supply == "water")
            assert (answer == "yes") == eats, (prompt, label)


def test_presence_is_read_from_the_observation(env, steps):
    for prompt, target in pairs(env, steps, "present"):
        item = prompt.rsplit("is ", 1)[1].removesuffix(" here")
        seen = prompt.split("You see: ")[1].split("\n")[0].split(", ")
        held = prompt.split("You are holding: ")[1].split("\n")[0]
        assert target == (" yes" if item in [*seen, held] else " no")


def test_actions_are_admissible_and_drawn_without_regard_to_the_goal(env, steps):
    """Held empty-handed with five objects, each of six actions comes up one time in six."""
    counts, total = Counter(), 0
    for seed in range(10):
        for prompt, target in pairs(env, steps, "action", seed):
            seen = prompt.split("You see: ")[1].split("\n")[0].split(", ")
            empty = "You are holding: nothing" in prompt
            allowed = [f"Go to {item}" for item in seen] + ["Grasp"] + ["Release"] * (not empty)
            assert target[1:] in allowed
            counts["Grasp"] += target == " Grasp"
            total += 1
    assert abs(counts["Grasp"] / total - 1 / 6) < 0.02


def test_the_next_observation_is_that_of_the_environment(env, steps):
    from torchrl_glam.envs import decode_text

    following = decode_text(steps["next", "observation"])
    for (_, target), text in zip(pairs(env, steps, "next"), following, strict=True):
        assert target == f"\n{text}"


@pytest.mark.parametrize("name", sorted(set(EXERCISES) - {"denoise", "category"}))
def test_questions_about_a_state_are_spelt_in_words(env, steps, name):
    """No prompt of a state falls back to characters, which would make it long."""
    tokenizer = make_tokenizer()
    for texts in pairs(env, steps[:50], name):
        for text in texts:
            pieces = [
                p for p in tokenizer.tokenize(text) if len(p.strip()) == 1 and p.strip() != ","
            ]
            assert not pieces, (text, pieces)


def test_unknown_exercises_are_refused(env):
    with pytest.raises(ValueError, match="unknown exercises"):
        Exercises(env.goals, shares={"plan": 1.0})
