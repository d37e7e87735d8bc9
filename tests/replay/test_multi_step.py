"""n-step maths against hand-written arrays, and what TorchRL's value estimator makes of it."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.value import TD0Estimator

from torchrl_glam.replay import SegmentMultiStepTransform


def two_episodes():
    """A failed terminal episode of 3 steps, then 3 steps that run out of time."""
    done = torch.tensor([0, 0, 1, 0, 0, 1], dtype=torch.bool).unsqueeze(-1)
    terminated = done & (torch.arange(6) < 3).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.arange(6) * 10,
            "next": {
                "observation": torch.arange(6) * 10 + 1,
                "reward": torch.tensor([0.0, 0, 1, 0, 0, 0]).unsqueeze(-1),
                "done": done,
                "terminated": terminated,
                "truncated": done & ~terminated,
            },
        },
        [6],
    )


def test_torchrl_targets_bootstrap_at_time_outs_but_not_at_terminal_states():
    """Targets with next values of 100: gamma^steps * 100 unless the window reached the end."""
    rows = SegmentMultiStepTransform(3, 0.9).inv(two_episodes())
    rows["next", "state_value"] = torch.full((6, 1), 100.0)
    estimator = TD0Estimator(gamma=0.9, value_network=None)
    target = estimator.value_estimate(rows, next_value=rows["next", "state_value"])
    expected = torch.tensor([0.81, 0.9, 1.0, 72.9, 81.0, 90.0]).unsqueeze(-1)
    torch.testing.assert_close(target, expected)


def test_keys_can_be_nested_n_steps_changed_and_rewards_whole():
    data = two_episodes()
    data["next", "reward"] = data["next", "reward"].long()
    data["next"].rename_key_("reward", ("agent", "reward"))
    data["next"].rename_key_("done", ("agent", "done"))
    names = ("reward", "done", "steps_to_next_obs", "gamma")
    keys = {f"{name}_key": ("agent", name) for name in names}
    transform = SegmentMultiStepTransform(1, 0.5, **keys)
    transform.n_steps = 2
    rows = transform.inv(data)
    assert rows["next", "agent", "reward"].flatten().tolist() == [0, 0.5, 1, 0, 0, 0]
    assert rows["next", "agent", "done"].flatten().tolist() == [False, True, True] * 2
    assert rows["agent", "steps_to_next_obs"].tolist() == [[2], [2], [1]] * 2
    assert rows["agent", "gamma"].tolist() == [[0.25], [0.25], [0.5]] * 2


def test_settings_and_layout_are_checked():
    for n_steps in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"n_steps \\({n_steps}\\)"):
            SegmentMultiStepTransform(n_steps, 0.9)
    for gamma in (-0.1, 1.1):
        with pytest.raises(ValueError, match=f"gamma \\({gamma}\\)"):
            SegmentMultiStepTransform(3, gamma)
    transform = SegmentMultiStepTransform(3, 0.9)
    with pytest.raises(ValueError, match=r"\[2, 3\].*one dimension"):
        transform.inv(two_episodes().reshape(2, 3))
    with pytest.raises(ValueError, match="every segment must be complete"):
        transform.inv(two_episodes()[:-1])
    for key in ("reward", "done"):
        with pytest.raises(KeyError, match=f'"{key}" not found'):
            transform.inv(two_episodes().exclude(("next", key)))
    assert transform.inv(two_episodes()[:0]) is None
    assert SegmentMultiStepTransform(2, 1).inv(two_episodes())["gamma"].dtype == torch.float32
