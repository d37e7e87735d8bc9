"""The run around an algorithm: what arrives, what is rescued, and numbers that end it."""

import itertools
import math
import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import sac_glam
import torch
from run_metrics import read_csv, saved_steps
from torchrl._utils import timeit
from torchrl.checkpoint import CheckpointError
from transformers.models.t5.modeling_t5 import T5Block

import torchrl_glam.runs.run as run_module
from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import split_by_tokens
from torchrl_glam.runs import out_of_memory
from torchrl_glam.runs.config import PPOGLAMConfig, SACGLAMConfig
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.records import metrics, progress
from torchrl_glam.runs.records.progress import Progress
from torchrl_glam.runs.run import Run, diverged
from torchrl_glam.text import EnvDescription

SMALL = {
    **{"num_envs": 4, "update_every": 8, "total_steps": 64, "batch_size": 8, "num_updates": 1},
    **{"warmup_updates": 0, "eval_episodes": 2, "eval_every": 0, "log_every": 8, "capacity": 200},
    **{"checkpoint_every": 0, "loggers": [], "critic_hidden_sizes": [8]},
    **{"device": "cpu", "autocast": "false"},
}


def configured(tmp_path, **settings):
    config = SACGLAMConfig(output=str(tmp_path / "run"), **{**SMALL, **settings})
    config.check()
    return config


def train(
    tmp_path, look=lambda run, agent: None, fail=None, finish=False, resumable=True, **settings
):
    """A short run of SAC; ``look`` sees it after every round, ``fail`` may raise in an update."""
    config = configured(tmp_path, **settings)
    with Run(config, "test", resumable=resumable) as run:
        agent = sac_glam.make_agent(run, config)
        if fail is not None:
            plain = agent.optimizer.step
            agent.optimizer.step = lambda: fail(run) or plain()
        buffer = sac_glam.make_buffer(config, run.game, agent.noise)
        agent.sampler = buffer.sampler
        collector = run.collect(agent.env, agent.policy)
        run.keeps(loss=agent.loss, optimizer=agent.optimizer)
        for steps in run.rounds(collector, agent.policy):
            buffer.extend(steps)
            if len(buffer) >= config.batch_size:
                sac_glam.learn(run, agent, buffer)
            look(run, agent)
        if finish:
            run.finish(agent.model, None)
    return agent


def test_what_has_a_value_for_the_end_falls_with_environment_steps(tmp_path):
    """Learning rates, an entropy coefficient that is not learned, and the share of hindsight."""
    seen = {}

    def look(run, agent):
        rates = [rate(agent, group) for group in ("trunk", "critic", "alpha")]
        seen[run.counters["steps"]] = [agent.sampler.ratio, agent.loss.alpha.item(), *rates]

    ends = {"alpha_end": 0.1, "hindsight_ratio_end": 0.1, "lr_end": 0.5}
    train(tmp_path, look, alpha_init=0.2, lr_trunk=0.01, lr_heads=0.02, **ends)
    assert seen[32] == pytest.approx([0.3, 0.15, 0.0075, 0.015, 0.0015])
    assert seen[64] == pytest.approx([0.1, 0.1, 0.005, 0.01, 0.001])


def test_parts_of_a_batch_are_cut_by_all_that_the_language_model_reads(tmp_path, monkeypatch):
    """An encoder pass for each action too, where the critic reads it there."""
    found = []

    def spy(batch, trunk, most):
        found.extend(parts := split_by_tokens(batch, trunk, most))
        return parts

    monkeypatch.setattr(out_of_memory, "split_by_tokens", spy)
    settings = {"critic_input": "encoded-action", "max_tokens_per_pass": 300, "total_steps": 16}
    agent = train(tmp_path, **settings)
    counts = [(len(part), *agent.loss.trunk.count_tokens(part)) for part in found]
    assert len(counts) > 2
    assert all(n == 1 or n * (read.max() + nodes.max()) <= 300 for n, read, nodes in counts)


