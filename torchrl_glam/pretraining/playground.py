"""Reading exercises about the words of Playground-Text; nothing in them was played.

They give a small model what a large one brings from its own pretraining: words, categories, what a
goal asks for and in which order, what a text says, how actions are written. Scenes and goals of the
training split are drawn without regard to each other, so no exercise shows what an action does,
which thing a goal wants, or how near it is. Questions are put to the decoder.
"""

import random
from typing import NamedTuple

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.playground.goals import simple_goals
from torchrl_glam.envs.playground.vocabulary import (
    CATEGORIES,
    OBJECTS,
    SUPPLIES,
    feeds,
    is_living,
    type_of,
)
from torchrl_glam.pretraining.batches import Reading, drawable
from torchrl_glam.text import PromptTemplate

PLAYGROUND_EXERCISES: dict[str, float] = {
    "here": 0.28,
    "named": 0.20,
    "asked": 0.12,
    "state": 0.16,
    "kind": 0.14,
    "action": 0.10,
}
"""Share of each exercise among the questions about Playground-Text."""

_ITEMS = range(len(OBJECTS))
_ASKED = 4  # things that a question asks about, one after another
_SIMPLE = 0.2  # share of prompts of the simplified task
_SUPPLIES = [item for item in _ITEMS if type_of(item) in SUPPLIES]


class Scene(NamedTuple):
    """A composed state: ``items`` are object ids, ``held`` and ``on`` places in it, or -1."""

    goal: str
    items: list[int]
    held: int
    on: int
    grown: list[bool]

    @property
    def observation(self) -> str:
        """The state in the environment's words."""
        names = [OBJECTS[item] for item in self.items]
        seen = [name for slot, name in enumerate(names) if slot != self.held]
        grown = [name for name, has in zip(names, self.grown, strict=True) if has]
        lines = {
            "You see": ", ".join(seen) or "nothing",
            "You are on": names[self.on] if self.on >= 0 else "nothing",
            "You are holding": names[self.held] if self.held >= 0 else "nothing",
            "You have grown": ", ".join(grown) or "nothing",
        }
        return "\n".join(f"{title}: {text}" for title, text in lines.items())


