"""What relabelled rows hold: goals of any type, the scale of rewards, and no stale entries."""

import pytest
import torch

from torchrl_glam.replay import HindsightTransform

from .test_hindsight import one_episode


@pytest.mark.parametrize(
    ("goal_dtype", "named_dtype", "value"),
    [
        (torch.int8, torch.int64, 300),
        (torch.uint8, torch.int8, -1),
        (torch.int16, torch.float32, 0.5),
        (torch.float32, torch.int64, 2**24 + 1),
    ],
)
@pytest.mark.parametrize("key", ["goal_tokens", "kind"])
def test_a_goal_that_does_not_fit_is_refused(goal_dtype, named_dtype, value, key):
    batch = one_episode([[(1, 0)], []])
    own = "goal_kind" if key == "kind" else key
    named = batch["next", "hindsight", key].to(named_dtype)
    batch["next", "hindsight", key] = named
    for td in (batch, batch["next"]):
        td[own] = td[own].to(goal_dtype)
    rows = HindsightTransform().inv(batch)
    assert rows["goal_tokens"][rows["is_hindsight"]].tolist() == [[1, 1]]  # these fit
    if key == "kind" and value < 1:
        return  # an empty slot, or no kind
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
