"""Recipes as a user runs them: whole, resumed, stopped, on other games, on what a run stored."""

import os
import re
import shlex
import signal
import time

import pytest
import yaml
from flan_t5 import make_flan_t5
from forked_recipe import Recipe
from omegaconf import OmegaConf
from run_metrics import metrics, saved_steps
from tensordict import from_consolidated
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from torchrl_glam.models import load_agent

pytestmark = pytest.mark.slow

COMMON = "num_envs=8 critic_hidden_sizes=[16] loggers=[] device=cpu autocast=false"
SMALL = {
    "sac_glam": f"{COMMON} batch_size=32 num_updates=2 update_every=8 warmup_updates=2"
    " capacity=1000 log_every=40 eval_every=80 eval_episodes=8 checkpoint_every=80"
    " critic_input=observation token_noise=0.3",
    # hindsight, so that resuming meets the rows of both kinds
    "ppo_glam": f"{COMMON} batch_size=16 num_epochs=2 update_every=32 hindsight=all"
    " clip_center=behaviour log_every=32 eval_every=64 eval_episodes=4 checkpoint_every=64"
    " normalisation=token_mean max_tokens_per_pass=512",
}
STEPS = {"sac_glam": (80, 160), "ppo_glam": (64, 128)}
# The first row after 0 is that of the first updates.
ROWS = {"sac_glam": [0, 80, 120, 160], "ppo_glam": [0, 32, 64, 96, 128]}


@pytest.fixture(scope="module", params=SMALL)
def recipe(request):
    recipe = Recipe(f"{request.param}.py")
    recipe.name, recipe.small = request.param, SMALL[request.param].split()
    return recipe


of_sac = pytest.mark.parametrize("recipe", ["sac_glam"], indirect=True)
of_ppo = pytest.mark.parametrize("recipe", ["ppo_glam"], indirect=True)


@pytest.fixture(scope="module")
def unbroken(recipe, tmp_path_factory):
    """The folder of a run that nothing happened to, and what it said."""
    folder = tmp_path_factory.mktemp("unbroken")
    total = f"total_steps={STEPS[recipe.name][1]}"
    recipe.succeed(*recipe.small, total, f"output={folder / 'run'}")
    return folder / "run", recipe.said


def test_a_run_leaves_its_results(recipe, unbroken):
    (folder, said), (half, total) = unbroken, STEPS[recipe.name]
    rows = metrics(folder)
    last = rows[-1]
    assert [int(row["step"]) for row in rows] == ROWS[recipe.name]
    assert 0 <= float(last["eval/train/sampled/success"]) <= 1
    assert (folder / "report.html").stat().st_size > 20_000
    assert f"Success after {total} steps" in said
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folder / "model"))
    agent = load_agent(folder)
    card = agent.card
    assert agent.critics and (card.environment["env"]["num_objects"], card.num_actions) == (3, 5)
    page = (folder / "model" / "README.md").read_text(encoding="utf-8")
    rate = f"{float(last['eval/test/greedy/success']):.3f}"
    assert f"| test | all | greedy | {rate} | " in page and "- command: `" in page
    assert saved_steps(folder) == [half, total]
    if recipe.name == "ppo_glam":
        updates = [int(row["updates"]) for row in rows[1:]]
        assert updates == sorted(updates) and updates[-1] > 16, "32 steps alone make 4 updates"
        assert max(float(row["hindsight_in_batch"]) for row in rows[1:]) > 0
        return
    assert float(last["hindsight_in_batch"]) == 0.5
    [stored] = (folder / f"checkpoints/step-{total:012d}").rglob("rows.tdc")
    rows = from_consolidated(stored)
    share = rows["is_hindsight"].float().mean().item()
    assert float(last["hindsight_in_buffer"]) == pytest.approx(share, abs=1e-4)
    for kind, name in enumerate(("grasp", "grow")):
        share = (rows["goal_kind"] == kind).float().mean().item()
        assert float(last[f"kinds/buffer/{name}"]) == pytest.approx(share, abs=1e-4)
        assert 0 < float(last[f"kinds/batch/{name}"]) < 1
    for name in ("batch", "buffer"):
        mean, most = (float(last[f"policy_lag/{name}/{what}"]) for what in ("mean", "max"))
        assert 0 <= mean <= most <= int(last["updates"])


