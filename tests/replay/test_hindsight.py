"""HindsightTransform and n-step against the one-step-at-a-time reference; strategies; errors."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, TransformedEnv

from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform, SubgoalFilter
from torchrl_glam.replay.strategies import draw_from_each, future

from . import toy
from .toy_env import ToyEnv

GOALS = {  # type of goals, and the second number of one from its token
    torch.int16: int,
    torch.uint8: lambda token: token + 200 if token else 0,
    torch.int64: lambda token: token + 2**60,
    torch.float32: lambda token: token / 4,
    torch.float64: lambda token: 1 + token * 2.0**-50,
    torch.bfloat16: lambda token: token / 64,
    torch.bool: bool,
}
SCALES = [(0.0, 1.0), (-1.0, 0.0), (-0.25, 8.0)]


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(),
    dtype=st.sampled_from(list(GOALS)),
    n_steps=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.5, 0.75, 1.0]),  # exact in float32, as these rewards are
    relabel=st.sampled_from(["all", "all", "none"]),
    strategy=st.sampled_from(["future", "final"]),
    scale=st.sampled_from(SCALES),
)
def test_equals_reference(data, dtype, n_steps, gamma, relabel, strategy, scale):
    lines, splits = data.draw(toy.streams(number=GOALS[dtype], scale=scale))
    hindsight = HindsightTransform(relabel, strategy=strategy, reward_scale=scale)
    transform = Compose(SegmentMultiStepTransform(n_steps, gamma), hindsight)
    rows = toy.rows_of(transform, toy.batches(lines, splits, dtype))
    expected = toy.reference_rows(lines, relabel, n_steps, gamma, strategy, scale)
    assert toy.as_multiset(rows) == toy.as_multiset(expected)


def one_episode(named, outcome="success"):
    """A batch [1, T] of one episode, in which these goals are named."""
    return toy.to_batch([toy.make_stream([len(named)], [outcome], named, first_observation=10)])


def test_hand_written_episode():
    """Three steps under goal 100; goal (1, 7) named after the second, the episode runs out."""
    batch = one_episode([[], [(7, 2)], []], "timeout")
    before = batch.clone()
    rows = HindsightTransform().inv(batch)
    own, named = ((100, 0),) * 2, ((1, 7),) * 2
    assert toy.to_rows(rows) == [  # (done, terminated, truncated) after the reward
        toy.Row(10, 11, *own, 0, 0.0, False, False, False, steps=1, hindsight=False),
        toy.Row(11, 12, *own, 0, 0.0, False, False, False, steps=1, hindsight=False),
        toy.Row(12, 13, *own, 0, 0.0, True, False, True, steps=1, hindsight=False),
        toy.Row(10, 11, *named, 2, 0.0, False, False, False, steps=1, hindsight=True),
        toy.Row(11, 12, *named, 2, 1.0, True, True, False, steps=1, hindsight=True),
    ]
    assert rows["next", "goal_kind"].tolist() == [0, 0, 0, 2, 2]
    assert not any("hindsight" in key for key in rows.keys(True, True) if isinstance(key, tuple))
    assert rows["goal_tokens"].dtype == torch.int16 and rows["goal_kind"].dtype == torch.int8
    # the batch stays as it was, and the root's ends, which are False everywhere, are left out
    assert (batch == before).all()
    for key in ("done", "terminated", "truncated"):
        batch[key] = torch.zeros(1, 3, 1, dtype=torch.bool)
    assert set(HindsightTransform().inv(batch).keys(True, True)) == set(rows.keys(True, True))


def test_memory_grows_with_the_longest_episode_only():
    """One environment's episode outlasts the log's size again and again; the other's are short."""
    total = 150
    named = [[(t % 9 + 1, t % 4)] if t % 10 == 0 else [] for t in range(total)]
    lines = [
        toy.make_stream([70, 80], ["timeout", "success"], named, 0),
        toy.make_stream([3] * 50, ["success", "failure"] * 25, named, 1000),
    ]
    transform = Compose(SegmentMultiStepTransform(3, 0.9), HindsightTransform())
    rows = toy.rows_of(transform, toy.batches(lines, [1] * total))
    expected = toy.reference_rows(lines, "all", 3, 0.9)
    assert toy.as_multiset(rows) == toy.as_multiset(expected)
    assert len(transform[1]._log.steps["action"]) < 8 * 80  # the longest episode has 80 steps


