"""Reading exercises from environment text, without demonstrations of goal-directed behaviour.

They give a small model what a large one brings from its pre-training: the grammar of prompts and
actions, copying, knowing which words name which things, and comparing a description with what is
there. No exercise relates a goal to an action: actions in them are drawn uniformly among the
admissible ones, and goals are only *read* (which object do they name?).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tensordict import TensorDictBase

from torchrl_glam.envs import GoalSpace, decode_text
from torchrl_glam.envs.vocabulary import CATEGORIES, OBJECTS, VERBS, feeds, type_of

EXERCISES: dict[str, float] = {
    "action": 0.25,
    "next": 0.10,
    "denoise": 0.05,
    "names": 0.10,
    "label_goal": 0.30,
    "label_state": 0.10,
    "present": 0.03,
    "feeds": 0.04,
    "category": 0.03,
}
"""Share of each exercise in the training text."""


@dataclass(frozen=True)
class Scene:
    """What an exercise is made from: one state as text and symbols, and what a random step did."""

    goal: str
    parts: tuple[int, int]
    observation: str
    actions: list[str]
    objects: list[int]
    held: int
    on: int
    grown: list[bool]
    action: str
    next_observation: str

    @property
    def prompt(self) -> str:
        return f"Goal: {self.goal}\n{self.observation}"


class Exercises:
    """Turns steps of random play into pairs of source and target text.

    Args:
        goals: the goal space of the environment that the steps come from.
        seed: of the private generator. Default 0.
        shares: share of each exercise, by name. Default :data:`EXERCISES`.

    Raises:
        ValueError: if ``shares`` names an unknown exercise.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=2, seed=0)
        >>> steps = env.rollout(1, auto_cast_to_device=False)[:, 0]
        >>> pairs = Exercises(env.goals, shares={"present": 1.0})(steps)
        >>> sorted({target for _, target in pairs} - {" yes", " no"})
        []
    """

    def __init__(
        self, goals: GoalSpace, seed: int = 0, shares: dict[str, float] | None = None
    ) -> None:
        shares = EXERCISES if shares is None else shares
        unknown = sorted(set(shares) - set(EXERCISES))
        if unknown:
            raise ValueError(f"shares has unknown exercises {unknown}: known are {list(EXERCISES)}")
        self._goals = goals
        self._random = random.Random(seed)
        self._shares = dict(shares)

    def __call__(self, steps: TensorDictBase) -> list[tuple[str, str]]:
        """One exercise for each step.

        Args:
            steps: ``[B]`` steps of a ``PlaygroundTextEnv`` with text, actions included.

        Returns:
            B pairs of source and target text.
        """
        names = self._random.choices(
            list(self._shares), list(self._shares.values()), k=steps.shape[0]
        )
        return [
            getattr(self, f"_{name}")(scene)
            for name, scene in zip(names, self._scenes(steps), strict=True)
        ]

    def _scenes(self, steps: TensorDictBase) -> list[Scene]:
        goal, observation, following = (
            decode_text(steps[key]) for key in ("goal", "observation", ("next", "observation"))
        )
        actions, masks = decode_text(steps["actions"]), steps["action_mask"].tolist()
        chosen = steps["action"].tolist()
        parts = self._goals.parts[steps["goal_id"]].tolist()
        state = {key: value.tolist() for key, value in steps["state"].items()}
        return [
            Scene(
                goal=goal[i],
                parts=tuple(parts[i]),
                observation=observation[i],
                actions=[a for a, allowed in zip(actions[i], masks[i], strict=True) if allowed],
                objects=state["objects"][i],
                held=state["holding"][i],
                on=state["on"][i],
                grown=state["grown"][i],
                action=actions[i][chosen[i]],
                next_observation=following[i],
            )
            for i in range(steps.shape[0])
        ]

    def _named(self, part: int, item: int) -> bool:
        """Whether a simple goal's description names the object."""
        verb = VERBS.index(self._goals[part].split()[0])
        return bool(self._goals.reached_by[part, verb, item])

    def _part(self, scene: Scene) -> tuple[int, str]:
        """One of the goal's simple goals, and the word by which a question speaks of it."""
        first, second = scene.parts
        if second < 0:
            return first, " goal"
        return self._random.choice([(first, " first"), (second, " second")])

    def _shuffled(self, scene: Scene) -> list[int]:
        slots = list(range(len(scene.objects)))
        self._random.shuffle(slots)
        return slots[: self._random.randint(1, len(slots))]

    def _labels(self, items: list[tuple[int, bool]]) -> str:
        return ",".join(f" {OBJECTS[item]} {'yes' if label else 'no'}" for item, label in items)

    def _action(self, scene: Scene) -> tuple[str, str]:
        return f"{scene.prompt}\nAction:", f" {self._random.choice(scene.actions)}"

    def _next(self, scene: Scene) -> tuple[str, str]:
        source = f"Goal: {scene.goal}\n{scene.observation}\nAction: {scene.action}\nNext:"
        return source, f"\n{scene.next_observation}"

    def _denoise(self, scene: Scene) -> tuple[str, str]:
        words = f"{scene.prompt}\nAction:".split(" ")
        source, target, sentinel, at = [], [], 0, 0
        while at < len(words):
            if sentinel < 3 and self._random.random() < 0.12:
                span = self._random.randint(1, 2)
                source.append(f"<extra_id_{sentinel}>")
                target += [f"<extra_id_{sentinel}>", *words[at : at + span]]
                sentinel, at = sentinel + 1, at + span
            else:
                source.append(words[at])
                at += 1
        return " ".join(source), " " + " ".join([*target, f"<extra_id_{sentinel}>"])

    def _names(self, scene: Scene) -> tuple[str, str]:
        part, word = self._part(scene)
        named = [OBJECTS[item] for item in scene.objects if self._named(part, item)]
        source = f"{scene.prompt}\nQuestion:{word} is what"
        return source, f" {', '.join(named)}" if named else " nothing"

    def _label_goal(self, scene: Scene) -> tuple[str, str]:
        part, word = self._part(scene)
        items = [scene.objects[slot] for slot in self._shuffled(scene)]
        source = f"{scene.prompt}\nQuestion: named{word}"
        return source, self._labels([(item, self._named(part, item)) for item in items])

    def _label_state(self, scene: Scene) -> tuple[str, str]:
        question = self._random.choice(["held", "grown", "here"])
        slots = self._shuffled(scene)
        holds = {
            "held": [slot == scene.held for slot in slots],
            "grown": [scene.grown[slot] for slot in slots],
            "here": [slot == scene.on for slot in slots],
        }[question]
        items = [scene.objects[slot] for slot in slots]
        source = f"{scene.prompt}\nQuestion: which is {question}"
        return source, self._labels(list(zip(items, holds, strict=True)))

    def _present(self, scene: Scene) -> tuple[str, str]:
        item = self._random.randrange(len(OBJECTS))
        if self._random.random() < 0.5:
            item = self._random.choice(scene.objects)
        source = f"{scene.prompt}\nQuestion: is {OBJECTS[item]} here"
        return source, " yes" if item in scene.objects else " no"

    def _feeds(self, scene: Scene) -> tuple[str, str]:
        """World knowledge: what makes what grow."""
        slots = self._shuffled(scene)
        supply = self._random.choice([i for i, text in enumerate(OBJECTS) if feeds_any(text)])
        items = [scene.objects[slot] for slot in slots]
        source = f"{scene.prompt}\nQuestion: {OBJECTS[supply]} feeds which"
        return source, self._labels([(item, feeds(supply, item)) for item in items])

    def _category(self, scene: Scene) -> tuple[str, str]:
        """World knowledge: what kind of thing a thing is."""
        item = self._random.randrange(len(OBJECTS))
        categories = [name for name, types in CATEGORIES.items() if type_of(item) in types]
        return f"Question: what is {OBJECTS[item]}", f" {' '.join(categories)}"


def feeds_any(text: str) -> bool:
    """Whether the object called ``text`` is a supply."""
    return text.split()[-1] in CATEGORIES["supply"]
