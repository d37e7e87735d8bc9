"""Hindsight for games without a social partner: a language model names the goals a step reached.

SAC-GLAM (Gaven et al., 2024, section 2.3) leaves open whether a language model can replace the
partner: measure its accuracy in your game.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from torchrl_glam.models.trunks.factory import make_trunk
from torchrl_glam.text import GameStep, PromptTemplate, check_composition

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Trajectory = Sequence[GameStep]
_PROMPT = (
    "Before: {before}\nAction: {action}\nAfter: {after}\n"
    "Question: did this action reach the goal: {goal}? yes or no?\nAnswer:"
)


class GoalJudge:
    """Names the goals of a list that the last step of a trajectory reached, by a language model.

    Give it to :class:`~torchrl_glam.envs.TextEnvWrapper` as ``hindsight``. It asks the model a
    question about each goal and compares the log-likelihoods of the answers, as a trunk scores
    candidate actions.

    Goals with equal prompts share one pass. With a long list, let the answers name the goal instead
    of the prompt: ``yes="{goal}: yes"``, ``no="{goal}: no"``. A decoder-only model then reads the
    same text as if the prompt ended with the goal.

    Args:
        model: a ``transformers`` model that :func:`~torchrl_glam.models.make_trunk` takes.
        tokenizer: its tokenizer.
        goals: texts of the goals that may be named, or a function from a trajectory to them.
        prompt: the question, with slots in braces: ``{goal}`` and those of ``describe``. Default: a
            question about ``{before}``, ``{action}``, ``{after}`` and ``{goal}``.
        yes: the answer that the goal was reached; it may have slots too. Default: ``"yes"``.
        no: the answer that it was not, or several, whose probabilities are added. Default:
            ``"no"``.
        threshold: probability of ``yes``, among these answers, from which a goal is named. Most
            steps reach few goals, so an untrained model names too many at 0.5. Default: 0.5.
        max_goals: most goals that are named after a step, the most probable ones; the wrapper
            refuses more than its ``max_hindsight``. Default: None, all.
        describe: function from a trajectory, a list of :class:`~torchrl_glam.text.GameStep`, to
            the texts of the slots. Default: ``before`` and ``after``, the last two observations,
            which must be strings, and ``action``, the one between them.
        chat_template: whether the prompt is a user's turn, which a chat model answers. Default:
            False.
        **options: of :func:`~torchrl_glam.models.make_trunk`, such as ``max_tokens_per_pass``.

    Raises:
        ValueError: on construction, if an argument is out of range, or as the trunk raises it; on a
            call, if a goal is empty or no string, a slot is not filled, a text spells the padding
            token, answers have the same tokens, or a question is longer than the model can read.
        FloatingPointError: if the model's log-likelihoods are not finite.

    Examples:
        >>> from torchrl_glam.models import load_language_model
        >>> judge = GoalJudge(  # the embedded model has read which things a phrase names
        ...     *load_language_model("tiny"),
        ...     ["Grasp red lion", "Grasp any plant", "Grasp blue cow"],
        ...     prompt="Goal: {goal}\\n{before}\\nAction:",
        ...     yes="\\nQuestion: first named {action} yes",
        ...     no=("\\nQuestion: first named {action} no",),
        ... )
        >>> start = GameStep("You see: red lion, blue tree, red water", {})
        >>> judge([start, GameStep("You see: blue tree, red water", {}, "red lion")])
        ['Grasp red lion']
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        goals: Iterable[str] | Callable[[Trajectory], Iterable[str]],
        *,
        prompt: str = _PROMPT,
        yes: str = "yes",
        no: str | Sequence[str] = "no",
        threshold: float = 0.5,
        max_goals: int | None = None,
        describe: Callable[[Trajectory], Mapping[str, str]] | None = None,
        chat_template: bool = False,
        **options: Any,
    ) -> None:
        answers = [yes, *([no] if isinstance(no, str) else no)]
        if len(answers) < 2 or not all(answer.strip() for answer in answers):
            raise ValueError(f"yes ({yes!r}) and no ({no!r}) must be answers, none of them empty")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold ({threshold}) must be a probability, from 0 to 1")
        if max_goals is not None and max_goals < 1:
            raise ValueError(f"max_goals ({max_goals}) must be at least 1, or None for all")
        if not any("{goal}" in text for text in (prompt, yes)):
            raise ValueError(f"prompt ({prompt!r}) or yes ({yes!r}) must have the slot {{goal}}")
        # Trunks put prompts together from two pieces, cut in front of white space: the first word
        # of the prompt, and the rest.
        pieces = re.fullmatch(r"(\S+)(\s+)(.+)", prompt.strip(), re.DOTALL)
        if pieces is None:
            raise ValueError(f"prompt ({prompt!r}) must have two words or more")
        first, lead, rest = pieces.groups()
        template = PromptTemplate(f"{{goal}}{lead}{{observation}}")
        self._template = template.as_chat(tokenizer) if chat_template else template
        self._texts = [first, rest, *answers]
        slots = ("goal", "observation", *["action"] * len(answers))
        self._leads = [self._template.lead(slot) for slot in slots]
        self.goals = goals if callable(goals) else _checked(goals)
        self.threshold, self.max_goals = threshold, max_goals
        self._describe = _last_step if describe is None else describe
        self._tokenizer, self._is_checked = tokenizer, False
        self.trunk = make_trunk(model, tokenizer, self._template, **options)

    def __call__(self, trajectory: Trajectory) -> list[str]:
        """The goals that the last step reached, the most probable first; none after a reset."""
        if len(trajectory) < 2:
            return []
        goals = _checked(self.goals(trajectory)) if callable(self.goals) else self.goals
        with torch.no_grad():
            probabilities = self.log_odds([trajectory], [goals]).sigmoid().tolist()
        ranked = sorted(zip(probabilities, goals, strict=True), key=lambda pair: -pair[0])
        return [goal for chance, goal in ranked if chance >= self.threshold][: self.max_goals]

    def log_odds(
        self, trajectories: Sequence[Trajectory], goals: Sequence[Sequence[str]]
    ) -> Tensor:
        """Logarithms of the odds that goals were reached, with gradient: to measure and to train.

        ``[P]`` float32, in nats, for the P pairs of a trajectory with each of its goals, in order.
        """
        questions = []
        for trajectory, asked in zip(trajectories, goals, strict=True):
            slots = self._describe(trajectory) if len(asked) else {}
            questions += [self._fill({**slots, "goal": goal}) for goal in asked]
        if not questions:
            return torch.zeros(0)
        states, rows, places = self._group(questions)
        if not self._is_checked:  # whether the pieces of a question have the tokens of the whole
            first, rest, *answers = questions[0]
            actions = () if self.trunk.closes_prompt else answers
            check_composition(self._tokenizer, self._template, [(first, rest)], actions)
            self._is_checked = True
        try:
            scores = self.trunk(states, only="scores")[self.trunk.out_keys[0]]
        except ValueError as error:
            longest = max((goal for asked in goals for goal in asked), key=len)
            raise ValueError(
                f"goals cannot be judged, of which the longest is {longest!r}: {error}"
            ) from error
        yes, no = scores[rows.unsqueeze(1), places].split([1, places.shape[1] - 1], 1)
        odds = yes.squeeze(1) - no.logsumexp(1)
        if not odds.isfinite().all():
            raise FloatingPointError(
                "the log-likelihoods of yes and no are NaN or infinite: the language model's "
                "weights are no longer finite"
            )
        return odds

    def _fill(self, slots: Mapping[str, str]) -> list[str]:
        """The two pieces of the prompt, and the answers, about one goal."""

        def text_of(slot: re.Match) -> str:
            text = slots.get(slot[1])
            if not isinstance(text, str):
                raise ValueError(
                    f"prompt, yes or no has the slot {slot[0]}, which is {text!r}: describe must "
                    f"tell it as a string, and tells {list(slots)}"
                )
            return text

        return [re.sub(r"\{(\w+)\}", text_of, text) for text in self._texts]

    def _group(self, questions: list[list[str]]) -> tuple[TensorDict, Tensor, Tensor]:
        """S states with A candidates; the state ``[P]`` and the candidates ``[P, answers]`` of each
        of P questions."""
        questions = [[*map(str.__add__, self._leads, question)] for question in questions]
        texts = list(dict.fromkeys(text for question in questions for text in question))
        ids = self._tokenizer(texts, add_special_tokens=False).input_ids
        tokens = dict(zip(texts, map(tuple, ids), strict=True))
        pad = self.trunk.prompt.pad_id
        for text in texts:
            if pad in tokens[text]:
                raise ValueError(
                    f"{text!r} spells {self._tokenizer.pad_token!r}, the tokenizer's padding, "
                    "which is not read: put the goal, the answer or the slot in another way"
                )
        prompts: dict[tuple, tuple[int, dict[tuple, int]]] = {}
        rows, places = [], []
        for question in questions:
            first, rest, *answers = (tokens[text] for text in question)
            if len(set(answers)) < len(answers):
                raise ValueError(
                    f"yes ({question[2]!r}) and no ({question[3:]!r}) have the same tokens: choose "
                    "answers that the tokenizer tells apart"
                )
            row, candidates = prompts.setdefault((first, rest), (len(prompts), {}))
            rows.append(row)
            places.append([candidates.setdefault(a, len(candidates)) for a in answers])
        asked = [list(candidates) for _, candidates in prompts.values()]
        width = max(map(len, asked))
        length = max(len(answer) for row in asked for answer in row)
        actions = [_padded([*row, *[()] * (width - len(row))], pad, length) for row in asked]
        mask = [[place < len(row) for place in range(width)] for row in asked]
        first, rest = (_padded(pieces, pad) for pieces in zip(*prompts, strict=True))
        inputs = (first, rest, actions, mask)
        states = TensorDict(
            dict(zip(self.trunk.in_keys, map(torch.tensor, inputs), strict=True)), [len(prompts)]
        ).to(self.trunk.base_model.get_input_embeddings().weight.device)
        return states, torch.tensor(rows), torch.tensor(places)


def _last_step(trajectory: Trajectory) -> dict[str, str]:
    seen = [step.observation for step in trajectory[-2:]]
    if len(seen) < 2 or not all(isinstance(observation, str) for observation in seen):
        raise ValueError(
            "describe is needed where a trajectory does not end in two observations that are "
            f"strings: they are {[type(observation).__name__ for observation in seen]}. Let it "
            "tell before, action and after"
        )
    return {"before": seen[0], "action": trajectory[-1].action, "after": seen[1]}


def _checked(goals: Iterable[str]) -> list[str]:
    """Goals without those that are there twice."""
    if isinstance(goals, str):
        raise ValueError(f"goals ({goals!r}) is a string: give a list of them")
    goals = list(goals)
    for index, goal in enumerate(goals):
        if not isinstance(goal, str) or not goal.strip():
            raise ValueError(f"goals[{index}] is {goal!r}: it must be a text that says something")
    return list(dict.fromkeys(goals))


def _padded(rows: Sequence[Sequence[int]], pad: int, width: int = 1) -> list[list[int]]:
    width = max(width, *map(len, rows))
    return [[*row, *[pad] * (width - len(row))] for row in rows]
