"""Reading exercises against answers worked out from the text of the prompt alone."""

from collections import Counter

import pytest

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.pretraining import EXERCISES, Exercises, make_tokenizer

ANIMALS = "dog cat chameleon human fly parrot mouse lion pig cow".split()
PLANTS = "cactus carnivorous flower tree bush grass algae tea rose bonsai".split()
FURNITURE = "door chair desk lamp table cupboard sink window sofa carpet".split()


@pytest.fixture(scope="module", params=["train", "test"])
def env(request):
    return PlaygroundTextEnv(num_envs=200, num_objects=6, split=request.param, seed=0)


@pytest.fixture(scope="module")
def states(env):
    return env.rollout(12, break_when_any_done=False)[:, ::3].flatten()


def readings(env, states, name, **options):
    """Each prompt as a reader of the text sees it, with the question and the answer."""
    exercises = Exercises(env.goals, shares={name: 1.0}, questions=1, **options)
    for reading in exercises(states):
        yield Text(reading.prompt), reading.answers[0]


class Text:
    """What the words of a prompt say."""

    def __init__(self, prompt):
        lines = dict(line.split(": ") for line in prompt.splitlines()[:-1])
        assert prompt.endswith("\nAction:")
        self.goal = lines["Goal"]
        self.first, _, self.second = self.goal.partition(" then ")
        self.seen = lines["You see"].split(", ")
        self.on, self.held = lines["You are on"], lines["You are holding"]
        self.items = self.seen + [self.held] * (self.held != "nothing")
        grown = lines["You have grown"]
        self.grown = [] if grown == "nothing" else grown.split(", ")
        self.reached = self.first.startswith("Grow") and any(
            names(self.first, item) for item in self.grown
        )
        self.open = self.second if self.reached else self.first
        self.later = "" if self.reached else self.second

    def role(self, goal, item):
        if not goal:
            return "nothing"
        wanted = [
            other
            for other in self.items
            if names(goal, other) and not (goal.lower().startswith("grow") and other in self.grown)
        ]
        if item in wanted:
            return "goal"
        growing = goal.lower().startswith("grow")
        return "feeds" if growing and any(feeds(item, other) for other in wanted) else "nothing"

    def event(self, action):
        """What an action grasps or grows."""
        if action == "Grasp":
            can = self.held == "nothing" != self.on
            return f"grasp {self.on}" if can else None
        target = action.removeprefix("Go to ")
        for supply, living in ((self.held, target), (target, self.held)):
            if feeds(supply, living) and living not in self.grown:
                return f"grow {living}"
        return None


def categories(kind):
    living = ["living_thing"] if kind in ANIMALS + PLANTS else []
    groups = {"animal": ANIMALS, "plant": PLANTS, "furniture": FURNITURE}
    groups["supply"] = ["food", "water"]
    return [name for name, kinds in groups.items() if kind in kinds] + living


def names(goal, item):
    """Whether a simple goal's words name the object."""
    verb, colour, name = goal.split()[:3]
    if name in ("red", "blue", "green"):  # "any red thing"
        colour, name = name, "thing"
    has_colour, kind = item.split()
    if verb.lower() == "grow" and "living_thing" not in categories(kind):
        return False
    return colour in ("any", has_colour) and name in ("thing", kind, *categories(kind))


def feeds(supply, living):
    supply, living = supply.split()[-1], living.split()[-1]
    return (
        supply == "water" and living in ANIMALS + PLANTS or (supply == "food" and living in ANIMALS)
    )


def labels(answer):
    """The things that a question asks about, and what is answered of each."""
    pieces = [text.strip() for text, _ in answer[1:]]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def test_roles_follow_from_the_part_that_is_open_and_the_one_after_it(env, states):
    seen = Counter()
    for text, answer in readings(env, states, "role"):
        for item, label in labels(answer):
            assert label == f"{text.role(text.open, item)} {text.role(text.later, item)}", text.goal
            seen[label] += 1
    assert len(seen) > 5 and seen["goal nothing"] > 50


def test_what_is_found_is_all_that_has_the_role(env, states):
    for text, ((question, _), (found, _)) in readings(env, states, "find"):
        part = text.later if " second " in question else text.open
        role = question.split()[-1]
        right = {item for item in text.items if text.role(part, item) == role}
        assert set(found.strip().split(", ")) == (right or {"nothing"})


