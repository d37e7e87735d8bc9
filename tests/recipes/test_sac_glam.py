"""The recipe as a user runs it: whole, resumed, interrupted, diverging, and with mistakes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from flan_t5 import make_flan_t5
from run_metrics import metrics
from tensordict import from_consolidated
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from torchrl_glam.models import load_agent

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = [
    *(
        "num_envs=8",
        "batch_size=32",
        "num_updates=2",
        "update_every=8",
        "warmup_updates=2",
        "log_every=80",
    ),
    *("eval_every=160", "eval_episodes=8", "critic_hidden_sizes=[16]", "loggers=[]"),
    *("capacity=1000", "checkpoint_every=160", "device=cpu"),
]


def command(*overrides):
    return [sys.executable, str(RECIPES / "sac_glam.py"), *SMALL, *map(str, overrides)]


def run(*overrides, cwd):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "1"}
    return subprocess.run(
        command(*overrides), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    result = run("total_steps=320", "output=run", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "run", result


def test_a_run_leaves_its_results(unbroken):
    folder, result = unbroken
    rows = metrics(folder)
    assert [int(row["step"]) for row in rows] == [0, 80, 160, 240, 320]
    assert 0 <= float(rows[-1]["eval/train/sampled/success"]) <= 1
    assert float(rows[-1]["hindsight_in_batch"]) == 0.5
    [stored] = (folder / "checkpoints" / "step-000000000320").rglob("rows.tdc")
    share = from_consolidated(stored)["is_hindsight"].float().mean().item()
    assert float(rows[-1]["hindsight_in_buffer"]) == pytest.approx(share, abs=1e-4)
    last, updates = rows[-1], int(rows[-1]["updates"])
    for name in ("batch", "buffer"):
        assert 0 <= float(last[f"policy_lag/{name}/mean"]) <= float(last[f"policy_lag/{name}/max"])
        assert float(last[f"policy_lag/{name}/max"]) <= updates
    assert (folder / "report.html").stat().st_size > 20_000
    assert [path.name for path in sorted((folder / "checkpoints").glob("step-*"))] == [
        "step-000000000160",
        "step-000000000320",
    ]
    assert "Success after 320 steps" in result.stdout
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.vocab_size == len(tokenizer)
    card = load_agent(folder).card
    assert (card.environment["env"]["num_objects"], card.num_actions) == (3, 5)


def test_a_resumed_run_has_the_metrics_of_an_unbroken_one(unbroken, tmp_path):
    first = run("total_steps=160", "output=run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = run("total_steps=320", "resume=run", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert metrics(tmp_path / "run") == metrics(unbroken[0])


def offline(*arguments, cwd):
    return subprocess.run(
        [sys.executable, str(RECIPES / "offline_sac.py"), *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_what_a_run_stored_can_be_learned_from_again(unbroken, tmp_path):
    keys = ("gamma=0.7", "tau=0.5", "sampling=prior", "warmup_updates=1")
    result = offline(unbroken[0], *keys, "--updates=3", "--every=2", "--out=off", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    [rows] = (unbroken[0] / "checkpoints" / "step-000000000320").rglob("rows.tdc")
    stored = len(from_consolidated(rows)["is_hindsight"])
    assert f"{stored:,} transitions, stored by step 320" in result.stdout
    learned = metrics(tmp_path / "off")
    assert [int(row["step"]) for row in learned] == [0, 2, 3]
    assert float(learned[1]["td_error"]) > 0 and "probe/plan/critic" in learned[1]
    again = offline(unbroken[0], "--out=off", cwd=tmp_path)
    assert again.returncode == 1 and "output ('off') holds metrics.csv" in again.stderr


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("n_step=1", r"n_step (1) must stay what it was (3)"),
        ("gamma=0.9", r"gamma (0.9) must stay what it was (0.7)"),  # in returns of three steps
        ("gama=0.9", "gama"),
    ],
)
def test_what_decided_what_was_stored_stays(unbroken, tmp_path, key, message):
    result = offline(unbroken[0], key, cwd=tmp_path)
    assert result.returncode == 1 and message in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_run_from_elsewhere_makes_no_environment_of_its_choice(unbroken, tmp_path):
    """Its configuration would have any function called, with any arguments."""
    shutil.copytree(unbroken[0], tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config |= {"env_class": "os:system", "env": {"command": f"touch {tmp_path / 'called'}"}}
    path.write_text(yaml.safe_dump(config))
    result = offline("run", cwd=tmp_path)
    assert "env_class (os:system) is what the run's folder names" in result.stderr
    assert result.returncode == 1 and not (tmp_path / "called").exists()


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(tmp_path):
    with subprocess.Popen(
        command("total_steps=800000", "output=run", "sampling=ratio+prior"),
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "metrics.csv").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "resume with: resume=run --config-name quickstart" in output
    assert "sampling=ratio+prior" in output.splitlines()[-1]  # what was given must be given again
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_a_diverging_run_stops_and_names_its_last_checkpoint(tmp_path):
    result = run(
        *("total_steps=320", "output=run", "lr_heads=1e30", "checkpoint_every=8"),
        *("log_every=8", "eval_every=0", "eval_episodes=1"),
        cwd=tmp_path,
    )
    assert result.returncode != 0
    [message] = [row for row in result.stderr.splitlines() if "FloatingPointError: up" in row]
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert f"last good checkpoint is {newest.resolve()} (" in message


def test_the_paper_configuration_trains_adapters_in_4_bits(tmp_path):
    """Real steps on Flan-T5's architecture, small: LoRA on NF4 weights, goals of two parts."""
    model = make_flan_t5(tmp_path / "flan")
    result = subprocess.run(
        [
            *(sys.executable, str(RECIPES / "sac_glam.py"), "--config-name", "paper"),
            *(f"model={model}", "output=run", "total_steps=768", "batch_size=32"),
            *("max_tokens_per_pass=2000", "eval_every=0", "eval_episodes=2", "log_every=32"),
            *("warmup_updates=1", "checkpoint_every=0", "loggers=[]", "device=cpu"),
        ],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    rows = metrics(tmp_path / "run")
    assert int(rows[-1]["updates"]) >= 2
    # Random weights make a saturated policy, so only the critic's gradient is sure to be there.
    assert float(rows[-1]["grad_norm/trunk_critic"]) > 0
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").exists()


def test_every_option_of_the_language_model_at_once(tmp_path):
    """The critic reads the action in the encoder's input."""
    result = run(
        *("total_steps=160", "output=run", "critic_input=encoded-action", "lora_rank=2"),
        *("normalisation=token_mean", "eval_every=0"),
        *("gradient_checkpointing=true", "checkpoint_every=0", "eval_episodes=2"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    last = metrics(tmp_path / "run")[-1]
    assert int(last["updates"]) > 0 and float(last["grad_norm/critic"]) > 0
    assert (tmp_path / "run" / "model" / "adapter_config.json").exists()
    assert (tmp_path / "run" / "model" / "heads.safetensors").exists()


def test_another_configuration_is_not_resumed(unbroken):
    folder, _ = unbroken
    result = run("total_steps=480", f"resume={folder}", "gamma=0.5", cwd=folder)
    assert result.returncode != 0
    assert "gamma was 0.7, is 0.5" in result.stderr
