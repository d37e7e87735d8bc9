"""The PPO recipe as a user runs it: whole, resumed, and with hindsight."""

import pytest
from flan_t5 import make_flan_t5
from forked_recipe import Recipe
from run_metrics import metrics

pytestmark = pytest.mark.slow

SMALL = [  # hindsight, so that resuming meets the rows of both kinds
    "hindsight=all",
    "clip_center=behaviour",
    *("num_envs=8", "update_every=32", "batch_size=16", "num_epochs=2", "log_every=32"),
    *("eval_every=64", "eval_episodes=4", "critic_hidden_sizes=[16]", "loggers=[]"),
    *("checkpoint_every=64", "device=cpu"),
]


@pytest.fixture(scope="module")
def recipe():
    with Recipe("ppo_glam.py") as recipe:
        yield recipe


@pytest.fixture(scope="module")
def unbroken(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    ended = recipe.run(*SMALL, "total_steps=128", f"output={folder / 'run'}", log=folder / "log")
    assert ended == 0, (folder / "log").read_text()
    return folder


def test_a_run_leaves_its_results(unbroken):
    rows = metrics(unbroken / "run")
    assert [int(row["step"]) for row in rows] == [0, 32, 64, 96, 128]
    updates = [int(row["updates"]) for row in rows[1:]]
    assert updates == sorted(updates) and updates[-1] > 16, "32 steps alone make 4 updates"
    assert 0 <= float(rows[-1]["eval/train/sampled/success"]) <= 1
    assert max(float(row["hindsight_in_batch"]) for row in rows[1:]) > 0
    assert (unbroken / "run" / "report.html").stat().st_size > 20_000
    assert (unbroken / "run" / "model" / "config.json").exists()
    assert "Success after 128 steps" in (unbroken / "log").read_text()


def test_a_resumed_run_has_the_metrics_of_an_unbroken_one(recipe, unbroken, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    for arguments in (["total_steps=64", f"output={run}"], ["total_steps=128", f"resume={run}"]):
        assert recipe.run(*SMALL, *arguments, log=log) == 0, log.read_text()
    assert metrics(run) == metrics(unbroken / "run")


@pytest.mark.parametrize("hindsight", ["none", "aligned"])
def test_a_penalty_and_other_hindsight(recipe, hindsight, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    options = [
        f"hindsight={hindsight}",
        "clip_center=one",
        "objective=kl",
        "max_tokens_per_pass=300",
    ]
    ended = recipe.run(*SMALL, *options, "total_steps=32", f"output={run}", log=log)
    assert ended == 0, log.read_text()
    last = metrics(run)[-1]
    assert float(last["kl"]) >= 0
    if hindsight == "none":
        assert int(last["updates"]) == 4
        assert float(last["hindsight_in_batch"]) == 0


def test_the_paper_configuration_trains_adapters_in_4_bits(recipe, tmp_path):
    """Real steps on Flan-T5's architecture, small: LoRA on NF4 weights, goals of two parts."""
    model, run, log = make_flan_t5(tmp_path / "flan"), tmp_path / "run", tmp_path / "log"
    ended = recipe.run(
        *("--config-name", "paper", f"model={model}", f"output={run}", "num_envs=8"),
        *("total_steps=32", "update_every=32", "num_epochs=1", "batch_size=32", "log_every=32"),
        *("max_tokens_per_pass=2000", "eval_every=0", "eval_episodes=2", "checkpoint_every=0"),
        *("loggers=[]", "device=cpu", "hindsight=aligned"),
        log=log,
    )
    assert ended == 0, log.read_text()
    assert float(metrics(run)[-1]["grad_norm"]) > 0
    assert (run / "model" / "adapter_model.safetensors").exists()
