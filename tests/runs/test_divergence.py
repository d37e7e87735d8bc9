"""Numbers that end a run: found before they are stored, and told with their cause."""

from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from torchrl_glam.runs.config import PPOGLAMConfig, SACGLAMConfig
from torchrl_glam.runs.divergence import check_rewards, diverged


def steps(*rewards):
    reward = torch.tensor(rewards).view(2, -1, 1)
    return TensorDict({"next": {"reward": reward}}, reward.shape[:2])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rewards_that_are_not_finite_are_refused(value):
    check_rewards(steps(0.0, 1.0, -1e30, 0.5), {"steps": 8})
    where = rf"after step 8 are not finite: 2 of 6, the first is {value}, at \[0, 2\] of the batch"
    with pytest.raises(FloatingPointError, match=where):
        check_rewards(steps(0.0, 1.0, value, 0.5, value, 0.5), {"steps": 8})


@pytest.mark.parametrize("config", [SACGLAMConfig(), PPOGLAMConfig()])
def test_a_run_that_diverges_names_rates_and_checkpoint(config):
    error = FloatingPointError("loss_actor is nan; nothing was updated.")
    counters = {"steps": 16, "updates": 2}
    message = str(diverged(error, counters, config, Path("runs/step-000000000008")))
    assert message.startswith("update 2 at step 16: loss_actor is nan; nothing was updated. The")
    assert "its last good checkpoint is runs/step-000000000008 (" in message
    rates = [key for key in vars(config) if key.startswith("lr_") and key != "lr_end"]
    assert len(rates) >= 2 and all(f"{key}={getattr(config, key)}" in message for key in rates)
    assert "it has saved no checkpoint." in str(diverged(error, counters, config, None))
