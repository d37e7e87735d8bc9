"""Trains policy and critic on the transitions that a run of sac_glam.py stored, without playing.

    python recipes/offline_sac.py runs/sac_glam/... --updates 2000
    python recipes/offline_sac.py runs/sac_glam/... tau=0.1 lr_heads=3e-4 hindsight_ratio=0.7

For questions about the critic, which are answered in minutes this way: a new language model and new
heads learn from the replay buffer of the newest checkpoint, with the run's configuration, in which
any key that did not decide what was stored can be given another value. Evaluations and instruments
are those of sac_glam.py, in metrics.csv and report.html by number of updates.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import torch
from omegaconf import OmegaConf
from sac_glam import learn, make_agent, make_buffer, make_sampler

from torchrl_glam.models import load_tokenizer
from torchrl_glam.report.record import RunRecord
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.config import SACGLAMConfig, read_config
from torchrl_glam.runs.environments import refuse_named_env
from torchrl_glam.runs.program import program
from torchrl_glam.runs.run import Run
from torchrl_glam.runs.run_folder import stored_settings

# What rows hold was decided when they were stored; with returns of one step, not the discount.
STORED = ("env", "env_class", "memory", "num_envs", "n_step", "capacity", "hindsight")


@program
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run, with checkpoints")
    parser.add_argument("keys", nargs="*", help="other values of the run's keys, key=value")
    parser.add_argument("--updates", type=int, default=2_000, help="default: 2000")
    parser.add_argument("--every", type=int, default=250, help="updates between evaluations")
    parser.add_argument("--out", type=Path, default=Path("runs/offline_sac"), help="folder")
    options = parser.parse_intermixed_args(arguments)
    for name in ("updates", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} ({getattr(options, name)}) must be at least 1")
    saved, config = read_run(options)

    with Run(config, "offline_sac", unit="updates", record=RunRecord, resumable=False) as run:
        agent = make_agent(run, config)
        buffer = make_buffer(replace(saved, batch_size=config.batch_size), run.game, agent.noise)
        step = CheckpointManager(options.run).load({"buffer": buffer}, config=None)
        if not len(buffer):
            raise ValueError(f"run ({str(options.run)!r}) has stored no transitions yet")
        buffer.set_sampler(make_sampler(config, run.game))
        buffer.set_rng(torch.Generator().manual_seed(config.seed))
        print(f"{len(buffer):,} transitions, stored by step {step}")
        run.keeps(**agent.kept)
        for _ in run.rounds(repeat(None), agent.policy, heads=agent.loss.policy_and_values):
            learn(run, agent, buffer)
        run.finish(agent.model, agent.loss.qvalue_network_params)


def read_run(options: argparse.Namespace) -> tuple[SACGLAMConfig, SACGLAMConfig]:
    """The configuration of a run, as it was, and of the updates on what it stored."""
    settings = stored_settings(options.run)
    if "objective" in settings:
        raise ValueError(f"run ({str(options.run)!r}) is of ppo_glam.py, which stores nothing")
    if "${" in str(settings):
        raise ValueError(f"the configuration of {str(options.run)!r} has an interpolation ('${{')")
    schema = OmegaConf.structured(SACGLAMConfig(env={}, eval_splits={}))  # those of the run alone
    saved = OmegaConf.merge(schema, settings, {"resume": None})
    before = OmegaConf.to_object(saved)
    keys = [key.lstrip("+") for key in options.keys]
    own = {"output": str(options.out), "total_steps": options.updates, "loggers": []}
    own |= {"resume": None, "update_every": 1, "num_updates": 1, "checkpoint_every": 0}
    own |= {"log_every": options.every, "eval_every": options.every}
    for key in sorted({key.partition("=")[0] for key in keys} & own.keys()):
        raise ValueError(f"{key} is not read here: give --updates, --every and --out")
    updates = {"num_updates": options.updates}  # its own, which warmup_updates may not exceed
    given = OmegaConf.merge(saved, OmegaConf.from_dotlist(keys), updates)
    config = read_config(SACGLAMConfig, given)
    expected = f"be at most --updates ({options.updates})"
    config.require("warmup_updates", config.warmup_updates <= options.updates, expected)
    if not any(key.startswith("env_class=") for key in keys):
        refuse_named_env(before.env_class, "the run's folder", "env_class")
    for key in (*STORED, *(["gamma"] if before.n_step > 1 else [])):
        if getattr(config, key) != getattr(before, key):
            raise ValueError(
                f"{key} ({getattr(config, key)}) must stay what it was ({getattr(before, key)}): "
                "it decided what was stored"
            )
    now, then = config.language_model, before.language_model
    if now != then and load_tokenizer(now).get_vocab() != load_tokenizer(then).get_vocab():
        raise ValueError(
            f"language_model ({now!r}) must have the tokenizer of {then!r}, whose tokens are stored"
        )
    return before, replace(config, **own)


if __name__ == "__main__":
    main()
