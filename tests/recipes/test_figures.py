"""A figure by one command: a sweep over arms and seeds, broken off, resumed and drawn."""

import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from run_metrics import metrics

from torchrl_glam.runs.config import PPOGLAMConfig, SACGLAMConfig, read_config, register
from torchrl_glam.runs.config.groups import options_of, spell_out

few = "ignore:The replay buffer holds no transitions"  # so early
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(few)]

RECIPES = Path(__file__).parents[2] / "recipes"
KINDS = {"sac_glam": SACGLAMConfig, "ppo_glam": PPOGLAMConfig}


@pytest.mark.parametrize("scale", [[], ["+scale=smoke"], ["+scale=paper"]], ids=str)
@pytest.mark.parametrize("recipe", KINDS)
def test_every_arm_of_every_figure_is_a_good_configuration(recipe, scale):
    repo, figures = ConfigStore.instance().repo, 0
    repo.pop("figure", None)
    register(recipe, KINDS[recipe], RECIPES / "config")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(RECIPES / "config" / recipe), version_base=None):
        for name in options_of("figure"):
            spell_out([f"+figure={name}"])
            arms = [file.removesuffix(".yaml") for file in repo[f"arm_{name}"]]
            for arm in arms[:2] if "smoke" in str(scale) else arms:
                arguments = [f"+arm_{name}={arm}", "seed=1", f"+figure={name}", *scale]
                config = read_config(KINDS[recipe], compose("sequential", spell_out(arguments)[2:]))
                assert config.output == f"multirun/figure_{name}/{arm}/1"
                assert config.resume is None and config.seed == 1
            figures += 1
    assert figures == {"sac_glam": 9, "ppo_glam": 2}[recipe]


@pytest.fixture
def said(here):
    def run(*arguments):
        status, out, err = here(*arguments)
        return status, out + err

    return run


SMALL = ("+scale=smoke", "total_steps=128", "device=cpu", "autocast=false", "eval_episodes=4")
SMALL += ("log_every=64", "checkpoint_every=64", "eval_every=0")
SMALL += ("env.num_objects=3", "env.sequential=false", "env.max_steps=8")


def test_a_sweep_is_broken_off_resumed_and_drawn(said, tmp_path):
    """Two arms of figure 9 with two seeds, and one of them by itself."""
    sweep = ("--multirun", "+figure=9", "+arm_9=n1_50k,n3_50k", "seed=0,1", *SMALL)
    status, words = said("sac_glam", *sweep)
    assert status == 0, words
    figure = tmp_path / "multirun" / "figure_9"
    runs = sorted(figure.glob("*/*/metrics.csv"))
    names = ["/".join(path.parts[-3:-1]) for path in runs]
    assert names == ["n1_50k/0", "n1_50k/1", "n3_50k/0", "n3_50k/1"]
    whole = [metrics(path.parent) for path in runs]
    # A run of a sweep is that of a process of its own.
    alone = ("--config-name", "sequential", "n_step=3", "capacity=50000", "seed=1", *SMALL)
    status, words = said("sac_glam", *alone, "output=alone")
    assert status == 0, words
    assert metrics(tmp_path / "alone") == whole[3] and int(whole[3][-1]["updates"]) > 0

    # One is lost, and one was killed before its end.
    shutil.rmtree(runs[0].parent)
    killed = runs[3].parent
    shutil.rmtree(killed / "model")
    shutil.rmtree(max((killed / "checkpoints").glob("step-*")))
    before = [path.stat().st_mtime for path in runs[1:3]]
    status, words = said("sac_glam", *sweep)
    assert status == 0 and words.count(" is done") == 2, words
    assert [metrics(path.parent) for path in runs] == whole
    assert [path.stat().st_mtime for path in runs[1:3]] == before

    status, words = said("sac_glam", *sweep, "gamma=0.5")  # each at once, and the first
    assert status == 1 and words.count("gamma was 0.8, is 0.5") == 4 + 1
    status, words = said("sac_glam", "--multirun", "+figure=99")
    assert status == 1 and "Available options in 'figure'" in words and "warmup" in words

    status, words = said("compare", "--out", "drawn", figure)
    assert status == 0, words
    assert "| n3_50k | 2 | " in (tmp_path / "drawn" / "comparison.md").read_text()


def test_a_run_that_diverges_ends_alone(said, tmp_path):
    arms = ("seed=0", "+arm_share=share25,share50", "lr_heads=1e30")
    for told in ("failed: ", " diverged: "):  # and is passed over the next time
        status, words = said("sac_glam", "--multirun", "+figure=share", *SMALL, *arms)
        assert words.count(told) == 2, words
    assert status == 0
    for arm in ("share25", "share50"):
        words = (tmp_path / "multirun" / "figure_share" / arm / "0" / "diverged.txt").read_text()
        assert "at step" in words and "lr_heads=1e+30" in words
    status, words = said("compare", "--out", "drawn", tmp_path / "multirun" / "figure_share")
    assert status == 0 and "share25 (1 diverged)" in words, words
