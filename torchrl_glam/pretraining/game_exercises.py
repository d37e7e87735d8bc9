"""Reading exercises from transcripts of random play of any text environment.

A transcript has no rewards and no goals reached. The exercises teach the words, what goal and
observation share, which actions there are, and what a played action changed. The encoder reads an
agent's prompt and nothing else.
"""

import random
import re
from collections.abc import Sequence

from torchrl_glam.pretraining.batches import Reading, drawable
from torchrl_glam.pretraining.play import Move
from torchrl_glam.text import PromptTemplate

GAME_EXERCISES: dict[str, float] = {
    "outcome": 8.0,
    "admissible": 1.0,
    "goal": 2.0,
    "shared": 2.0,
    "follow": 2.0,
}
"""Weight of each exercise in the draw of the questions about a state."""

_WORD = r"\w+(?:['-]\w+)*"
_ASKED = 4  # actions that a question asks about, one after another
_LONGEST = 32  # words of an answer, after which it breaks off


class GameExercises:
    """Turns random play into prompts, questions and answers.

    Args:
        moves: random play, as :func:`~torchrl_glam.pretraining.record_play` records it.
        seed: of the private generator. Default: 0.
        questions: questions about each state, all different. Default: 3.
        weights: weight of each exercise, by name; 0 leaves it out. Default:
            :data:`~torchrl_glam.pretraining.GAME_EXERCISES`.

    Raises:
        ValueError: if there are no moves, ``weights`` names an unknown exercise or is out of range,
            or there is no question, or more of them than exercises.

    Examples:
        >>> move = Move("Find tea", "You see: tea", ["go", "take"], "go", "None")
        >>> GameExercises([move], weights={"shared": 1.0}, questions=1)(1)
        [Reading(prompt='Goal: Find tea\\nYou see: tea\\nAction:', answers=[[('\\nQuestion: shared',
        False), (' tea', True)]])]
    """

    def __init__(
        self,
        moves: Sequence[Move],
        seed: int = 0,
        questions: int = 3,
        weights: dict[str, float] | None = None,
    ) -> None:
        weights = drawable("weights", weights, GAME_EXERCISES)
        if not moves:
            raise ValueError("moves is empty: give one step of random play or more")
        if not 1 <= questions <= len(weights):
            raise ValueError(
                f"questions ({questions}) must be at least 1 and at most {len(weights)}, the "
                "number of exercises: those about a state are all different"
            )
        self._moves, self._random = list(moves), random.Random(seed)
        self._questions, self._weights = questions, weights
        self._template = PromptTemplate()
        self._actions = sorted({action for move in moves for action in move.actions})

    def texts(self) -> list[str]:
        """Every prompt and action, and the words of questions: what a tokenizer is made from."""
        prompts = [self._template.fill(move.goal, move.observation) for move in self._moves]
        actions = [f" {action}" for move in self._moves for action in move.actions]
        asked = [f"\nQuestion: {name} nothing yes no" for name in GAME_EXERCISES]
        return [*prompts, *actions, *asked]

    def __call__(self, number: int) -> list[Reading]:
        """Asks about ``number`` states drawn at random."""
        readings = []
        for move in self._random.choices(self._moves, k=number):
            answers = [getattr(self, f"_{name}")(move) for name in self._draw()]
            readings.append(Reading(self._template.fill(move.goal, move.observation), answers))
        return readings

    def _draw(self) -> list[str]:
        """Different exercises, in proportion to their weights (Efraimidis and Spirakis, 2006)."""
        keys = {name: self._random.random() ** (1 / w) for name, w in self._weights.items()}
        return sorted(keys, key=keys.get, reverse=True)[: self._questions]

    def _outcome(self, move: Move) -> list[tuple[str, bool]]:
        """The action played, and the lines of the next observation that differ."""
        told = set(move.observation.split("\n"))
        changed = "".join(f"\n{line}" for line in move.after.split("\n") if line not in told)
        return [(f" {move.action}", True), (_cut(changed), True)]

    def _admissible(self, move: Move) -> list[tuple[str, bool]]:
        pieces = [("\nQuestion: admissible", False)]
        for _ in range(_ASKED):
            action = self._random.choice(self._random.choice((move.actions, self._actions)))
            yes = action in move.actions
            pieces += [(f" {action}", False), (" yes" if yes else " no", True)]
        return pieces

    def _goal(self, move: Move) -> list[tuple[str, bool]]:
        return [("\nQuestion: goal", False), (_cut(f" {move.goal}"), True)]

    def _shared(self, move: Move) -> list[tuple[str, bool]]:
        """The words of the goal that the observation has too."""
        goal, seen = (re.findall(_WORD, text) for text in (move.goal, move.observation))
        shared = [word for word in goal if word in seen]
        return [("\nQuestion: shared", False), (_cut("".join(f" {word}" for word in shared)), True)]

    def _follow(self, move: Move) -> list[tuple[str, bool]]:
        """The words of the observation that follow two of its words."""
        text = self._template.lead("observation") + move.observation
        words = re.findall(r"\s*\S+", text)
        at = self._random.randrange(max(len(words) - 2, 1))
        question = "".join(words[at : at + 2])
        answer = "".join(words[at + 2 : at + 2 + _ASKED])
        return [(f"\nQuestion: follow{question}", False), (_cut(answer), True)]


def _cut(text: str) -> str:
    """The first words of an answer, or that there are none."""
    return "".join(re.findall(r"\s*\S+", text)[:_LONGEST]) or " nothing"