def test_pending_and_clear():
    line = toy.make_stream([4], ["success"], [[]] * 4, first_observation=0)
    first, second = toy.batches([line, line], [3, 1])
    transform = HindsightTransform()
    assert transform.inv(first) is None and transform.pending == 6
    assert len(transform.inv(second)) == 8 and transform.pending == 0
    transform.inv(first)
    transform.clear()
    assert transform.pending == 0
    assert len(transform.inv(second[:1])) == 1  # another number of environments, after clear()


def test_keys_can_be_nested_and_truncated_missing():
    def nested(td):
        return TensorDict({"agent": td.exclude("next"), "next": {"agent": td["next"]}}, td.shape)

    batch = one_episode([[(7, 2)], []])
    expected = nested(HindsightTransform().inv(batch).exclude(("next", "truncated")))
    own = ("reward", "done", "terminated", "hindsight", "is_hindsight")
    keys = {"goal": "goal_tokens", "kind": "goal_kind", **{name: name for name in own}}
    transform = HindsightTransform(
        **{f"{key}_key": ("agent", name) for key, name in keys.items()},
        hindsight_goal_key=("agent", "hindsight", "goal_tokens"),
        hindsight_kind_key=("agent", "hindsight", "kind"),
    )
    rows = transform.inv(nested(batch.exclude(("next", "truncated"))))
    assert set(rows.keys(True, True)) == set(expected.keys(True, True))
    assert (rows == expected).all()


def good_batch():
    """Three steps of two environments, whose episodes go on."""
    return toy.to_batch([toy.make_stream([3], ["running"], [[]] * 3, 100 * i) for i in range(2)])


@pytest.mark.parametrize(
    ("key", "writer"),
    [
        ("goal_tokens", "TokenizeText"),
        ("goal_kind", "environment"),
        (("next", "reward"), "environment"),
        (("next", "done"), "environment"),
        (("next", "terminated"), "environment"),
        (("next", "hindsight", "goal_tokens"), "social partner"),
        (("next", "hindsight", "kind"), "social partner"),
    ],
)
def test_missing_entry_is_named_with_its_writer(key, writer):
    batch = good_batch()
    del batch[key]
    with pytest.raises(KeyError, match=writer) as error:
        HindsightTransform().inv(batch)
    assert repr(key) in str(error.value)


def test_without_relabelling_hindsight_is_not_read_and_the_capacity_holds_too():
    """And other environments may follow a batch that was refused."""
    batch = torch.cat([one_episode([[], [], []])] * 2).exclude("hindsight", ("next", "hindsight"))
    transform = HindsightTransform("none", capacity=4)
    with pytest.raises(ValueError, match=r"6 rows .* capacity \(4\)"):
        transform.inv(batch)
    rows = transform.inv(batch[:1])
    assert len(rows) == 3 and not rows["is_hindsight"].any()


def test_strings_are_left_out_with_a_warning():
    batch = good_batch()
    batch["next", "note"] = "text"
    batch["names"] = NonTensorStack.from_list([["a"] * 3, ["b"] * 3])
    transform = HindsightTransform()
    with pytest.warns(UserWarning, match=r"\('next', 'note'\).* hold no tensors") as caught:
        transform.inv(batch)
        transform.inv(batch)
    assert len(caught) == 1 and "names" in str(caught[0].message)


