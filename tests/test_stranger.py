"""The page "Your own environment" shows parts of tests/stranger.py, and what it trains learns."""

import re
from pathlib import Path

import pytest
import stranger
import torch

from torchrl_glam.envs import check_text_env

FILE = Path(stranger.__file__)


def test_the_page_shows_parts_of_the_file_and_the_environment_keeps_the_contract():
    page = FILE.parents[1] / "recipes" / "docs" / "environment.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert blocks and all(block in FILE.read_text(encoding="utf-8") for block in blocks)
    check_text_env(stranger.make_env())


# Random play reaches a third, 53 of 160 episodes with a standard error of 6.
@pytest.mark.slow
@pytest.mark.filterwarnings("error")  # what a README shows causes none
@pytest.mark.parametrize(
    "train",
    [stranger.train_sac, stranger.train_ppo, lambda: stranger.train_ppo(own_loss=True)],
    ids=["SAC-GLAM", "PPO-GLAM", "TorchRL's ClipPPOLoss"],
)
def test_an_agent_learns_above_random_play(train):
    torch.manual_seed(0)
    assert sum(train()[-160:]) > 120