def test_what_an_earlier_run_of_the_process_timed_is_not_of_this_one(tmp_path):
    with timeit("time/earlier"):  # since its last row
        pass
    train(tmp_path, total_steps=32)
    row = read_csv(tmp_path / "run" / "metrics.csv")[1]
    assert float(row["seconds/time/update"]) > 0 and not any("earlier" in name for name in row)


def test_the_last_row_is_whole_however_often_there_are_rows(tmp_path):
    train(tmp_path, total_steps=32, log_every=24)
    rows = read_csv(tmp_path / "run" / "metrics.csv")
    assert [(row["step"], bool(row["seconds"])) for row in rows[1:]] == [("24", True), ("32", True)]


def test_the_pace_is_that_since_the_row_before_or_the_start(monkeypatch):
    """Each round takes a second, and the run is resumed between two rows."""
    config, counters = SACGLAMConfig(**SMALL), {"steps": 24, "updates": 3, "seconds": 9.0}
    clock, paces = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    part = Progress(config, EnvDescription(3, frozenset()), counters, Ranks())
    with ExitStack() as stack:
        part.start("test", stack)
        for clock.now in range(1, 6):
            part.begin_round(None)
            if counters["steps"] % 16 == 0:
                part.log({}, {})
            if row := part.end_round():
                paces.append((row["steps_per_second"], row["seconds"]))
    assert paces == [(8, 10), (8, 12), (8, 14)]


def test_a_logger_ends_with_its_run_and_is_told_how(tmp_path, monkeypatch):
    """Else the next run of a sweep would be logged as this one, or refused."""
    logger = mock.MagicMock()
    monkeypatch.setattr(metrics, "get_logger", lambda *_, **__: logger)
    settings = {"total_steps": 16, "loggers": ["tensorboard"]}
    train(tmp_path / "whole", **settings)
    with pytest.raises(LookupError):
        train(tmp_path / "broken", fail=mock.Mock(side_effect=LookupError), **settings)
    ended = logger.experiment.__exit__.call_args_list
    assert [call.args[0] for call in ended] == [None, LookupError]


def test_a_run_closes_its_environments_at_its_end_and_after_an_error(tmp_path, monkeypatch):
    closed, config = [], configured(tmp_path, goals="learned_progress")
    monkeypatch.setattr(PlaygroundTextEnv, "close", lambda env, **_: closed.append(env))
    with pytest.raises(LookupError), Run(config, "test") as run:
        agent = sac_glam.make_agent(run, config)
        run.keeps(**agent.kept, goals=agent.goals)
        collector = run.collect(agent.env, agent.policy)
        for _ in run.rounds(collector, agent.policy, heads=agent.loss.policy_and_values):
            held = [agent.env, *run._eval_envs.values(), run._probe.env, agent.goals._kind_env[0]]
            raise LookupError
    assert {id(env.base_env) for env in held} <= set(map(id, closed))


def test_target_weights_follow_by_tau(tmp_path):
    start = {}

    def look(run, agent):
        start.update(start or agent.loss.target_trunk_params.clone().flatten_keys().items())

    agent = train(tmp_path, look, tau=0.9)
    live, followed = agent.loss.trunk_params.data, agent.loss.target_trunk_params
    apart = [(followed[k] - live[k]).abs().max() for k in live.keys(True, True)]
    moved = [(followed[k] - start[".".join(k)]).abs().max() for k in live.keys(True, True)]
    assert 0 < max(apart) < max(moved) / 2


