"""Learning from what a run stored: what it leaves, and what it refuses."""

import re

import pytest
import yaml
from forked_recipe import Recipe
from run_metrics import metrics

pytestmark = pytest.mark.slow

SMALL = (
    "num_envs=8 batch_size=32 num_updates=1 update_every=80 warmup_updates=1 log_every=80 "
    "eval_every=0 eval_episodes=8 critic_hidden_sizes=[16] loggers=[] capacity=1000 device=cpu "
    "checkpoint_every=0 total_steps=160"
).split()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    with Recipe("sac_glam.py") as recipe:
        recipe.succeed(*SMALL, f"output={folder / 'run'}", log=folder / "log")
    return folder / "run"


def test_what_a_run_stored_can_be_learned_from_again(succeeds, refused, stored, tmp_path):
    keys = ("gamma=0.7", "tau=0.5", "sampling=prior", "warmup_updates=1")
    said = succeeds("offline_sac", stored, *keys, "--updates=3", "--every=2", "--out=off")
    held = metrics(stored)[-1]["buffer_size"]
    assert f"{float(held):,.0f} transitions, stored by step 160" in said
    learned = metrics(tmp_path / "off")
    assert [int(row["step"]) for row in learned] == [0, 2, 3]
    assert float(learned[1]["td_error"]) > 0 and "probe/plan/critic" in learned[1]
    assert "output ('off') holds metrics.csv" in refused("offline_sac", stored, "--out=off")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("n_step=1", "n_step (1) must stay what it was (3)"),
        ("gamma=0.9", "gamma (0.9) must stay what it was (0.7)"),  # in returns of three steps
        ("gama=0.9", "gama"),
    ],
)
def test_what_decided_what_was_stored_stays(refused, stored, tmp_path, key, message):
    assert message in refused("offline_sac", stored, key)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"env_class": "os:system", "env": {"command": "touch called"}},
            r"env_class \(os:system\)",
        ),
        ({"language_model": "${oc.env:HOME}"}, "has an interpolation"),
    ],
)
def test_a_run_from_elsewhere_makes_nothing_of_its_choice(refused, tmp_path, settings, message):
    """Its configuration would have any function called, with any arguments."""
    (tmp_path / "run").mkdir()
    settings |= {"eval_splits": {"train": {}}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings))
    assert re.search(message, refused("offline_sac", "run"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
