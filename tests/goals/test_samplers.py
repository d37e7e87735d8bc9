"""Goal samplers: their progress, their draws, their states, and what they refuse."""

import math
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_glam.goals import KindProgressGoals as Kinds
from torchrl_glam.goals import LearnedProgressGoals as Learned
from torchrl_glam.goals import ProgressGoals as Progress
from torchrl_glam.goals import UniformGoals as Uniform
from torchrl_glam.runs.checkpoints.adapters import StateDictAdapter

TEXTS = [f"Grasp {thing}" for thing in ("a cow", "a rose", "food", "a lion", "a door")]
KINDS = [0, 0, 2, 2, 2]  # none is of kind 1
EMBEDDINGS = torch.randn((5, 3), generator=torch.Generator().manual_seed(0))
MAKERS = {
    "uniform": lambda **kwargs: Uniform(TEXTS, kinds=KINDS, shares=[0.5, 0, 0.5], **kwargs),
    "goal": lambda **kwargs: Progress(TEXTS, window=6, **kwargs),
    "kind": lambda **kwargs: Kinds(TEXTS, kinds=KINDS, window=6, **kwargs),
    "learned": lambda **kwargs: Learned(
        TEXTS, EMBEDDINGS, window=9, batch_size=8, lr=0.1, every=2, steps=3, lag=4, **kwargs
    ),
    "learned_pool": lambda **kwargs: Learned(
        TEXTS, EMBEDDINGS, pool=3, window=9, lr=0.1, every=1, steps=3, lag=2, **kwargs
    ),
}
GREEDY = {"exploration": (0.0, 0.0)}
EPISODES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=20)


def tell(sampler, episodes, **kwargs):
    ids, successes = zip(*episodes, strict=True) if episodes else ((), ())
    sampler.update(torch.tensor(ids), torch.tensor(successes), **kwargs)


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(EPISODES, min_size=1, max_size=5))
def test_progress_is_that_of_the_last_results(rounds):
    """Against a queue for each goal, and for each kind."""
    for name, groups in (("goal", range(5)), ("kind", KINDS)):
        sampler, queues = MAKERS[name](), [deque(maxlen=6) for _ in range(5)]
        for episodes in rounds:
            tell(sampler, episodes)
            for goal, success in episodes:
                queues[groups[goal]].append(success)
        change = []
        for queue in queues:
            half = len(queue) // 2
            older, newer = list(queue)[:half], list(queue)[half:]
            change.append(abs(sum(newer) / len(newer) - sum(older) / half) if half else 0.0)
        assert sampler.progress.tolist() == pytest.approx([change[group] for group in groups])


def test_hindsight_counts_as_a_success_where_it_is_to():
    named = torch.tensor([[4, -1], [4, 4]])
    for hindsight, progress in ((False, 0.0), (True, 1.0)):  # 0, 0, 0 and then 1, 1, 1
        sampler = Progress(TEXTS, hindsight=hindsight)
        tell(sampler, [(4, 0), (4, 0), (4, 0)], named=named)
        assert sampler.progress[4] == progress


def share_of(sampler, number=20_000):
    return (sampler.sample(number).bincount(minlength=5) / number).tolist()


def test_uniform_draws():
    expected = torch.randint(5, (12,), generator=torch.Generator().manual_seed(7))
    assert torch.equal(Uniform(np.array(TEXTS), seed=7).sample(12), expected)
    assert torch.equal(Progress(TEXTS, seed=7)(None, 12), expected)  # no progress yet
    sampler = Uniform(TEXTS, kinds=KINDS, shares=[0.7, 0.0, 0.3])
    assert share_of(sampler) == pytest.approx([0.35, 0.35, 0.1, 0.1, 0.1], abs=0.015)
    sampler = Kinds(TEXTS, kinds=KINDS)
    assert share_of(sampler) == pytest.approx([1 / 4] * 2 + [1 / 6] * 3, abs=0.015)


