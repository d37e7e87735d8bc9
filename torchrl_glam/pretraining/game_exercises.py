"""Reading exercises from transcripts of random play of any text environment.

A transcript has no rewards and no goals reached. The exercises teach the words, what goal and
observation share and what stands behind it, which actions there are, and what a played action
changed. The encoder reads an agent's prompt and nothing else; its goal is that of another episode
where one is found that the observation mentions.
"""

import random
import re
from collections import Counter
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
    "about": 8.0,
}
"""Weight of each exercise in the draw of the questions about a state."""

_WORD = r"\w+(?:['-]\w+)*"
_ASKED = 4  # actions that a question asks about, one after another; words of some answers
_PAIRS = 8  # pairs of words that a question asks about
_GOALS = 12  # goals that are tried for a prompt
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
        self._goals = sorted({move.goal for move in moves})
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
            move = move._replace(goal=self._goal_in_sight(move))
            answers = [getattr(self, f"_{name}")(move) for name in self._draw()]
            readings.append(Reading(self._template.fill(move.goal, move.observation), answers))
        return readings

    def _draw(self) -> list[str]:
        """Different exercises, in proportion to their weights (Efraimidis and Spirakis, 2006)."""
        keys = {name: self._random.random() ** (1 / w) for name, w in self._weights.items()}
        return sorted(keys, key=keys.get, reverse=True)[: self._questions]

    def _goal_in_sight(self, move: Move) -> str:
        """A goal of which the observation has two words in a row, or the move's own."""
        seen = move.observation.split()
        tried = self._random.sample(self._goals, min(_GOALS, len(self._goals)))
        return next((goal for goal in tried if _mention(goal, seen)[0] > 1), move.goal)

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

    def _about(self, move: Move) -> list[tuple[str, bool]]:
        """The words of the observation that follow what it has of the goal."""
        words = self._words(move)
        size, end = _mention(move.goal, [word.strip() for word in words])
        told = "".join(words[end : end + _ASKED]) if size else ""
        return [("\nQuestion: about", False), (_cut(told), True)]

    def _follow(self, move: Move) -> list[tuple[str, bool]]:
        """The words of the observation that follow two of its words, for some such pairs.

        A pair stands there once. Those of which one word stands elsewhere too are asked about
        first, as one word is not enough to find them.
        """
        words = self._words(move)
        seen = [word.strip() for word in words]
        pairs = [*zip(seen, seen[1:], strict=False)]
        count = Counter([*seen, *pairs])
        once = [at for at, pair in enumerate(pairs) if count[pair] == 1]
        hard = [at for at in once if max(count[word] for word in pairs[at]) > 1]
        places, pieces = hard or once or [0], []
        for at in self._random.sample(places, min(len(places), _PAIRS)):
            question = " ".join(seen[at : at + 2])
            told = "".join(words[at + 2 : at + 2 + _ASKED])
            pieces += [(f"\nQuestion: follow {question}", False), (_cut(told), True)]
        return pieces

    def _words(self, move: Move) -> list[str]:
        """The observation's words, each with the white space before it."""
        return re.findall(r"\s*\S+", self._template.lead("observation") + move.observation)


def _mention(goal: str, seen: list[str]) -> tuple[int, int]:
    """Length of the longest run of the goal's words that is seen once, and where it ends."""
    words, text = goal.split(), f" {' '.join(seen)} "
    for size in range(len(words), 0, -1):
        for start in range(len(words) - size + 1):
            run = f" {' '.join(words[start : start + size])} "
            at = text.find(run)
            if at >= 0 and text.find(run, at + 1) < 0:
                return size, text.count(" ", 0, at + len(run) - 1)
    return 0, 0


def _cut(text: str) -> str:
    """The first words of an answer, or that there are none."""
    return "".join(re.findall(r"\s*\S+", text)[:_LONGEST]) or " nothing"