def test_single_steps_are_refused_by_name():
    """A step that ends an episode gives many rows, and ``add`` can store one."""
    steps = one_episode([[], [(7, 2)], []])[0]
    numbered = steps.clone().set("collector", TensorDict({"traj_ids": torch.zeros(3).long()}, [3]))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=HindsightTransform())
    buffer.extend(numbered[:2])
    for step in (steps[2], numbered[2]):
        with pytest.raises(ValueError, match=r"extend\(step.unsqueeze\(0\)\)"):
            buffer.add(step)
    buffer.extend(numbered[2].unsqueeze(0))
    assert len(buffer) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:, 0], r"\[num_envs, num_steps\]"),
        (lambda b: b[:1], "holds 1 environments and earlier calls held 2"),
        (lambda b: b.set("extra", b["action"]), r"\['extra'\] are new and \[\]"),
        (lambda b: b.exclude("action"), r"\[\] are new and \['action'\] are missing"),
        (lambda b: b.set("action", b["action"].float()), "'action' is torch.float32 of"),
        (
            lambda b: b.set("goal_tokens", b["goal_tokens"][..., :1]),
            r"is \[2\] a goal and 'goal_tokens' is \[1\]",
        ),
    ],
)
def test_what_does_not_continue_is_refused_and_changes_nothing(change, message):
    transform = HindsightTransform()
    transform.inv(good_batch())
    before = transform.state_dict()["_extra_state"]
    with pytest.raises((ValueError, KeyError), match=message):
        transform.inv(change(good_batch()))
    after = transform.state_dict()["_extra_state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_a_batch_beyond_the_capacity_changes_nothing():
    """Not the steps that were gathered, nor the draws that follow."""
    named = [[(1, 0)], [(2, 0)], [(3, 0)]]
    assert len(HindsightTransform(capacity=9).inv(one_episode(named))) == 9
    line = toy.make_stream([3, 3], ["timeout"] * 2, named * 2, first_observation=0)
    first, second, third = toy.batches([line], [2, 1, 3])
    transform = HindsightTransform(goals_per_transition=1, capacity=5, seed=3)
    transform.inv(first)
    before = transform.state_dict()["_extra_state"]
    with pytest.raises(ValueError, match=r"12 rows .* capacity \(5\)"):  # context rows aside
        transform.inv(torch.cat([second, third], 1))
    after = transform.state_dict()["_extra_state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    transform.capacity = 6
    unbroken = HindsightTransform(goals_per_transition=1, seed=3)
    unbroken.inv(first)
    for batch in (second, third):
        assert (transform.inv(batch) == unbroken.inv(batch)).all()


@pytest.mark.parametrize(
    "transform", [HindsightTransform(), SegmentMultiStepTransform(3, 0.9), SubgoalFilter(torch.eq)]
)
@pytest.mark.parametrize("wrap", [Compose, lambda t: t], ids=["compose", "alone"])
def test_use_in_an_environment_is_refused(transform, wrap):
    env = TransformedEnv(ToyEnv(), wrap(transform.clone()))
    with pytest.raises(ValueError, match="replay buffers only"):
        env.rollout(2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relabel": "some"}, r"relabel \('some'\)"),
        ({"strategy": "past"}, r"strategy \('past'\) must be"),
        ({"goals_per_transition": 0}, r"goals_per_transition \(0\) must be at least 1"),
        ({"reward_scale": (1.0, 0.0)}, r"reward_scale \(\(1.0, 0.0\)\) must be two finite"),
        ({"reward_scale": (0.0, float("inf"))}, "reward_scale"),
        ({"reward_scale": (0.0,)}, "reward_scale"),
        ({"reward_scale": 1.0}, r"reward_scale \(1.0\) must be two finite"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        HindsightTransform(**settings)


@pytest.mark.parametrize(
    ("own", "key", "goal_dtype", "named_dtype", "value"),
    [
        ("goal_tokens", "goal_tokens", torch.int8, torch.int64, 300),
        ("goal_tokens", "goal_tokens", torch.uint8, torch.int8, -1),
        ("goal_tokens", "goal_tokens", torch.int16, torch.float32, 0.5),
        ("goal_tokens", "goal_tokens", torch.float32, torch.int64, 2**24 + 1),
        ("goal_kind", "kind", torch.int8, torch.int64, 300),
    ],
)
def test_a_goal_that_does_not_fit_is_refused(own, key, goal_dtype, named_dtype, value):
    batch = one_episode([[(1, 0)], []])
    named = batch["next", "hindsight", key].to(named_dtype)
    batch["next", "hindsight", key] = named
    for td in (batch, batch["next"]):
        td[own] = td[own].to(goal_dtype)
    rows = HindsightTransform().inv(batch)
    assert rows["goal_tokens"][rows["is_hindsight"]].tolist() == [[1, 1]]  # these fit
    named[0, 0, 0] = value
    with pytest.raises(ValueError, match=f"holds {value}"):
        HindsightTransform().inv(batch)


def test_every_entry_that_says_which_goal_is_pursued_is_replaced_or_left_out():
    batch = one_episode([[], [(7, 2), None, (8, 1)]])
    named_ids = torch.tensor([[[-1, -1, -1], [70, -1, 80]]])
    batch["next", "hindsight", "goal_id"] = named_ids
    for td in (batch, batch["next"]):
        td["goal_id"] = torch.full((1, 2), 42)
        td["goal"] = torch.full((1, 2, 5), ord("x"), dtype=torch.uint8)
        td["about"] = torch.full((1, 2), 3)
    rows = HindsightTransform(goal_entries=["goal", "goal_id"]).inv(batch)
    expected = [42, 42, 70, 70, 80, 80]
    assert rows["goal_id"].tolist() == rows["next", "goal_id"].tolist() == expected
    assert "goal" not in rows.keys() and "goal" not in rows["next"].keys()
    assert rows["about"].tolist() == [3] * 6
    unchanged = HindsightTransform("none").inv(batch)
    assert "goal" in unchanged.keys() and unchanged["goal_id"].tolist() == [42, 42]


@pytest.mark.parametrize("reward", [-1.0, 1.01, float("nan"), float("inf")])
def test_rewards_of_another_scale_are_refused(reward):
    batch = one_episode([[(1, 0)], []])
    batch["next", "reward"][0, 0] = reward
    with pytest.raises(ValueError, match=r"reward_scale \(\(0.0, 1.0\)\)"):
        HindsightTransform().inv(batch)
    assert len(HindsightTransform("none").inv(batch)) == 2


def test_whole_rewards_need_a_whole_scale():
    batch = one_episode([[], []], outcome="success")
    batch["next", "reward"] = batch["next", "reward"].long()
    assert HindsightTransform().inv(batch)["next", "reward"].dtype == torch.int64
    with pytest.raises(ValueError, match="whole numbers"):
        HindsightTransform(reward_scale=(-0.5, 1.0)).inv(batch)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_two_numbers_of_any_kind_are_a_reward_scale(make):
    rows = HindsightTransform(reward_scale=make([-1.0, 2.0])).inv(one_episode([[], [(7, 2)], []]))
    assert {-1.0, 2.0} <= set(rows["next", "reward"].flatten().tolist())


def test_a_strategy_can_be_a_function():
    """The goals that were named first, by hand: 8, after the first step."""

    def first(named, episodes):
        copies = future(named, episodes)
        return copies.where(named.place == named.place.min())

    batch = one_episode([[(8, 1)], [(7, 2)], []])
    rows = HindsightTransform(strategy=first).inv(batch)
    relabelled = rows[rows["is_hindsight"]]
    assert relabelled["observation"].flatten().tolist() == [10]
    assert relabelled["goal_tokens"][:, 1].tolist() == [8]


@pytest.mark.parametrize("goals", [torch.tensor([1, 2]), torch.tensor([1 + 1j, 1 - 1j])])
def test_goals_may_be_single_numbers_or_complex(goals):
    batch = one_episode([[(1, 0)], [(2, 0)]])
    batch["next", "hindsight", "goal_tokens"] = goals.view(1, 2, 1).expand(1, 2, toy.SLOTS)
    for td in (batch, batch["next"]):
        td["goal_tokens"] = torch.zeros(1, 2, dtype=goals.dtype)
    rows = HindsightTransform().inv(batch)
    assert rows["goal_tokens"][rows["is_hindsight"]].tolist() == goals[[0, 1, 1]].tolist()


@settings(deadline=None, max_examples=40)
@given(
    data=toy.streams(),
    limit=st.integers(1, 4),
    n_steps=st.integers(1, 4),
    strategy=st.sampled_from(["future", "final"]),
)
def test_at_most_k_goals_with_a_transition(data, limit, n_steps, strategy):
    """Rows are those of the strategy, n-step returns included, and the smaller of k and all."""
    lines, splits = data
    hindsight = HindsightTransform(strategy=strategy, goals_per_transition=limit)
    transform = Compose(SegmentMultiStepTransform(n_steps, 0.5), hindsight)
    rows = toy.rows_of(transform, toy.batches(lines, splits))
    possible = toy.reference_rows(lines, "all", n_steps, 0.5, strategy)
    assert Counter(toy.as_multiset(rows)) <= Counter(toy.as_multiset(possible))
    for hindsight, most in ((True, limit), (False, 1)):
        stored = Counter(row.observation for row in rows if row.hindsight == hindsight)
        expected = Counter(row.observation for row in possible if row.hindsight == hindsight)
        assert stored == Counter({key: min(most, n) for key, n in expected.items()})


def test_draws_are_uniform_and_without_replacement():
    groups = torch.tensor([3, 1, 3, 3, 3])  # two of the four members of group 3
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([draw_from_each(groups, 2, generator) for _ in range(2000)])
    assert draws[:, 1].all() and (draws.sum(1) == 3).all()
    share = draws.float().mean(0)[groups == 3]
    assert ((share - 0.5).abs() < 5 * (0.25 / 2000) ** 0.5).all()


def test_a_restored_transform_draws_as_the_unbroken_one():
    named = [[(t % 9 + 1, 0), (t % 5 + 10, 1)] for t in range(24)]
    line = toy.make_stream([6] * 4, ["timeout"] * 4, named, first_observation=0)
    unbroken = HindsightTransform(goals_per_transition=2, seed=4)
    first, *rest = toy.batches([line], [10, 8, 6])
    unbroken.inv(first)
    restored = HindsightTransform(goals_per_transition=2, seed=5)
    restored.load_state_dict(unbroken.state_dict())
    clone = unbroken.clone()
    for batch in rest:
        expected = unbroken.inv(batch)
        assert (restored.inv(batch) == expected).all()
        assert (clone.inv(batch) == expected).all()