def test_goals_are_drawn_in_proportion_to_progress():
    episodes = [(0, 0), (0, 1), (2, 0), (2, 0), (2, 0), (2, 1), (4, 0), (4, 0), (4, 0), (4, 0)]
    sampler = Progress(TEXTS, **GREEDY)
    tell(sampler, episodes)
    assert share_of(sampler) == pytest.approx([2 / 3, 0, 1 / 3, 0, 0], abs=0.015)
    sampler = Kinds(TEXTS, kinds=KINDS, **GREEDY)
    tell(sampler, episodes)  # of kind 0: 0, 1; of kind 2: 0, 0, 0, 1 and 0, 0, 0, 0
    assert sampler.progress.tolist() == [1, 1, 0.25, 0.25, 0.25]
    assert share_of(sampler) == pytest.approx([0.4, 0.4] + [0.2 / 3] * 3, abs=0.015)


def test_exploration_falls_from_one_to_a_fifth():
    sampler = Progress(TEXTS)
    assert sampler.exploration == 1.0
    for _ in range(320):
        tell(sampler, [(1, 0), (1, 1)])
    assert sampler.exploration == pytest.approx(0.2 + 0.8 / math.e)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(MAKERS)),
    before=st.lists(EPISODES, max_size=6),
    after=st.lists(EPISODES, max_size=4),
    hindsight=st.booleans(),
)
def test_a_saved_state_continues_bit_for_bit(tmp_path_factory, name, before, after, hindsight):
    """Through a checkpoint's own files."""
    sampler, other = (MAKERS[name](hindsight=hindsight, seed=seed) for seed in (1, 2))
    named, path = torch.tensor([[1, -1]]), tmp_path_factory.mktemp("state")
    for episodes in before:
        tell(sampler, episodes, named=named)
        sampler.sample(3)
    StateDictAdapter().save(sampler, path / "sampler", args=(), kwargs={})
    options = {"map_location": "cpu", "tensor_load_kwargs": {}, "args": (), "kwargs": {}}
    StateDictAdapter().load(other, path / "sampler", **options)
    state = sampler.state_dict()
    assert same(other.state_dict(), state)
    for episodes in after:
        for each in (sampler, other):
            tell(each, episodes, named=named)
        assert torch.equal(sampler.progress, other.progress)
        assert torch.equal(sampler.sample(30), other.sample(30))
    assert same(sampler.state_dict(), other.state_dict())
    other.load_state_dict(state)
    assert same(other.state_dict(), state)  # which nothing has changed since


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_a_state_of_another_sampler_or_table_is_refused():
    for other, message in (
        (Progress(TEXTS[::-1], window=6), r"goals of the state is 5 goals, \w+, expected 5"),
        (Progress(TEXTS, window=6, kinds=KINDS), "goals of the state"),
        (Progress(TEXTS, window=7), r"sampler of the state is .*\(window=7\), expected .*=6\)"),
        (Uniform(TEXTS), r"sampler of the state is UniformGoals\(\), expected ProgressGoals"),
    ):
        with pytest.raises(ValueError, match=message):
            MAKERS["goal"]().load_state_dict(other.state_dict())


