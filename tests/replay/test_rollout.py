"""Rollouts as rows of finished runs, of one policy, with and without hindsight."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.transforms import Compose

from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.replay import HindsightTransform, SubgoalFilter, close_rollout

GOALS = GoalSpace("train")


def make_rollout(steps=13, num_envs=6, seed=0):
    """Random play; goals stand for their tokens. Several episodes an environment, and a cut one."""
    env = PlaygroundTextEnv(num_envs=num_envs, max_steps=8, seed=seed, text=False)
    rollout = env.rollout(steps, break_when_any_done=False)
    for step in (rollout, rollout["next"]):
        step["goal_tokens"] = step["goal_id"].unsqueeze(-1)
        step["hindsight", "goal_tokens"] = step["hindsight", "goal_id"].unsqueeze(-1)
    return rollout


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3), (0, 3), (2, 0)])
def test_a_rollout_without_truncated_is_closed_by_done_alone(shape):
    no = torch.zeros(*shape, 1, dtype=torch.bool)
    ends = {"done": no, "terminated": no}
    closed = close_rollout(TensorDict({"next": ends}, batch_size=shape))["next"]
    assert closed["done"].view(-1, 3).tolist() == [[False, False, True]] * (no.numel() // 3)
    assert set(closed.keys()) == {"done", "terminated"} and not closed["terminated"].any()


def test_what_cannot_be_closed_is_named():
    ends = dict.fromkeys(("done", "terminated"), torch.zeros(2, 3, 1, dtype=torch.bool))
    for key in ends:
        left = {other: end for other, end in ends.items() if other != key}
        with pytest.raises(KeyError, match=f"{key}.*environment should write it"):
            close_rollout(TensorDict({"next": left}, batch_size=[2, 3]))
    with pytest.raises(ValueError, match="dimension of time"):
        close_rollout(TensorDict({"next": {}}, batch_size=[]))
    steps = TensorDict({"next": {"hindsight": {"kind": torch.zeros(2, 1)}}}, batch_size=[2])
    with pytest.raises(KeyError, match="goal_id"):
        SubgoalFilter(GOALS.is_subgoal).inv(steps)


def test_each_trajectory_of_a_row_is_closed_and_the_rollout_given_is_not():
    """As with ``cat_results=-1``, where workers' steps stand one after another in a row."""
    no = torch.zeros(1, 5, 1, dtype=torch.bool)
    terminated = torch.tensor([0, 1, 0, 0, 0]).bool().view(1, 5, 1)
    ends = {"done": terminated, "terminated": terminated, "truncated": no}
    ids = torch.tensor([[0, 0, 2, 7, 7]])
    rollout = TensorDict({"next": ends, "collector": {"traj_ids": ids}}, batch_size=[1, 5])
    before = rollout.clone()
    closed = close_rollout(rollout)["next"]
    assert closed["done"].flatten().tolist() == [False, True, True, False, True]
    assert closed["truncated"].flatten().tolist() == [False, False, True, False, True]
    assert torch.equal(closed["terminated"], terminated) and (rollout == before).all()


def test_rows_are_all_steps_of_this_rollout_and_none_is_kept_for_the_next():
    to_rows = HindsightTransform("none")
    for seed in (0, 1):
        rollout = make_rollout(seed=seed)
        rows = to_rows.inv(close_rollout(rollout))
        assert to_rows.pending == 0
        assert torch.equal(rows["action"], rollout["action"].flatten())
        assert not rows["is_hindsight"].any()


@pytest.mark.parametrize("aligned", [False, True])
def test_relabelled_rows_follow_from_the_goals_named(aligned):
    rollout = make_rollout(steps=40)
    to_rows = Compose(HindsightTransform())
    if aligned:
        to_rows.append(SubgoalFilter(GOALS.is_subgoal))
    rows = to_rows.inv(close_rollout(rollout))
    expected = []  # (goal, action, whether it ends there), by reading the rollout step by step
    for env in range(rollout.shape[0]):
        first = 0
        for last, step in enumerate(rollout[env].unbind(0)):
            for goal in step["next", "hindsight", "goal_id"].tolist():
                pursued = step["goal_id"]
                if goal < 0 or (aligned and not GOALS.is_subgoal(torch.tensor(goal), pursued)):
                    continue
                actions = rollout[env]["action"][first : last + 1].tolist()
                ends = [False] * (last - first) + [True]
                expected += [(goal, a, end) for a, end in zip(actions, ends, strict=True)]
            if step["next", "done"]:
                first = last + 1
    found = rows[rows["is_hindsight"]]
    flags = found["next", "terminated"].flatten()
    columns = (found["goal_tokens"].flatten(), found["action"], flags)
    assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == sorted(expected)
    assert expected, "random play must reach something for this test to say anything"
    assert torch.equal(found["next", "reward"].flatten(), flags.float())