# A value other than the default for keys that shipped configurations set, and where it arrives.
ARRIVALS = {
    "gamma": (0.5, lambda a, b: a.loss.value_estimator.gamma.item()),
    "tau": (0.25, lambda a, b: 1 - a.targets.eps),
    "n_step": (2, lambda a, b: b.transform[0].n_steps),
    "alpha_init": (0.125, lambda a, b: a.loss.alpha.item()),
    "exploration": (0.5, lambda a, b: a.explorer[1].eps.item()),
    "target_entropy_weight": (0.5, lambda a, b: a.loss.target_entropy_weight),
    "munchausen": (0.5, lambda a, b: a.loss.munchausen),
    "critic_backprop": (False, lambda a, b: a.loss.critic_backprop),
    "lr_trunk": (0.5, lambda a, b: rate(a, "trunk_actor")),
    "lr_heads": (0.25, lambda a, b: rate(a, "critic")),
    "max_grad_norm": (2.0, lambda a, b: a.optimizer.max_grad_norm),
    "separate_optimizers": (True, lambda a, b: a.optimizer.separate),
    "hindsight_ratio": (0.25, lambda a, b: b.sampler.ratio),
    "token_noise": (0.25, lambda a, b: b.transform[2].rate),
    "capacity": (160, lambda a, b: b.storage.max_size),
    "batch_size": (16, lambda a, b: b.batch_size),
    "max_tokens_per_pass": (512, lambda a, b: a.trunk.max_tokens_per_pass),
    "normalisation": ("token_mean", lambda a, b: a.trunk.normalisation),
    "lora_rank": (2, lambda a, b: a.model.peft_config["default"].r),
    # layers are then of a subclass
    "gradient_checkpointing": (True, lambda a, b: T5Block not in map(type, a.model.modules())),
}


def rate(agent, group):
    return agent.optimizer.optimizers[group].param_groups[0]["lr"]


@pytest.mark.slow
def test_every_setting_arrives_at_its_component(tmp_path):
    config = configured(tmp_path, **{key: value for key, (value, _) in ARRIVALS.items()})
    with Run(config, "test") as run:
        agent = sac_glam.make_agent(run, config)
        buffer = sac_glam.make_buffer(config, run.game, agent.noise)
    for key, (value, arrived) in ARRIVALS.items():
        assert arrived(agent, buffer) == pytest.approx(value), key
    assert not list(tmp_path.iterdir()), "a run that did not begin leaves nothing"


def test_an_error_in_an_update_is_followed_by_a_checkpoint(tmp_path, caplog):
    def fail(run):
        if run.counters["steps"] >= 48:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        train(tmp_path, fail=fail)
    assert saved_steps(tmp_path / "run") == [48] and "saved as" in caplog.text
    assert not (tmp_path / "run" / "run.lock").exists()


def test_a_run_that_diverges_saves_nothing_and_a_refused_resume_leaves_its_record(tmp_path):
    fail = mock.Mock(side_effect=FloatingPointError("not finite"))
    with pytest.raises(FloatingPointError, match="at step 8: not finite .*saved no checkpoint"):
        train(tmp_path, fail=fail, total_steps=16)
    assert not saved_steps(tmp_path / "run")
    record = tmp_path / "run" / "diverged.txt"
    text = record.read_text()
    (tmp_path / "run" / "checkpoints" / "step-000000000008").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
        train(tmp_path, resume=str(tmp_path / "run"), total_steps=16)
    assert record.read_text() == text


def test_an_error_in_the_last_evaluation_is_made_up_for(tmp_path, monkeypatch):
    ends = [mock.DEFAULT, RuntimeError("the power fails"), mock.DEFAULT]
    broken = mock.Mock(wraps=run_module.evaluate_splits, side_effect=ends)
    monkeypatch.setattr(run_module, "evaluate_splits", broken)
    with pytest.raises(RuntimeError, match="power"):
        train(tmp_path)
    assert saved_steps(tmp_path / "run") == [64]
    train(tmp_path, resume=str(tmp_path / "run"))
    last = read_csv(tmp_path / "run" / "metrics.csv")[-1]
    assert last["step"] == "64" and float(last["eval/train/sampled/success"]) >= 0
    train(tmp_path, resume=str(tmp_path / "run"))
    assert broken.call_count == 3, "once it is made, it is not made again"