REFUSED = [
    (lambda: Uniform(None), r"goal_texts \(None\) must be a table of goals"),
    (lambda: Uniform("Grasp"), r"goal_texts \('Grasp'\) must be a table of goals"),
    (lambda: Uniform(TEXTS, kinds=KINDS[:4]), "kinds .* must be 5 integers"),
    (lambda: Uniform(TEXTS, shares=[0.5, 0.5]), r"goals are \[5, 0\]"),
    (lambda: Uniform(TEXTS, kinds=KINDS, shares=[0.5, 0, 0.4]), "shares .* sum to 1"),
    (lambda: Uniform(TEXTS, kinds=KINDS, shares=[1.5, 0, -0.5]), "must be at least 0"),
    (lambda: Progress(TEXTS, exploration=(1.0, 1.2)), r"exploration \(1.0, 1.2\) must"),
    (lambda: Progress(TEXTS, exploration=0.2), r"exploration 0.2 must be two shares in \[0, 1\]"),
    (lambda: Progress(TEXTS, window=1), r"window \(1\) must be at least 2"),
    (lambda: Kinds(TEXTS), "kinds is missing: an expert must give"),
    (lambda: Learned(TEXTS, EMBEDDINGS[:3]), r"has shape \[3, 3\], expected \[5, D\]"),
    (lambda: Learned(TEXTS, EMBEDDINGS / 0), "of 1 goals are not finite, of 'Grasp a cow' first"),
    (lambda: Learned(TEXTS, EMBEDDINGS, dropout=1), r"dropout \(1\) must be in \[0, 1\)"),
    (lambda: Learned(TEXTS, EMBEDDINGS, per_goal=0), r"per_goal \(0\) must be above 0"),
    (lambda: Learned(TEXTS, EMBEDDINGS, lag=36), r"lag \(36\) must be a multiple of every \(8\)"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


BAD_EPISODES = [
    ([5], [1], [0], r"goal_ids \(.*5.*\) must be ids of goals, in \[0, 5\)"),
    ([0, 1], [1], [0], r"successes \(.*\) must be 0 or 1, as many as goal_ids: 2"),
    ([0], [0.5], [0], "successes .* must be 0 or 1"),
    ([0], [1], [-2], r"named \(.*-2.*\) must be ids of goals, in \[-1, 5\)"),
]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("ids", "successes", "named", "message"), BAD_EPISODES)
def test_bad_episodes_are_refused_and_change_nothing(name, ids, successes, named, message):
    sampler = MAKERS[name](hindsight=True)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match=message):
        sampler.update(torch.tensor(ids), torch.tensor(successes), torch.tensor(named))
    assert same(sampler.state_dict(), before)


def test_progress_that_is_not_finite_is_refused():
    sampler = Uniform(TEXTS)
    with pytest.raises(ValueError, match="progress of 2 goals is not finite, of 'Grasp a lion'"):
        sampler._set_progress(torch.tensor([0, 1, 0, math.nan, math.inf]))
    assert not sampler.progress.any()


@pytest.mark.parametrize("kind", [Uniform, Progress, Kinds])
def test_only_goals_in_use_are_drawn(kind):
    """Of six goals three at a time, by progress and uniformly; what is known of others stays."""
    sampler = kind(list("abcdef"), kinds=[0, 0, 0, 1, 1, 1], exploration=(0.5, 0.5))
    odd = torch.tensor([0, 1, 0, 1, 0, 1]).bool()
    sampler.use(odd)
    assert set(sampler.sample(200).tolist()) == {1, 3, 5}
    sampler.update([0, 0, 1, 1], [0, 1, 0, 1])
    progress = sampler.progress.clone()
    counts = sampler.sample(600).bincount(minlength=6)
    assert (counts[odd] > 0).all() and not counts[~odd].any()
    if kind is Progress:  # half of the draws, and a third of the others
        assert abs(counts[1] - 400) <= 5 * (600 * 2 / 9) ** 0.5
    sampler.use(~odd)
    assert set(sampler.sample(200).tolist()) == {0, 2, 4}
    assert torch.equal(sampler.progress, progress)
    with pytest.raises(ValueError, match="used has 0 goals, and none that is ever drawn"):
        sampler.use(odd & ~odd)
    for wrong in (torch.tensor([1, 3, 5]), odd[:1], odd.long()):
        with pytest.raises(ValueError, match=r"used \(tensor.* must be bool, one for each goal: 6"):
            sampler.use(wrong)


def test_goals_that_shares_leave_out_cannot_be_the_only_ones_in_use():
    sampler = Uniform(list("abc"), kinds=[0, 0, 1], shares=[1.0, 0.0])
    with pytest.raises(ValueError, match="used has 1 goals, and none that is ever drawn"):
        sampler.use(torch.tensor([False, False, True]))
