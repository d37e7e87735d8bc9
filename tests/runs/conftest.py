"""What tests of runs share."""

from types import SimpleNamespace

import pytest
import torch

from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.runs.goals import PursuedGoals
from torchrl_glam.runs.setting import Setting


@pytest.fixture(scope="module")
def language():
    """The embedded model, its tokenizer and its trunk."""
    model, tokenizer = load_language_model("tiny")
    trunk = make_trunk(model, tokenizer).eval()
    return SimpleNamespace(model=model, tokenizer=tokenizer, trunk=trunk)


@pytest.fixture
def training_env(language):
    """Makes the environment of training, and what chooses its goals."""

    def make(config):
        setting = Setting(config)
        setting.settle(torch.device("cpu"), config.seed)
        goals = PursuedGoals(config, language.tokenizer, language.trunk)
        return setting.make_envs(language.tokenizer, goals), goals

    return make