def resumed(recipe, tmp_path, *options, **how):
    """Folders of a run resumed half-way and of one that was not; their metrics are equal."""
    half, total = STEPS[recipe.name]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for steps, where, run in (
        (total, "output", whole),
        (half, "output", parts),
        (total, "resume", parts),
    ):
        recipe.succeed(*recipe.small, *options, f"total_steps={steps}", f"{where}={run}", **how)
    assert metrics(parts) == metrics(whole)
    return parts, whole


def test_a_resumed_run_has_the_metrics_of_an_unbroken_one_on_a_card_too(recipe, unbroken, tmp_path):
    """T5 is read in another way there; what is not on the device of the rest is refused."""
    run, _ = resumed(recipe, tmp_path, "device=cuda", card=True)
    for row, expected in zip(metrics(run), metrics(unbroken[0]), strict=True):
        values = ({k: float(v or 0) for k, v in told.items()} for told in (row, expected))
        assert next(values) == pytest.approx(next(values), rel=1e-3, abs=1e-3)


GOALS = {"sac_glam": "kind_progress", "ppo_glam": "learned_progress+hindsight"}
NAMED_BY = {"sac_glam": ["hindsight_by=judge", "imagined=100"], "ppo_glam": []}


def test_a_resumed_run_chooses_the_goals_of_an_unbroken_one(recipe, tmp_path):
    chosen = [f"goals={GOALS[recipe.name]}", "env.impossible=0.5", *NAMED_BY[recipe.name]]
    parts, whole = resumed(recipe, tmp_path, *chosen)
    _, total = STEPS[recipe.name]
    saved = f"checkpoints/step-{total:012d}/components/*-goals/*"
    states = [{path.name: path.read_bytes() for path in run.glob(saved)} for run in (whole, parts)]
    assert states[0] == states[1] and len(states[0]) > 0
    rows = metrics(whole)
    assert max(float(row["kinds/pursued/impossible"] or 0) for row in rows) > 0
    assert int(rows[-1]["goals/reached"]) > 0
    assert ("imagined/pursued" in rows[-1]) == bool(NAMED_BY[recipe.name])
    assert ("goals/error" in rows[-1]) == ("learned" in GOALS[recipe.name])


def test_the_paper_configuration_trains_adapters_in_4_bits(recipe, tmp_path):
    """Real steps on Flan-T5's architecture, small: LoRA on NF4 weights, goals of two parts."""
    model, run = make_flan_t5(tmp_path / "flan"), tmp_path / "run"
    options = ["--config-name", "paper", f"model={model}", f"output={run}", "batch_size=32"]
    options += ["max_tokens_per_pass=2000", "eval_every=0", "eval_episodes=2", "log_every=32"]
    options += ["checkpoint_every=0", "loggers=[]", "device=cpu", "num_envs=8", "update_every=32"]
    if recipe.name == "sac_glam":
        options += ["total_steps=192", "warmup_updates=1"]
    else:
        options += ["total_steps=32", "num_epochs=1", "hindsight=aligned"]
    recipe.succeed(*options)
    last = metrics(run)[-1]
    # Random weights make a saturated policy, so only the critic's gradient is sure to be there.
    norm = "grad_norm/trunk_critic" if recipe.name == "sac_glam" else "grad_norm"
    assert int(last["updates"]) >= 1 and float(last[norm]) > 0
    assert (run / "model" / "adapter_model.safetensors").exists()


@of_ppo
def test_a_penalty_without_hindsight(recipe, tmp_path):
    options = ["hindsight=none", "clip_center=one", "objective=kl"]
    options += ["max_tokens_per_pass=300", "total_steps=32", f"output={tmp_path / 'run'}"]
    recipe.succeed(*recipe.small, *options)
    last = metrics(tmp_path / "run")[-1]
    assert float(last["kl"]) >= 0 and int(last["updates"]) == 4
    assert float(last["hindsight_in_batch"]) == 0


