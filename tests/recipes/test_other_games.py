"""Both recipes on a game that is not Playground-Text: ``env=module:Name`` and nothing else changes.

The game lies in ``tests/corridor.py``, where the recipes' process finds it.
"""

import pytest
from forked_recipe import Recipe
from omegaconf import OmegaConf
from run_metrics import metrics

pytestmark = pytest.mark.slow

COMMON = [
    *("num_envs=8", "batch_size=16", "log_every=32", "eval_every=0", "eval_episodes=4"),
    *("critic_hidden_sizes=[16]", "loggers=[]", "checkpoint_every=0", "device=cpu"),
]
SMALL = {
    "sac_glam": [*COMMON, "total_steps=64", "num_updates=1", "warmup_updates=1", "capacity=600"],
    "ppo_glam": [*COMMON, "total_steps=64", "update_every=32", "num_epochs=1"],
}
WITH_HINDSIGHT = {
    "sac_glam": ["sampling=ratio+prior", "hindsight_ratio=0.25"],
    "ppo_glam": ["hindsight=all"],
}
WITHOUT = {"sac_glam": ["hindsight=false"], "ppo_glam": []}


@pytest.fixture(scope="module", params=SMALL)
def recipe(request):
    with Recipe(f"{request.param}.py") as recipe:
        recipe.name = request.param
        yield recipe


def run(recipe, tmp_path, *overrides):
    folder = tmp_path / "run"
    recipe.succeed(*SMALL[recipe.name], f"output={folder}", *overrides, log=tmp_path / "log")
    rows = metrics(folder)
    assert int(rows[-1]["updates"]) > 0
    assert {name for name in rows[-1] if name.startswith("eval/")} >= {
        f"eval/train/{mode}/{what}"
        for mode in ("sampled", "greedy")
        for what in ("success", "length")
    }
    assert not any(name.startswith(("eval/test/", "probe/")) for name in rows[-1])
    return folder, rows


def test_without_goals_named_and_one_instance_at_a_time(recipe, tmp_path):
    """Rewards on the way: only what the environment calls success counts as such."""
    options = ["env=corridor:alone", "env.step_reward=0.01", *WITHOUT[recipe.name]]
    folder, rows = run(recipe, tmp_path, *options)
    assert float(rows[-1]["hindsight_in_batch"]) == 0
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.env_class, dict(config.env)) == ("corridor:alone", {"step_reward": 0.01})


def test_with_goals_named(recipe, tmp_path):
    options = ["env=corridor:Corridor", "env.names_goals=true", *WITH_HINDSIGHT[recipe.name]]
    _, rows = run(recipe, tmp_path, *options)
    shares = [float(row["hindsight_in_batch"]) for row in rows if row["hindsight_in_batch"]]
    assert max(shares) > 0
    if recipe.name == "sac_glam":
        assert shares[-1] == 0.25
        assert 2 <= float(rows[-1]["goals/named"]) <= 4  # doors and chairs
