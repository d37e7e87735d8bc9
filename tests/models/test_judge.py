"""A language model that names the goals which a step reached."""

import math
import re
from functools import cache, partial

import pytest
import stairs
import torch
from families import make_model, plain_score
from torchrl.envs import TransformedEnv

from torchrl_glam.models import GoalJudge, load_language_model, load_tokenizer
from torchrl_glam.replay import HindsightTransform
from torchrl_glam.text import GameStep, TokenizeText, decode_text

GOALS = ["Grasp red lion", "Grasp blue cat", "Grow red lion"]
SHORT = {"prompt": "Goal: {goal}\n{before}\nAction:"}


tiny = cache(partial(load_language_model, "tiny"))


def make_judge(score, goals=GOALS, **kwargs):
    """A judge whose trunk scores answers by a function of prompt and answer, as texts.

    ``asked`` keeps what it was asked, one dictionary a pass from prompts to answers.
    """
    model, tokenizer = tiny()
    judge = GoalJudge(model, tokenizer, goals, **kwargs)
    judge.asked = []

    def text_of(tokens):
        return tokenizer.decode(tokens[tokens != tokenizer.pad_token_id]).removesuffix("</s>")

    def read(first, rest, answers, mask, only):
        assert only == "scores"
        prompts, _ = judge.trunk.prompt(first, rest)
        asked, scores = {}, torch.zeros(mask.shape)
        for state, (prompt, there) in enumerate(zip(map(text_of, prompts), mask, strict=True)):
            asked[prompt] = [text_of(answer).strip() for answer in answers[state, there]]
            scores[state, there] = torch.tensor([score(prompt, one) for one in asked[prompt]])
        judge.asked.append(asked)
        return scores, None, torch.zeros(len(mask), 1)

    judge.trunk.score = read
    return judge


def by_goal(probabilities):
    """Scores under which the goals have these probabilities of yes."""

    def score(prompt, answer):
        [chance] = [p for goal, p in probabilities.items() if goal in prompt + answer]
        return math.log(chance if answer.endswith("yes") else 1 - chance) - 3.0

    return score


STEP = [GameStep("You see: red lion", {}), GameStep("You see: nothing", {}, "Grasp")]
CHANCES = {"Grasp red lion": 0.6, "Grasp blue cat": 0.2, "Grow red lion": 0.9}


@pytest.mark.parametrize(
    ("threshold", "max_goals", "named"),
    [
        (0.5, None, ["Grow red lion", "Grasp red lion"]),
        (0.5, 1, ["Grow red lion"]),
        (0.7, None, ["Grow red lion"]),
        (0.95, None, []),
        (0.0, None, ["Grow red lion", "Grasp red lion", "Grasp blue cat"]),
    ],
)
def test_goals_are_named_from_the_threshold_on(threshold, max_goals, named):
    judge = make_judge(by_goal(CHANCES), threshold=threshold, max_goals=max_goals, **SHORT)
    assert judge(STEP) == named


def test_pairs_come_in_the_order_of_the_goals_with_lists_of_any_length():
    judge = make_judge(by_goal(CHANCES), **SHORT)
    other = [GameStep("You see: blue cat", {}), GameStep("You see: nothing", {}, "Release")]
    odds = judge.log_odds([STEP, other, STEP], [GOALS[2:], [], GOALS[:2]])
    assert odds.sigmoid().tolist() == pytest.approx([0.9, 0.6, 0.2])
    assert judge.log_odds([], []).shape == judge.log_odds([STEP], [[]]).shape == (0,)


def test_the_question_holds_what_happened():
    judge = make_judge(by_goal(CHANCES))
    judge(STEP)
    [asked] = judge.asked
    prompt = (
        "Before: You see: red lion\nAction: Grasp\nAfter: You see: nothing\n"
        "Question: did this action reach the goal: Grow red lion? yes or no?\nAnswer:"
    )
    assert len(asked) == 3 and asked[prompt] == ["yes", "no"]


def test_goals_in_the_answers_share_one_prompt():
    prompt = "{before}\nAction: {action}\nQuestion: named"
    judge = make_judge(by_goal(CHANCES), prompt=prompt, yes="{goal} yes", no="{goal} no")
    assert judge(STEP) == ["Grow red lion", "Grasp red lion"]
    answers = [f"{goal} {answer}" for goal in GOALS for answer in ("yes", "no")]
    whole = "You see: red lion\nAction: Grasp\nQuestion: named"
    assert judge.asked == [{whole: answers}]


def test_nothing_is_asked_without_goals_or_before_a_step():
    for goals, steps in (([], STEP), (GOALS, STEP[:1])):
        judge = make_judge(by_goal(CHANCES), goals, **SHORT)
        assert judge(steps) == [] and judge.asked == []


def test_goals_and_slots_may_hang_on_the_trajectory():
    judge = make_judge(
        by_goal(CHANCES),
        goals=lambda steps: [f"{steps[-1].action} red lion"] * 2,
        describe=lambda steps: {"first": steps[0].observation},
        prompt="Goal: {goal}\n{first}",
    )
    assert judge([*STEP, GameStep({}, {}, "Grow")]) == ["Grow red lion"]
    assert list(judge.asked[0]) == ["Goal: Grow red lion\nYou see: red lion"]


