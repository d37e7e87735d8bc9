"""Reading exercises from environment text, without demonstrations of goal-directed behaviour.

They give a small model what a large one brings from its pre-training: the grammar of prompts and
actions, knowing which words name which things, what part of a goal is still open, what here
satisfies it or feeds what does, and what an action would change. No exercise relates a goal to the
action to take: the actions in them are drawn uniformly among the admissible ones, and where the
goal may have been chosen to fit an action, actions are only read, not predicted.

The encoder always reads the prompt of an agent and nothing else; questions stand in the decoder.
So the model learns to work out, while it reads a prompt, whatever may be asked of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tensordict import TensorDictBase

from torchrl_glam.envs import GoalSpace
from torchrl_glam.envs.playground.dynamics import GRASPED, NO_EVENT, NOTHING, Dynamics
from torchrl_glam.envs.playground.vocabulary import (
    CATEGORIES,
    OBJECTS,
    VERBS,
    feeds,
    is_living,
    type_of,
)
from torchrl_glam.text import PromptTemplate, decode_text

EXERCISES: dict[str, float] = {
    "outcome": 0.34,
    "role": 0.20,
    "find": 0.14,
    "left": 0.10,
    "state": 0.08,
    "named": 0.10,
    "kind": 0.04,
}
"""Share of each exercise among the questions."""

_GRASP, _GROW = range(len(VERBS))
_ITEMS = range(len(OBJECTS))
_FEEDS = [[feeds(supply, living) for living in _ITEMS] for supply in _ITEMS]
_ASKED = 4  # things that a question asks about, one after another


class Reading(NamedTuple):
    """A prompt, and decoder texts about it.

    Attributes:
        prompt: what the encoder reads.
        answers: for each question its pieces of text, and whether each is to be predicted.
    """

    prompt: str
    answers: list[list[tuple[str, bool]]]


@dataclass
class Scene:
    """One state as symbols, and some random actions with the event that each would cause."""

    goal: int
    stage: int
    observation: str
    items: list[int]
    held: int
    on: int
    grown: list[bool]
    actions: list[int]
    events: list[int]
    predicted: bool = True


class Exercises:
    """Turns states of random play into prompts, questions and answers.

    Args:
        goals: the goal space of the environment that the states come from.
        seed: of the private generator. Default: 0.
        questions: questions about each state. Default: 4.
        shares: share of each exercise, by name. Default: :data:`EXERCISES`.
        exchange: share of states whose goal is exchanged for one of which a part has been reached,
            or which an action would reach, as random play seldom brings these. Default: 0.65.

    Raises:
        ValueError: if ``shares`` names an unknown exercise.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=2, seed=0)
        >>> readings = Exercises(env.goals, shares={"kind": 1.0}, questions=1)(env.reset())
        >>> readings[0].answers[0][:2]
        [('\\nQuestion: kind', False), (' green tea', False)]
    """

    def __init__(
        self,
        goals: GoalSpace,
        seed: int = 0,
        questions: int = 4,
        shares: dict[str, float] | None = None,
        exchange: float = 0.65,
    ) -> None:
        shares = EXERCISES if shares is None else shares
        unknown = sorted(set(shares) - set(EXERCISES))
        if unknown:
            raise ValueError(f"shares has unknown exercises {unknown}: known are {list(EXERCISES)}")
        self._goals = goals
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._questions, self._shares, self._exchange = questions, dict(shares), exchange
        self._template = PromptTemplate()
        self._dynamics: dict[int, Dynamics] = {}
        # The last simple goal stands for "no second part", which nothing reaches: index -1.
        nothing = torch.zeros_like(goals.reached_by[:1])
        self._reached_by = torch.cat((goals.reached_by, nothing)).tolist()
        self._parts = [tuple(parts) for parts in goals.parts.tolist()]
        self._verbs = [VERBS.index(goals[part].split()[0]) for part in range(goals.num_simple)]
        self._verbs.append(_GRASP)
        self._begins: dict[int, list[int]] = {}
        for goal, (first, second) in enumerate(self._parts):
            if second >= 0:
                self._begins.setdefault(first, []).append(goal)

    def __call__(self, states: TensorDictBase) -> list[Reading]:
        """Asks about each state.

        Args:
            states: ``[B]`` states of a ``PlaygroundTextEnv`` with text.

        Returns:
            B readings.
        """
        names, weights = list(self._shares), list(self._shares.values())
        readings = []
        for scene in self._scenes(states):
            if self._random.random() < self._exchange:
                self._exchange_goal(scene)
            asked = self._random.choices(names, weights, k=self._questions)
            answers = [getattr(self, f"_{name}")(scene, at) for at, name in enumerate(asked)]
            prompt = self._template.fill(self._goals[scene.goal], scene.observation)
            readings.append(Reading(prompt, answers))
        return readings

    # Scenes ------------------------------------------------------------------------------------

    def _scenes(self, states: TensorDictBase) -> list[Scene]:
        state = {key: value.tolist() for key, value in states["state"].items()}
        actions, events = self._random_actions(states["state"])
        entries = zip(
            states["goal_id"].tolist(),
            state["stage"],
            decode_text(states["observation"]),
            *(state[key] for key in ("objects", "holding", "on", "grown")),
            actions.tolist(),
            events.tolist(),
            strict=True,
        )
        return [Scene(*entry) for entry in entries]

    def _random_actions(self, state: TensorDictBase) -> tuple[torch.Tensor, torch.Tensor]:
        """An admissible action for each question, and the event it would cause, ``[B, Q]``."""
        objects, grown = state["objects"], state["grown"]
        rows, size = objects.shape
        dynamics = self._dynamics.setdefault(size, Dynamics(size))
        place = (state["holding"] + 1) * (size + 1) + state["on"] + 1
        place = place.repeat_interleave(self._questions)
        draw = torch.rand(len(place), generator=self._generator)
        action = dynamics.choose(place, draw)
        marks = objects.new_tensor([NOTHING, GRASPED]).expand(rows, -1)
        scene = torch.cat((objects, marks), 1).repeat_interleave(self._questions, 0)
        grown = torch.cat((grown, grown.new_ones(rows, 1)), 1)
        grown = grown.repeat_interleave(self._questions, 0)
        _, event = dynamics.step(dynamics.cells(place, action), scene, grown)
        return action.view(rows, -1), event.view(rows, -1)

    def _reaches(self, part: int, verb: int, item: int) -> bool:
        return self._reached_by[part][verb][item]

    def _exchange_goal(self, scene: Scene) -> None:
        """Gives the scene a goal that fits it, if a few tries find one.

        Whether they do depends on the first action, so it is not predicted in either case: among
        those left, actions that cause events would be rarer than they are drawn.
        """
        scene.predicted = False
        for _ in range(4):
            goal = self._fitting_goal(scene)
            stage = None if goal is None else self._stage(scene, goal)
            if stage is not None:
                scene.goal, scene.stage = goal, stage
                return

    def _fitting_goal(self, scene: Scene) -> int | None:
        """A goal whose first part something grown has reached, or that the first action reaches."""
        draw, event = self._random.random, scene.events[0]
        grown = [item for item, has in zip(scene.items, scene.grown, strict=True) if has]
        if grown and draw() < 0.45:
            firsts = [
                part for part in self._by(_GROW, self._random.choice(grown)) if part in self._begins
            ]
            if not firsts:
                return None
            goals = self._begins[self._random.choice(firsts)]
            if draw() < 0.5 and event != NO_EVENT:
                verb, item = divmod(event, len(OBJECTS))
            elif draw() < 0.7:
                verb, item = self._random.randrange(2), self._random.choice(scene.items)
            else:
                return self._random.choice(goals)
            seconds = set(self._by(verb, item))
            return self._random.choice([g for g in goals if self._parts[g][1] in seconds] or goals)
        if event == NO_EVENT or draw() < 0.3:
            return None
        parts = self._by(*divmod(event, len(OBJECTS)))
        if not parts:
            return None
        part = self._random.choice(parts)
        longer = part in self._begins and draw() < 0.8
        return self._random.choice(self._begins[part]) if longer else part

    def _by(self, verb: int, item: int) -> list[int]:
        """The simple goals that an event reaches."""
        return [p for p in range(self._goals.num_simple) if self._reaches(p, verb, item)]

    def _stage(self, scene: Scene, goal: int) -> int | None:
        """Which part of the goal is open, if the text tells; None if it may have been reached."""
        first, second = self._parts[goal]
        done = [self._has_grown(scene, part) for part in (first, second)]
        if not done[0] or self._verbs[first] == _GRASP:
            return 0
        if second < 0:
            return None
        if self._verbs[second] == _GROW:
            return 1 if not done[1] or done[0] == done[1] and len(done[0]) == 1 else None
        held = scene.held >= 0 and self._reaches(second, _GRASP, scene.items[scene.held])
        return None if held else 1

    def _has_grown(self, scene: Scene, part: int) -> list[int]:
        slots = zip(scene.items, scene.grown, strict=True)
        return [
            slot
            for slot, (item, has) in enumerate(slots)
            if has and self._reaches(part, _GROW, item)
        ]

    # Questions ---------------------------------------------------------------------------------

    def _some(self, scene: Scene) -> list[int]:
        return self._random.sample(range(len(scene.items)), min(_ASKED, len(scene.items)))

    @staticmethod
    def _labelled(question: str, labels: list[tuple[int, str]]) -> list[tuple[str, bool]]:
        pieces = [(f"\nQuestion:{question}", False)]
        for item, label in labels:
            pieces += [(f" {OBJECTS[item]}", False), (label, True)]
        return pieces

    def _outcome(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """A random action, which part of the goal it would reach, and what it would change."""
        action, event, size = scene.actions[at], scene.events[at], len(scene.items)
        names = [OBJECTS[item] for item in scene.items]
        text = f" Go to {names[action]}" if action < size else (" Grasp", " Release")[action - size]
        if event != NO_EVENT:
            verb, item = divmod(event, len(OBJECTS))
            second = self._parts[scene.goal][1]
            reached = self._reaches(self._parts[scene.goal][scene.stage], verb, item)
            last = second < 0 or scene.stage == 1
            effect = (" goal" if last else " first") if reached else ""
            effect += f" {VERBS[verb].lower()} {OBJECTS[item]}"
        elif action < size:
            effect = f" on {names[action]}"
        else:
            effect = " nothing" if action == size else f" release {names[scene.held]}"
        return [(text, scene.predicted), (effect, True)]

    def _label(self, scene: Scene, part: int, slot: int) -> str:
        """What an object is to a part of the goal."""
        item, verb = scene.items[slot], self._verbs[part]
        if self._reaches(part, verb, item) and not (verb == _GROW and scene.grown[slot]):
            return " goal"
        others = zip(scene.items, scene.grown, strict=True)
        feeds_one = verb == _GROW and any(
            _FEEDS[item][other] and not has and self._reaches(part, verb, other)
            for other, has in others
        )
        return " feeds" if feeds_one else " nothing"

    def _open_and_later(self, scene: Scene) -> tuple[int, int]:
        parts = self._parts[scene.goal]
        return parts[scene.stage], parts[1] if scene.stage == 0 else -1

    def _role(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """Whether objects are what the open part names, feed it, or neither; then the later one."""
        now, later = self._open_and_later(scene)
        labels = [
            (scene.items[s], self._label(scene, now, s) + self._label(scene, later, s))
            for s in self._some(scene)
        ]
        return self._labelled(" role", labels)

    def _find(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """The objects of a role."""
        now, later = self._open_and_later(scene)
        asks_later = later >= 0 and self._random.random() < 0.25
        part = later if asks_later else now
        role = self._random.choice((" goal", " feeds"))
        slots = range(len(scene.items))
        found = [OBJECTS[scene.items[s]] for s in slots if self._label(scene, part, s) == role]
        question = f"\nQuestion: find{' second' if asks_later else ''}{role}"
        return [(question, False), (f" {', '.join(found)}" if found else " nothing", True)]

    def _left(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """What is left of the goal."""
        text = self._goals[scene.goal]
        if scene.stage == 1:
            text = text.split(" then ")[1]
        return [("\nQuestion: left", False), (f" {text}", True)]

    def _state(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """Whether objects are held or here, and whether they have grown."""
        labels = []
        for slot in self._some(scene):
            place = {scene.held: " held", scene.on: " here"}.get(slot, " nothing")
            grown = " grown" if scene.grown[slot] else " nothing"
            labels.append((scene.items[slot], place + grown))
        return self._labelled(" state", labels)

    def _named(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """Whether a part of the goal names things that need not be here."""
        first, second = self._parts[scene.goal]
        asks_second = second >= 0 and self._random.random() < 0.5
        part = second if asks_second else first
        verb = self._verbs[part]
        named = [item for item in _ITEMS if self._reaches(part, verb, item)]
        pools = (named, _ITEMS)
        items = [self._random.choice(self._random.choice(pools)) for _ in range(_ASKED)]
        labels = [(i, " yes" if self._reaches(part, verb, i) else " no") for i in items]
        return self._labelled(" second named" if asks_second else " first named", labels)

    def _kind(self, scene: Scene, at: int) -> list[tuple[str, bool]]:
        """World knowledge: the categories of things, and whether they can grow."""
        labels = []
        for _ in range(2):
            item = self._random.randrange(len(OBJECTS))
            kinds = [f" {name}" for name, types in CATEGORIES.items() if type_of(item) in types]
            labels.append((item, "".join(kinds) + (" grow" if is_living(item) else " nothing")))
        return self._labelled(" kind", labels)