@of_sac
def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(recipe, tmp_path):
    run = tmp_path / "run"
    options = ["total_steps=800040", f"output={run}", "sampling=ratio+prior"]
    process = recipe.start(*recipe.small, *options)
    deadline = time.monotonic() + 120
    while not (run / "metrics.csv").exists():
        assert time.monotonic() < deadline, recipe.said
        time.sleep(0.1)
    time.sleep(1)
    os.kill(process, signal.SIGINT)
    assert recipe.wait() == 0, recipe.said
    command = shlex.split(recipe.said.splitlines()[-1].split("resume with: ")[1])
    # what was given must be given again
    assert {"--config-name", "quickstart", f"resume={run}", "sampling=ratio+prior"} <= {*command}
    recipe.succeed(*command, "--cfg", "job")
    assert f"resume: {run}" in recipe.said
    assert saved_steps(run)


def play_corridor(recipe, tmp_path, *overrides):
    """A run on a game that is not Playground-Text; nothing but ``env=module:Name`` changes."""
    total = "total_steps=120" if recipe.name == "sac_glam" else "total_steps=64"
    folder = tmp_path / "run"
    recipe.succeed(*recipe.small, total, f"output={folder}", *overrides)
    rows = metrics(folder)
    assert int(rows[-1]["updates"]) > 0
    assert {name for name in rows[-1] if name.startswith("eval/")} >= {
        f"eval/train/{mode}/{what}"
        for mode in ("sampled", "greedy")
        for what in ("success", "length")
    }
    assert not any(name.startswith(("eval/test/", "probe/")) for name in rows[-1])
    return folder, rows


def test_a_game_without_goals_named_and_one_instance_at_a_time(recipe, tmp_path):
    """Rewards on the way: only what the environment calls success counts as such."""
    options = ["env=corridor:alone", "env.step_reward=0.01"]
    options += ["hindsight=false"] if recipe.name == "sac_glam" else ["hindsight=none"]
    options += ["clip_center=one"] if recipe.name == "ppo_glam" else []
    folder, rows = play_corridor(recipe, tmp_path, *options)
    assert float(rows[-1]["hindsight_in_batch"]) == 0
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.env_class, dict(config.env)) == ("corridor:alone", {"step_reward": 0.01})


def test_a_game_with_goals_named(recipe, tmp_path):
    options = ["env=corridor:Corridor", "env.names_goals=true", "memory=64"]
    if recipe.name == "sac_glam":
        options += ["sampling=ratio+prior", "hindsight_ratio=0.25"]
    _, rows = play_corridor(recipe, tmp_path, *options)
    shares = [float(row["hindsight_in_batch"]) for row in rows if row["hindsight_in_batch"]]
    assert max(shares) > 0
    if recipe.name == "sac_glam":
        assert shares[-1] == 0.25
        assert 2 <= float(rows[-1]["goals/named"]) <= 4  # doors and chairs


@of_sac
def test_what_a_run_stored_can_be_learned_from_again(recipe, unbroken, succeeds, refused, tmp_path):
    stored, _ = unbroken
    keys = ("gamma=0.7", "tau=0.5", "sampling=prior", "warmup_updates=1", "batch_size=8")
    said = succeeds("offline_sac", stored, *keys, "--updates=3", "--every=2", "--out=off")
    held = metrics(stored)[-1]["buffer_size"]
    assert f"{float(held):,.0f} transitions, stored by step 160" in said
    learned = metrics(tmp_path / "off")
    assert [int(row["step"]) for row in learned] == [0, 2, 3]
    assert float(learned[1]["entropy"]) < 2  # ln 5 is the most of five actions
    assert float(learned[1]["td_error"]) > 0 and "probe/plan/critic" in learned[1]
    assert "output ('off') holds metrics.csv" in refused("offline_sac", stored, "--out=off")
    assert "('nowhere') holds no config.yaml" in refused("offline_sac", "nowhere", "--out=on")
    (tmp_path / "ppo").mkdir()
    (tmp_path / "ppo" / "config.yaml").write_text("{objective: clip}")
    assert "is of ppo_glam.py, which stores" in refused("offline_sac", "ppo", "--out=on")
    last = refused("offline_sac", stored, "gamma=0.9", "--out=on")
    assert "gamma (0.9) must stay what it was (0.7)" in last  # in returns of three steps
    other = f"language_model={make_flan_t5(tmp_path / 'other')}"
    last = refused("offline_sac", stored, other, "--out=on")
    assert "must have the tokenizer of 'tiny', whose tokens" in last
    assert not (tmp_path / "on").exists()


@pytest.mark.hostile
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
