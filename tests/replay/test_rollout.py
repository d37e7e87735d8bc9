"""Rollouts as rows of finished runs, of one policy, with and without hindsight."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.transforms import Compose

from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.replay import HindsightTransform, SubgoalFilter, close_rollout

GOALS = GoalSpace("train")


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


def test_rows_are_all_steps_of_this_rollout_and_copies_under_goals_that_serve_the_pursued_one():
    env = PlaygroundTextEnv(num_envs=6, max_steps=8, seed=0, text=False)
    rollout = env.rollout(40, break_when_any_done=False)  # several episodes, and a cut one
    for step in (rollout, rollout["next"]):  # goals stand for their tokens
        step["goal_tokens"] = step["goal_id"].unsqueeze(-1)
        step["hindsight", "goal_tokens"] = step["hindsight", "goal_id"].unsqueeze(-1)
    named, serving = rollout["next", "hindsight", "goal_id"], []
    for row, step, slot in (named >= 0).nonzero().tolist():
        if GOALS.is_subgoal(named[row, step, slot], rollout["goal_id"][row, step]):
            serving.append(int(named[row, step, slot]))
    assert 0 < len(serving) < (named >= 0).sum()
    to_rows = Compose(HindsightTransform(), SubgoalFilter(GOALS.is_subgoal))
    rows = to_rows.inv(close_rollout(rollout))
    assert to_rows[0].pending == 0, "none is kept for the next rollout"
    is_hindsight, ends = rows["is_hindsight"], rows["next", "terminated"].flatten()
    assert torch.equal(rows["action"][~is_hindsight], rollout["action"].flatten())
    assert sorted(rows["goal_id"][is_hindsight & ends].tolist()) == sorted(serving)
