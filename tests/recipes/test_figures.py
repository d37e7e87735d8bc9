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
    assert figures == {"sac_glam": 12, "ppo_glam": 4}[recipe]


SMALL = ("+scale=smoke", "total_steps=128", "device=cpu", "autocast=false", "eval_episodes=4")
SMALL += ("log_every=64", "checkpoint_every=64", "eval_every=0")
SMALL += ("env.num_objects=3", "env.sequential=false", "env.max_steps=8")


def test_a_sweep_is_broken_off_resumed_and_drawn(here, succeeds, tmp_path):
    """Two arms of figure 9 with two seeds, and one of them by itself."""
    sweep = ("--multirun", "+figure=9", "+arm_9=n1_100k,n3_50k", "seed=0,1", *SMALL)
    succeeds("sac_glam", *sweep)
    figure = tmp_path / "multirun" / "figure_9"
    runs = sorted(figure.glob("*/*/metrics.csv"))
    names = ["/".join(path.parts[-3:-1]) for path in runs]
    assert names == ["n1_100k/0", "n1_100k/1", "n3_50k/0", "n3_50k/1"]
    whole = [metrics(path.parent) for path in runs]
    # A run of a sweep is that of a process of its own.
    alone = ("--config-name", "sequential", "n_step=3", "capacity=50000", "seed=1")
    alone += ("lr_trunk=1.2e-3", *SMALL)
    succeeds("sac_glam", *alone, "output=alone")
    assert metrics(tmp_path / "alone") == whole[3] and int(whole[3][-1]["updates"]) > 0

    # One is lost, and one was killed before its end.
    shutil.rmtree(runs[0].parent)
    killed = runs[3].parent
    shutil.rmtree(killed / "model")
    shutil.rmtree(max((killed / "checkpoints").glob("step-*")))
    before = [path.stat().st_mtime for path in runs[1:3]]
    assert succeeds("sac_glam", *sweep).count(" is done") == 2
    assert [metrics(path.parent) for path in runs] == whole
    assert [path.stat().st_mtime for path in runs[1:3]] == before

    status, *words = here("sac_glam", *sweep, "gamma=0.5")  # each at once, and the first
    assert status == 1 and "".join(words).count("gamma was 0.8, is 0.5") == 4 + 1
    status, _, wrong = here("sac_glam", "--multirun", "+figure=99")
    assert status == 1 and "Available options in 'figure'" in wrong and "warmup" in wrong
    status, _, wrong = here("sac_glam", "--multirun", "+figure=10")
    assert status == 1 and "its runs are those of ppo_glam.py" in wrong

    succeeds("compare", "--out", "drawn", figure)
    assert "| n3_50k | 2 | " in (tmp_path / "drawn" / "comparison.md").read_text()


def test_a_run_that_diverges_ends_alone(here, succeeds, tmp_path):
    arms = ("seed=0", "+arm_share=share25,share50", "lr_heads=1e30")
    for told in ("failed: ", " diverged: "):  # and is passed over the next time
        status, *words = here("sac_glam", "--multirun", "+figure=share", *SMALL, *arms)
        assert "".join(words).count(told) == 2, words
    assert status == 0
    for arm in ("share25", "share50"):
        words = (tmp_path / "multirun" / "figure_share" / arm / "0" / "diverged.txt").read_text()
        assert "at step" in words and "lr_heads=1e+30" in words
    figure = tmp_path / "multirun" / "figure_share"
    assert "share25 (1 diverged)" in succeeds("compare", "--out", "drawn", figure)


def test_runs_of_a_plain_sweep_have_folders_of_their_own(succeeds, tmp_path):
    succeeds("sac_glam", "--multirun", "seed=0,1", *SMALL)
    assert len([*tmp_path.glob("runs/sac_glam/*/report.html")]) == 2


def test_shares_of_the_kinds_of_goals(succeeds, refused, tmp_path):
    """The mean of two runs, of which one pursued no goal of a kind before its first row."""
    kinds = ("kinds/pursued/", "kinds/named/", "kinds/buffer/", "kinds/batch/")
    head = [kind + name for kind in kinds for name in ("grasp", "grow/any")]
    head += ["hindsight_in_buffer", "hindsight_in_batch", "step"]
    for run, cells in (
        ("a", "1,,1,0,0.75,0.25,0.5,0.5,0.5,0.5"),
        ("b", "1,0,0,1,0.25,0.75,0,1,1,0.5"),
    ):
        (tmp_path / run).mkdir()
        text = ",".join(head) + f"\n{cells},32\n{',' * 10}48\n{cells},64\n"
        (tmp_path / run / "metrics.csv").write_text(text)
        (tmp_path / run / "config.yaml").write_text("{env: {num_objects: 3}}")
    succeeds("shares", "--out", "drawn", "both", "a", "b")
    rows = (tmp_path / "drawn" / "shares.csv").read_text().splitlines()
    assert len(rows) == 1 + (8 + 2) * 2 and "both,pursued,grow/any,32,0.0000,0.0000,0.0000" in rows
    assert "both,buffer,grasp,64,0.5000,0.2500,0.7500" in rows
    assert "both,buffer,relabelled,64,0.7500,0.5000,1.0000" in rows
    assert (tmp_path / "drawn" / "shares.png").stat().st_size > 10_000
    # steps that one of them alone measured are left out, and labels may be long and hold dollars
    text = ",".join(head) + f"\n{cells},16\n{cells},64\n"
    (tmp_path / "b" / "metrics.csv").write_text(text)
    succeeds("shares", "--out", "some", "of $1_2_3 and $2", "b", "a")
    rows = (tmp_path / "some" / "shares.csv").read_text().splitlines()
    assert len(rows) == 1 + 8 + 2 and all(row.split(",")[3] == "64" for row in rows[1:])
    (tmp_path / "b" / "config.yaml").write_text("{env: {num_objects: 6}}")
    assert "runs of different environments" in refused("shares", "--out", "other", "x", "a", "b")
    (tmp_path / "b" / "config.yaml").write_text("{env: {num_objects: 3}}")
    (tmp_path / "b" / "metrics.csv").write_text("step,hindsight_in_buffer\n0,0.5\n")
    for arguments, error in (
        (("both", "a", "b"), "run ('b') measured no kinds of goals in a replay buffer"),
        (("multirun/figure_7",), "'multirun/figure_7' holds no run of an arm"),
        (("a", "b"), "'a' is a run where a label should stand"),
        (("both", "a", "a"), "a run is given twice"),
    ):
        assert error in refused("shares", "--out", "other", *arguments)
