"""The configuration of each game names what makes it, and arguments that there are."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from torchrl_glam.envs import TextEnvWrapper
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.environments import import_env

FOLDER = Path(__file__).parents[3] / "recipes" / "config" / "env"
GAMES = [file for file in sorted(FOLDER.glob("*.yaml")) if "envs.games" in file.read_text()]


@pytest.mark.parametrize("file", GAMES, ids=lambda file: file.stem)
def test_keys_are_arguments(file):
    config = OmegaConf.to_container(OmegaConf.load(file))
    assert config.keys() <= {field.name for field in fields(RecipeConfig)}
    try:
        make = import_env(config["env_class"])
    except ImportError as error:
        pytest.skip(str(error))
    taken = {
        *inspect.signature(make).parameters,
        *inspect.signature(TextEnvWrapper.__init__).parameters,
    }
    for given in (config["env"], *config["eval_splits"].values()):
        assert given.keys() <= taken - {"num_envs", "seed", "device"}


def test_every_game_has_one():
    names = ["babyai", "scienceworld", "textworld", "textworld_express"]
    assert [file.stem for file in GAMES] == names