def test_slots_are_filled_once():
    """Braces in what a game says are no slots."""
    judge = make_judge(by_goal({"{action}": 0.6}), ["{action}"], **SHORT)
    assert judge(STEP) == ["{action}"]


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_odds_are_those_of_the_model_itself_and_train_it(family, tokenizer):
    model, (yes, *no) = make_model(family, tokenizer), ("Go to red lion", "Grasp", "Go")
    judge = GoalJudge(model, tokenizer, GOALS, yes=yes, no=no, **SHORT)
    found = judge.log_odds([STEP], [GOALS])
    for goal, odds in zip(GOALS, found, strict=True):
        asked = (model, tokenizer, goal, "You see: red lion")
        scores = torch.stack([plain_score(*asked, answer)[0] for answer in (yes, *no)])
        expected = scores[0] - scores[1:].logsumexp(0)
        torch.testing.assert_close(odds, expected, atol=1e-4, rtol=0)
    found.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_decoder_only_model_reads_goals_in_answers_as_at_the_end_of_the_prompt(tokenizer):
    model = make_model("gpt2", tokenizer)
    at_end = GoalJudge(model, tokenizer, GOALS, prompt="{before}\nGoal: {goal}")
    answers = {"yes": "{goal} yes", "no": "{goal} no"}
    in_answers = GoalJudge(model, tokenizer, GOALS, prompt="{before}\nGoal:", **answers)
    asked = [STEP], [GOALS]
    assert torch.allclose(at_end.log_odds(*asked), in_answers.log_odds(*asked), atol=1e-4)


def test_a_chat_model_answers_the_question():
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = (
        "{% for turn in messages %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}"
    )
    model = make_model("gpt2", tokenizer)
    judge = GoalJudge(model, tokenizer, GOALS, chat_template=True, **SHORT)
    text = "[user] Goal: Grasp red lion\nYou see: red lion\nAction:\n[assistant]"
    ids, yes, no = tokenizer([text, " yes", " no"], add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    expected = logits[yes] - logits[no]  # each is one token
    torch.testing.assert_close(judge.log_odds([STEP], [GOALS[:1]]), expected, atol=1e-4, rtol=0)


def test_rows_of_a_wrapped_game_are_relabelled_with_what_it_names():
    """The agent goes up one floor, whichever is to be reached."""

    def score(prompt, answer):
        asked, reached = re.findall(r"floor ?(-? ?\d)", prompt)
        return 0.0 if (asked == reached) == (answer == "yes") else -5.0

    judge = make_judge(score, stairs.FLOORS, prompt="Goal: {goal}\nAfter: {after}")
    env = stairs.make(8, seed=0, hindsight=judge, max_steps=1)
    env = TransformedEnv(env, TokenizeText(load_tokenizer("tiny")))
    step = env.step(env.reset().set("action", torch.zeros(8, dtype=torch.int64)))
    assert decode_text(step["next", "hindsight", "goal"]) == [["Reach floor 1", ""]] * 8
    rows = HindsightTransform().inv(step.unsqueeze(1))
    # The goal pursued is no hindsight: episodes that reach it have no copy.
    goals = decode_text(step["goal"])
    others = len(goals) - goals.count("Reach floor 1")
    assert 0 < others < 8 and decode_text(rows["goal"]) == goals + ["Reach floor 1"] * others
    assert rows["next", "reward"][rows["is_hindsight"]].flatten().tolist() == [1.0] * others


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.5}, r"threshold \(1.5\) must be a probability"),
        ({"max_goals": 0}, r"max_goals \(0\) must be at least 1"),
        ({"no": []}, r"yes \('yes'\) and no \(\[\]\) must be answers"),
        ({"yes": " "}, r"yes \(' '\) and no \('no'\) must be answers"),
        ({"no": "yes"}, r"yes \(' yes'\) and no \(\[' yes'\]\) have the same tokens"),
        ({"no": ["no", "no"]}, r"yes \(' yes'\) and no \(\[' no', ' no'\]\) have the same tokens"),
        ({"prompt": "Was it reached?"}, r"prompt \('Was .*\) must have the slot"),
        ({"prompt": "{goal}?"}, r"prompt \('\{goal\}\?'\) must have two words"),
        ({"prompt": "{goal} {now}"}, r"slot \{now\}, .* None: .* \['before', 'action'"),
        ({"goals": "Grasp"}, r"goals \('Grasp'\) is a string: give a list"),
        ({"goals": ["Grasp", ""]}, r"goals\[1\] is '': it must be a text"),
        ({"goals": lambda steps: [3]}, r"goals\[0\] is 3: it must be a text"),
        ({"goals": ["red", "<pad> red"]}, r"' <pad> red\\n.*' spells '<pad>'"),
        ({"yes": "{goal} <pad>"}, r"' Grasp red lion <pad>' spells '<pad>', the tokenizer's pad"),
        ({"trajectory": [GameStep("a <pad>", {}), STEP[1]]}, r"a <pad>\\n.*' spells '<pad>'"),
        ({"trajectory": [GameStep({}, {})] * 2}, r"describe is .* are \['dict', 'dict'\]"),
    ],
)
def test_what_is_refused_is_named(options, message):
    trajectory = options.pop("trajectory", STEP)
    with pytest.raises(ValueError, match=message):
        GoalJudge(*tiny(), **({"goals": GOALS} | SHORT | options))(trajectory)


def test_a_goal_that_the_model_cannot_read_is_named(tokenizer):
    goals = ["Grasp red lion", "Grasp red lion then " + "grasp red lion " * 100]
    judge = GoalJudge(make_model("gpt2", tokenizer, n_positions=128), tokenizer, goals, **SHORT)
    message = r"goals cannot be judged, .* 'Grasp red lion then .* has 128 positions: shorten goal"
    with pytest.raises(ValueError, match=message):
        judge(STEP)


def test_a_model_that_is_no_longer_finite_is_named():
    judge = make_judge(lambda prompt, answer: math.nan, **SHORT)
    with pytest.raises(FloatingPointError, match="yes and no are NaN or infinite"):
        judge(STEP)