class PlaygroundExercises:
    """Composes prompts of Playground-Text, and questions and answers about their texts.

    A fifth of the prompts are of the simplified task: three objects, goals of one part.

    Args:
        seed: of the private generator. Default: 0.
        questions: questions about each prompt. Default: 4.
        shares: share of each exercise, by name. Default: :data:`PLAYGROUND_EXERCISES`.

    Raises:
        ValueError: if an argument is out of range or ``shares`` names an unknown exercise.

    Examples:
        >>> readings = PlaygroundExercises(shares={"kind": 1.0}, questions=1)(1)
        >>> readings[0].answers[0][0]
        ('\\nQuestion: kind', False)
    """

    def __init__(
        self,
        seed: int = 0,
        questions: int = 4,
        shares: dict[str, float] | None = None,
    ) -> None:
        if questions < 1:
            raise ValueError(f"questions ({questions}) must be at least 1")
        self._shares = drawable("shares", shares, PLAYGROUND_EXERCISES)
        self._random, self._questions = random.Random(seed), questions
        self._template = PromptTemplate()
        simple_ones = simple_goals("train")
        self._goals = GoalSpace("train").texts
        self._simple_goals = self._goals[: len(simple_ones)]
        self._things = {  # that a phrase names, whatever is to be done to them
            str(goal).split(" ", 1)[1]: {item for item in _ITEMS if goal.describes(item)}
            for goal in simple_ones
        }
        self._phrases = sorted(self._things)

    def __call__(self, number: int) -> list[Reading]:
        """Composes ``number`` prompts and asks about each."""
        names, weights = list(self._shares), list(self._shares.values())
        readings = []
        for _ in range(number):
            scene = self._compose()
            asked = self._random.choices(names, weights, k=self._questions)
            answers = [getattr(self, f"_{name}")(scene) for name in asked]
            readings.append(Reading(self._template.fill(scene.goal, scene.observation), answers))
        return readings

    def _compose(self) -> Scene:
        draw = self._random.random
        simple = draw() < _SIMPLE
        size = 3 if simple else 6
        items = self._random.sample(_ITEMS, size)
        if draw() < 0.8 and not set(items) & set(_SUPPLIES):  # scenes of a game have them
            items[self._random.randrange(size)] = self._random.choice(_SUPPLIES)
        held = self._random.randrange(size) if draw() < 0.4 else -1
        on = self._random.randrange(size) if draw() < 0.6 else -1
        grown = [is_living(item) and draw() < 0.25 for item in items]
        goal = self._random.choice(self._simple_goals if simple else self._goals)
        return Scene(goal, items, held, -1 if on == held else on, grown)

    def _labelled(self, question: str, labels: list[tuple[int, str]]) -> list[tuple[str, bool]]:
        pieces = [(f"\nQuestion:{question}", False)]
        for item, label in labels:
            pieces += [(f" {OBJECTS[item]}", False), (label, True)]
        return pieces

    def _here(self, scene: Scene) -> list[tuple[str, bool]]:
        """The things here that a phrase names, whatever the goal is."""
        phrase = self._random.choice(self._phrases)
        if self._random.random() < 0.6:
            item = self._random.choice(scene.items)
            fitting = [phrase for phrase in self._phrases if item in self._things[phrase]]
            phrase = self._random.choice(fitting or self._phrases)
        found = [OBJECTS[item] for item in scene.items if item in self._things[phrase]]
        answer = f" {', '.join(found)}" if found else " nothing"
        return [(f"\nQuestion: here {phrase}", False), (answer, True)]

    def _named(self, scene: Scene) -> list[tuple[str, bool]]:
        """Whether a part of the goal names things of the world, here or not."""
        parts = scene.goal.split(" then ")
        at = self._random.randrange(len(parts))
        named = self._things[parts[at].split(" ", 1)[1]]
        some = OBJECTS[self._random.choice(sorted(named))].split()
        close = [item for item in _ITEMS if set(OBJECTS[item].split()) & set(some)]
        pools = (sorted(named), close, _ITEMS)
        items = [self._random.choice(self._random.choice(pools)) for _ in range(_ASKED)]
        labels = [(item, " yes" if item in named else " no") for item in items]
        return self._labelled((" first named", " second named")[at], labels)

    def _asked(self, scene: Scene) -> list[tuple[str, bool]]:
        """What the goal asks first, or second."""
        at = self._random.randrange(2)
        text = [*scene.goal.split(" then "), "nothing"][at]
        return [(f"\nQuestion: {('first', 'second')[at]} asked", False), (f" {text}", True)]

    def _state(self, scene: Scene) -> list[tuple[str, bool]]:
        """Whether things are held, are where the agent is, and have grown."""
        labels = []
        for slot in self._random.sample(range(len(scene.items)), min(_ASKED, len(scene.items))):
            place = {scene.held: " held", scene.on: " here"}.get(slot, " nothing")
            grown = " grown" if scene.grown[slot] else " nothing"
            labels.append((scene.items[slot], place + grown))
        return self._labelled(" state", labels)

    def _kind(self, scene: Scene) -> list[tuple[str, bool]]:
        """World knowledge: the categories of things, and what they grow on."""
        labels = []
        for item in self._random.sample(_ITEMS, 2):
            kinds = [name for name, types in CATEGORIES.items() if type_of(item) in types]
            food = [name for name in SUPPLIES if feeds(OBJECTS.index(f"red {name}"), item)]
            labels.append((item, "".join(f" {word}" for word in (*kinds, *(food or ["nothing"])))))
        return self._labelled(" kind", labels)

    def _action(self, scene: Scene) -> list[tuple[str, bool]]:
        """How actions are written: any that is admissible, each as likely as the others."""
        actions = [
            f"Go to {OBJECTS[item]}" for slot, item in enumerate(scene.items) if slot != scene.held
        ]
        actions += ["Grasp"] + ["Release"] * (scene.held >= 0)
        return [(f" {self._random.choice(actions)}", True)]
