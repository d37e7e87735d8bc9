"""A judge that learns from rewards which goals steps reached."""

import itertools
import zlib

import pytest
import torch

from torchrl_glam.goals import WordJudge

GOALS = ["Take any red lamp now", "Take blue cup", "Drop red cup"]
WORDS = "take any red lamp now blue cup drop".split()


def test_words_are_counted_where_they_stand():
    judge = WordJudge(GOALS, buckets=4)
    seen = "You see: red cup, red LAMP.\nYou hold: nothing"
    then = "You see: red lamp.\nYou hold: cup"
    [step] = judge.read([seen], ["Take cup"], [then])
    texts = [
        "take cup",
        "you see red cup red lamp you hold nothing",
        "you see red lamp you hold cup",
        "you see red lamp you hold cup",  # no line of it was there before
    ]
    expected = torch.zeros(4, 12)
    for bag, text in zip(expected, texts, strict=True):
        for word in text.split():
            other = 11 - zlib.crc32(word.encode()) % 4
            bag[WORDS.index(word) if word in WORDS else other] += 1
    assert torch.equal(step.float(), expected) and step.dtype == torch.uint8
    [step] = judge.read([seen], ["wait"], [seen])
    assert torch.equal(step[1], step[2]) and not step[3].any()


def test_odds_are_the_sum_of_what_words_add():
    judge = WordJudge(GOALS, buckets=2, seed=1)
    generator = torch.Generator().manual_seed(0)
    for weight in judge.weights.values():
        weight.data = torch.randn(weight.shape, generator=generator)
    weights = {name: weight.detach().double() for name, weight in judge.weights.items()}
    steps = torch.randint(0, 4, (3, 4, 10), generator=generator).byte()
    odds = judge(steps)
    for step, goal in itertools.product(range(3), range(3)):
        action, before, after, new = steps[step].double()
        up, down = (after - before).clamp(0, 2), (before - after).clamp(0, 2)
        seen = [(after != before).double(), after.clamp(max=2), torch.ones(10).double()]
        roles = torch.stack([action, up, down, new, *seen])
        expected = weights["all"].item()
        words = GOALS[goal].lower().split()
        for place, word in enumerate(words):
            at, early = WORDS.index(word), place < len(words) - 4
            row = at + 10 * early
            expected += (roles[:, at] @ weights["roles"][int(early)] + weights["alone"][row]).item()
            for role, table in zip(roles[:4], weights["others"].view(4, 10, -1), strict=True):
                expected += (role @ table @ weights["words"][row]).item()
        assert odds[step, goal].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


THINGS = [f"{c} {t}" for c in ("red", "blue", "green") for t in ("cup", "lamp", "door", "rug")]
EVERY = [f"{verb} {thing}" for verb in ("Take", "Push") for thing in THINGS]


def moved(verb, thing):
    """What is seen before and after something is done to a thing."""
    then = "You see: nothing" if verb == "Take" else f"You see: {thing}\nYou moved: {thing}"
    return f"You see: {thing}", verb, then


def test_goals_that_were_never_pursued_are_named_by_their_words():
    judge = WordJudge(EVERY)
    learned = [goal for goal in EVERY if goal not in ("Take red cup", "Push blue lamp")]
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        ids = torch.randint(len(learned), (16, 2), generator=generator)
        done = [learned[i] for i in ids[:, 0]]
        pursued = [learned[j] if i % 3 else learned[i] for i, j in ids.tolist()]
        steps = judge.read(*zip(*[moved(*goal.split(" ", 1)) for goal in done], strict=True))
        reached = torch.tensor([a == b for a, b in zip(done, pursued, strict=True)])
        judge.learn(steps, torch.tensor([EVERY.index(goal) for goal in pursued]), reached)
    steps = judge.read(*zip(*[moved(*goal.split(" ", 1)) for goal in EVERY], strict=True))
    named, right = judge(steps) > 0, torch.eye(len(EVERY), dtype=torch.bool)
    assert not (named & ~right).any() and (named & right).sum() >= 0.8 * len(EVERY)
    never = [EVERY.index(goal) for goal in set(EVERY) - set(learned)]
    assert named[never, never].all()


def taught(judge, calls, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(calls):
        steps = torch.randint(0, 3, (3, 4, judge._size), generator=generator).byte()
        goals = torch.randint(3, (3,), generator=generator)
        judge.learn(steps, goals, torch.rand(3, generator=generator) < 0.5)
    return judge(steps)


def test_a_restored_judge_goes_on_bit_for_bit():
    """Over the end of its window too; what it saved does not change with it."""
    judge, other = WordJudge(GOALS, window=7), WordJudge(GOALS, window=7, seed=5)
    taught(judge, 3, 0)
    state = judge.state_dict()
    expected = taught(judge, 2, 1)
    other.load_state_dict(state)
    assert torch.equal(taught(other, 2, 1), expected)
    other.load_state_dict(state)
    assert torch.equal(taught(other, 2, 1), expected)


def test_only_the_last_steps_are_kept():
    judge = WordJudge(GOALS, window=4)
    words = torch.arange(6).view(6, 1, 1).expand(6, 4, judge._size).byte()
    for part in (words[:3], words[3:]):
        judge.learn(part, torch.zeros(len(part)).long(), torch.ones(len(part)).bool())
    assert sorted(judge.state_dict()["_steps"][:, 0, 0].tolist()) == [2, 3, 4, 5]


def test_bad_values():
    for goals, settings in ((["Take cup"], {}), (GOALS, {"window": 0}), (GOALS, {"lr": -1.0})):
        with pytest.raises(ValueError, match=r"goal_texts \(\d goals\) must be two or more, buck"):
            WordJudge(goals, **settings)
    with pytest.raises(ValueError, match=r"goal_texts has '\?!', without a word: write"):
        WordJudge(["Take cup", "?!"])
    with pytest.raises(ValueError, match=r"goal_texts \('Take'\) must be a list of goals"):
        WordJudge("Take")
    judge = WordJudge(GOALS)
    steps, state = judge.read(["", ""], ["", ""], ["", ""]), judge.state_dict()
    for ids, reached in (([0], [True, False]), ([0, 1], [True])):  # which would count for both
        with pytest.raises(ValueError, match=r"goal_ids \(\d\) and reached \(\d\) must be .*: 2"):
            judge.learn(steps, torch.tensor(ids), torch.tensor(reached))
    for ids in ([0, -1], [3, 0], [0.0, 1.0]):
        with pytest.raises(ValueError, match=r"goal_ids \(.*must be ids of goals, in \[0, 3\)"):
            judge.learn(steps, torch.tensor(ids), torch.tensor([True, False]))
    others = {"goals": WordJudge(GOALS[:2]), "judge": WordJudge(GOALS, window=9)}
    for name, other in others.items():
        with pytest.raises(
            ValueError, match=f"^{name} of the state is .*: make the judge as the s"
        ):
            other.load_state_dict(state)


def test_nothing_is_learned_before_anything_is_told():
    judge = WordJudge(GOALS)
    before = judge.state_dict()["weights"]
    none = torch.zeros(0, dtype=torch.int64)
    judge.learn(judge.read([], [], []), none, none.bool())
    assert all(torch.equal(value, before[key]) for key, value in judge.weights.state_dict().items())