def test_what_is_left_is_the_goal_or_its_second_part(env, states):
    reached = 0
    for text, (_, (left, _)) in readings(env, states, "left"):
        assert left.strip() == (text.second if text.reached else text.goal)
        reached += text.reached
    assert 0.05 < reached / len(states) < 0.9


def test_outcomes_are_those_of_the_rules(env, states):
    goals = Counter()
    for text, ((action, _), (outcome, _)) in readings(env, states, "outcome"):
        action, outcome = action.strip(), outcome.strip()
        event = text.event(action) if action != "Release" else None
        if event is None:
            quiet = {"Grasp": "nothing", "Release": f"release {text.held}"}
            assert outcome == quiet.get(action, action.replace("Go to", "on"))
            continue
        verb, item = event.split(" ", 1)
        if verb == text.open.split()[0].lower() and names(text.open, item):
            event = f"{'first' if text.later else 'goal'} {event}"
        assert outcome == event
        goals[event.split()[0]] += 1
    assert min(goals["first"], goals["goal"]) > 10


def test_the_state_is_read_from_the_observation(env, states):
    for text, answer in readings(env, states, "state"):
        for item, label in labels(answer):
            place = "held" if item == text.held else "here" if item == text.on else "nothing"
            assert label == f"{place} {'grown' if item in text.grown else 'nothing'}"


def test_things_are_named_by_the_goals_words_wherever_they_are(env, states):
    answers = Counter()
    for text, answer in readings(env, states, "named"):
        part = text.second if "second" in answer[0][0] else text.first
        for item, label in labels(answer):
            assert (label == "yes") == names(part, item), (part, item)
            answers[label] += 1
    assert min(answers.values()) > 500


def test_kinds_of_things(env, states):
    for _, answer in readings(env, states[:100], "kind"):
        for item, label in labels(answer):
            kind = categories(item.split()[1])
            assert label.split() == [*kind, "grow" if "living_thing" in kind else "nothing"]


def test_predicted_actions_are_admissible_and_drawn_without_regard_to_the_goal(env, states):
    """Empty-handed with six objects, each of seven actions comes up one time in seven."""
    counts = Counter()
    for seed in range(8):
        for text, ((action, predicted), _) in readings(env, states, "outcome", seed=seed):
            allowed = [f"Go to {item}" for item in text.seen]
            allowed += ["Grasp"] + ["Release"] * (text.held != "nothing")
            assert action.strip() in allowed
            if predicted and text.held == "nothing":
                wanted = text.role(text.open, action.removeprefix(" Go to ")) == "goal"
                counts["wanted"] += action.startswith(" Go") and wanted
                counts["expected"] += sum(text.role(text.open, i) == "goal" for i in text.items) / 7
                counts["Grasp"] += action == " Grasp"
                counts["all"] += 1
    assert counts["all"] > 500
    assert abs(counts["Grasp"] / counts["all"] - 1 / 7) < 0.03
    assert abs(counts["wanted"] - counts["expected"]) / counts["all"] < 0.03


def test_actions_are_not_predicted_where_the_goal_may_have_been_chosen_by_them(env, states):
    own = [env.goals[goal] for goal in states["goal_id"].tolist()]
    for exchange in (0.0, 1.0):
        found = list(readings(env, states, "outcome", exchange=exchange))
        assert {predicted for _, ((_, predicted), _) in found} == {exchange == 0.0}
        differ = sum(text.goal != goal for goal, (text, _) in zip(own, found, strict=True))
        assert (differ > len(states) / 10) == (exchange == 1.0)


@pytest.mark.parametrize("name", sorted(EXERCISES))
def test_readings_are_spelt_in_known_pieces(env, states, name):
    """Nothing falls back to characters, which would make it long."""
    tokenizer = make_tokenizer()
    exercises = Exercises(env.goals, shares={name: 1.0})
    for prompt, answers in exercises(states[:50]):
        for text in [prompt, *(text for pieces in answers for text, _ in pieces)]:
            characters = [p for p in tokenizer.tokenize(text) if len(p.strip()) == 1]
            assert not characters, (text, characters)


def test_small_scenes_with_simple_goals_have_exercises_too():
    env = PlaygroundTextEnv(num_envs=50, num_objects=3, sequential=False, seed=0)
    states = env.rollout(8, break_when_any_done=False).flatten()
    for reading in Exercises(env.goals)(states):
        assert " then " not in reading.prompt and len(reading.answers) == 4


def test_unknown_exercises_are_refused(env):
    with pytest.raises(ValueError, match="unknown exercises"):
        Exercises(env.goals, shares={"plan": 1.0})
