"""Soft values by what a buffer holds, against those computed by dynamic programming.

A ring of states 0..4; goals are states. The actions are one step forward and, where there are two,
one step back. Entering the goal gives reward 1 and ends the episode, and so does a time limit. The
partner names every state entered. Soft values of goal g, with temperature A and discount G:

    Q(s, a, g) = 1 if the step enters g, else G V(s', g)
    V(s, g) = A log sum_a exp(Q(s, a, g) / A)
"""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform

STATES, GAMMA, TEMPERATURE, LIMIT = 5, 0.9, 0.2, 7
NUM_ENVS, STEPS = 64, 600


def soft_value(q):
    return TEMPERATURE * torch.logsumexp(q / TEMPERATURE, -2)


def dynamic_programming(num_actions):
    """Soft Q-values [states, actions, goals] by iterating the equations above."""
    q = torch.zeros(STATES, num_actions, STATES, dtype=torch.float64)
    goal = torch.arange(STATES)
    following = (goal.unsqueeze(1) + torch.tensor([1, -1])[:num_actions]) % STATES
    for _ in range(500):
        onward = GAMMA * soft_value(q)[following]
        q = torch.where(following.unsqueeze(-1) == goal, 1.0, onward)
    return q


def fill(buffer, num_actions, generator):
    """Plays episodes at random and stores them, two steps a call."""
    state, goal = (torch.randint(STATES, (NUM_ENVS,), generator=generator) for _ in range(2))
    age, steps = torch.zeros(NUM_ENVS, dtype=torch.int64), []
    for _ in range(STEPS):
        action = torch.randint(num_actions, (NUM_ENVS,), generator=generator)
        following = (state + 1 - 2 * action) % STATES
        age = age + 1
        reached, late = following == goal, age == LIMIT
        done = reached | late
        pursued = {"goal_tokens": goal.unsqueeze(1), "goal_kind": torch.zeros_like(goal)}
        named = {"goal_tokens": following.view(-1, 1, 1), "kind": torch.zeros(NUM_ENVS, 1).long()}
        ends = {"done": done, "terminated": reached, "truncated": late & ~reached}
        rewarded = {key: x.unsqueeze(1) for key, x in {"reward": reached.float(), **ends}.items()}
        after = {"state": following, **pursued, "hindsight": named, **rewarded}
        steps.append(
            TensorDict({"state": state, "action": action, **pursued, "next": after}, [NUM_ENVS])
        )
        fresh = torch.randint(STATES, (2, NUM_ENVS), generator=generator)
        state, goal = torch.where(done, fresh[0], following), torch.where(done, fresh[1], goal)
        age = torch.where(done, 0, age)
    for batch in torch.stack(steps, 1).split(2, 1):
        buffer.extend(batch)


def learn(rows, num_actions):
    """Q [states, actions, goals] by backups of all rows at once, and which of it they tell."""
    q = torch.zeros(STATES, num_actions, STATES)
    goal, following = rows["goal_tokens"][:, 0], rows["next"]
    cell = (rows["state"] * num_actions + rows["action"]) * STATES + goal
    count = torch.bincount(cell, minlength=q.numel())
    onward = rows["gamma"].squeeze(1) * ~following["terminated"].squeeze(1)
    for _ in range(200):
        target = following["reward"].squeeze(1) + onward * soft_value(q)[following["state"], goal]
        q = (torch.bincount(cell, target, minlength=q.numel()) / count.clamp_min(1)).view_as(q)
    return q, (count > 0).view_as(q)


@pytest.mark.parametrize(
    ("num_actions", "n_steps"),
    [
        (2, 1),  # one step at a time: right for any behaviour, relabelled or not
        (1, 3),  # several steps: on-policy for every goal where there is one action
    ],
)
def test_learns_the_soft_values(num_actions, n_steps):
    expected = dynamic_programming(num_actions).float()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20_000),  # less than is stored: the oldest rows are overwritten
        transform=Compose(SegmentMultiStepTransform(n_steps, GAMMA), HindsightTransform()),
        batch_size=1,
    )
    fill(buffer, num_actions, torch.Generator().manual_seed(0))
    rows = buffer[:]
    assert len(rows) == 20_000 and len(rows["is_hindsight"].unique()) == 2
    q, seen = learn(rows, num_actions)
    assert seen.float().mean() > 0.7
    torch.testing.assert_close(q[seen], expected[seen], atol=1e-4, rtol=0)
