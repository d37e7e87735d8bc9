"""Playground-Text once more, in plain Python on strings, written from its description alone.

Nothing here is shared with the package: the vocabulary, the goals, the rules, the text and the
social partner are spelled out a second time, slowly and one environment at a time.
"""

from typing import NamedTuple

FURNITURE = "door chair desk lamp table cupboard sink window sofa carpet".split()
PLANTS = "cactus carnivorous flower tree bush grass algae tea rose bonsai".split()
ANIMALS = "dog cat chameleon human fly parrot mouse lion pig cow".split()
SUPPLIES = "food water".split()
COLOURS = "red blue green".split()
CATEGORIES = {
    "animal": ANIMALS,
    "plant": PLANTS,
    "furniture": FURNITURE,
    "supply": SUPPLIES,
    "living_thing": ANIMALS + PLANTS,
}


def is_held_out(goal):
    """Whether a simple goal belongs to the test split."""
    parts = ["red tree", "green dog", "blue door", "flower"]
    for colour in [*COLOURS, "any"]:
        parts += [f"Grasp {colour} animal", f"Grasp {colour} fly"]
        parts += [f"Grow {colour} {plant}" for plant in [*PLANTS, "plant", "living_thing"]]
    return any(part in goal for part in parts)


def simple_goals(split):
    """The texts of a split's simple goals, ``[grasp goals, grow goals]``."""
    grasp_names = FURNITURE + PLANTS + ANIMALS + SUPPLIES + list(CATEGORIES)
    grow_names = PLANTS + ANIMALS + ["animal", "plant", "living_thing"]
    result = []
    for verb, names in (("Grasp", grasp_names), ("Grow", grow_names)):
        goals = [f"{verb} {colour} {name}" for colour in [*COLOURS, "any"] for name in names]
        goals += [f"{verb} any {colour} thing" for colour in COLOURS]
        result.append([goal for goal in goals if is_held_out(goal) == (split == "test")])
    return result


def all_goals(split, sequential=True):
    """Maps the text of each goal of a split to its kind."""
    grasp, grow = simple_goals(split)
    goals = {goal: "grasp" for goal in grasp} | {goal: "grow" for goal in grow}
    if sequential:
        for a in grow:
            for b in grasp + grow:
                if a.split()[-2:] != b.split()[-2:]:
                    verb, *description = b.split()
                    text = " ".join([a, "then", verb.lower(), *description])
                    goals[text] = f"grow_then_{verb.lower()}"
    return goals


def parts_of(goal):
    """The simple goals that a goal consists of, in order."""
    first, _, second = goal.partition(" then ")
    return [first, second.capitalize()] if second else [first]


def reaches(event, goal):
    """Whether an event, ``(verb, object)``, reaches a simple goal."""
    verb, item = event
    colour, kind = item.split()
    goal_verb, *description = goal.split()
    if goal_verb != verb:
        return False
    if description[-1] == "thing":
        return description[1] == colour
    wanted_colour, name = description
    return wanted_colour in (colour, "any") and kind in (name, *CATEGORIES.get(name, []))


def feeds(supply, living):
    """Whether an object makes another one grow."""
    kind = living.split()[1]
    return (supply.endswith(" water") and kind in ANIMALS + PLANTS) or (
        supply.endswith(" food") and kind in ANIMALS
    )


class State(NamedTuple):
    """What the agent is on and holds (``None`` for nothing), and what has grown."""

    on: str | None = None
    holding: str | None = None
    grown: frozenset = frozenset()


def list_actions(objects):
    return [f"Go to {item}" for item in objects] + ["Grasp", "Release"]


def is_admissible(state, action):
    if action == "Release":
        return state.holding is not None
    return state.holding is None or action != f"Go to {state.holding}"


def act(state, action):
    """Returns the next state, and the event that the action causes or ``None``."""
    on, holding, grown = state
    if action.startswith("Go to "):
        target = action[len("Go to ") :]
        event = None
        if holding is not None:
            for supply, living in ((holding, target), (target, holding)):
                if feeds(supply, living) and living not in grown:
                    event, grown = ("Grow", living), grown | {living}
        return State(target, holding, grown), event
    if action == "Grasp" and holding is None and on is not None:
        return State(None, on, grown), ("Grasp", on)
    if action == "Release":
        return State(holding, None, grown), None
    return state, None


def describe(objects, state):
    """The observation's text."""
    seen = [item for item in objects if item != state.holding]
    grown = [item for item in objects if item in state.grown]
    return "\n".join(
        [
            "You see: " + ", ".join(seen),
            f"You are on: {state.on or 'nothing'}",
            f"You are holding: {state.holding or 'nothing'}",
            "You have grown: " + (", ".join(grown) or "nothing"),
        ]
    )


class Episode:
    """One episode: the pursuit of a goal, watched by the social partner."""

    def __init__(self, goal, objects, goals, max_steps):
        self.goal, self.objects, self.goals, self.max_steps = goal, objects, goals, max_steps
        self.simple = [text for text in goals if " then " not in text]
        self.state, self.steps, self.stage = State(), 0, 0
        self.named = []

    def step(self, action):
        """Returns reward, terminated, truncated, and the goals that the partner names."""
        self.state, event = act(self.state, action)
        self.steps += 1
        terminated = False
        if event is not None and reaches(event, parts_of(self.goal)[self.stage]):
            if self.stage + 1 == len(parts_of(self.goal)):
                terminated = True
            else:
                self.stage = 1
        truncated = self.steps == self.max_steps and not terminated
        return float(terminated), terminated, truncated, self._name(event)

    def _name(self, event):
        if event is None:
            return set()
        now = [goal for goal in self.simple if reaches(event, goal)]
        reached = set(now)
        for a in self.named:
            if a.startswith("Grow") and " then " not in a:
                reached |= {f"{a} then g{b[1:]}" for b in now}
        new = {goal for goal in reached if goal in self.goals} - {*self.named, self.goal}
        self.named += sorted(new)
        return new