def test_a_signal_while_the_results_are_saved_ends_the_sweep_after(tmp_path, monkeypatch, caplog):
    ended = []
    monkeypatch.setattr(run_module, "end_sweep", lambda: ended.append("sweep"))

    def saved(*arguments):
        signal.raise_signal(signal.SIGTERM)
        ended.append("saved")

    monkeypatch.setattr(run_module, "save_results", saved)
    train(tmp_path, finish=True)
    assert ended == ["saved", "sweep"] and "No update" not in caplog.text


def test_a_run_without_an_update_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(run_module, "save_results", lambda *_: None)
    train(tmp_path, finish=True, total_steps=16, batch_size=200)
    assert "never held batch_size (200) transitions: lower it, or raise total" in caplog.text


def test_a_run_goes_on_after_its_environment_was_mended(tmp_path, monkeypatch):
    """A faulty reward is no divergence, which a sweep would pass over, and nothing is saved."""
    plain, rounds = Progress.begin_round, itertools.count(1)
    rewards = [0.0, 0.0, -1e30, -math.inf, 1.0, math.nan, math.inf, 0.0]

    def begin(progress, steps):
        if next(rounds) == 4:
            steps = steps.set(("next", "reward"), torch.tensor(rewards).view(4, 2, 1))
        return plain(progress, steps)

    monkeypatch.setattr(Progress, "begin_round", begin)
    where = r"after step 24 are not finite: 3 of 8, the first is -inf, at \[1, 1\] of the batch"
    with pytest.raises(ValueError, match=f"{where}.* mend the environment"):
        train(tmp_path, checkpoint_every=16)
    assert not (tmp_path / "run" / "diverged.txt").exists()
    assert saved_steps(tmp_path / "run") == [16]
    train(tmp_path, resume=str(tmp_path / "run"), checkpoint_every=16)
    assert read_csv(tmp_path / "run" / "metrics.csv")[-1]["step"] == "64"


@pytest.mark.parametrize("resumable", [True, False])
def test_a_stop_is_told_where_hydra_is_not_used(tmp_path, resumable, caplog):
    """A run that was stopped at what becomes its end is evaluated when it is resumed."""

    def stop(run, agent):
        if run.counters["steps"] == 32:
            signal.raise_signal(signal.SIGTERM)

    caplog.set_level("INFO")
    train(tmp_path, stop, finish=True, resumable=resumable)
    advice = f"; resume with: resume={tmp_path / 'run'}" if resumable else ""
    assert f"Stopped at step 32{advice}\n" in caplog.text + "\n"
    assert len(saved_steps(tmp_path / "run")) == resumable
    if not resumable:
        return
    last = read_csv(tmp_path / "run" / "metrics.csv")[-1]
    assert last["step"] == "32" and not last.get("eval/train/sampled/success")
    train(tmp_path, resume=str(tmp_path / "run"), total_steps=32)
    last = read_csv(tmp_path / "run" / "metrics.csv")[-1]
    assert last["step"] == "32" and float(last["eval/train/sampled/success"]) >= 0


@pytest.mark.parametrize("config", [SACGLAMConfig(), PPOGLAMConfig()])
def test_a_run_that_diverges_names_rates_and_checkpoint(config):
    error = FloatingPointError("loss_actor is nan; nothing was updated.")
    counters = {"steps": 16, "updates": 2}
    message = str(diverged(error, counters, config, Path("runs/step-000000000008")))
    assert message.startswith("update 2 at step 16: loss_actor is nan; nothing was updated. The")
    assert "its last good checkpoint is runs/step-000000000008 (" in message
    rates = [key for key in vars(config) if key.startswith("lr_") and key != "lr_end"]
    assert len(rates) >= 2 and all(f"{key}={getattr(config, key)}" in message for key in rates)
