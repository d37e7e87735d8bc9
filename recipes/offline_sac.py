"""Trains policy and critic on the transitions that a run of sac_glam.py stored, without playing.

    python recipes/offline_sac.py runs/sac_glam/... --updates 2000
    python recipes/offline_sac.py runs/sac_glam/... tau=0.1 lr_heads=3e-4 hindsight_ratio=0.7

For questions about the critic, which are answered in minutes this way: a new language model and new
heads learn from the replay buffer of the newest checkpoint, with the run's configuration, in which
any key that did not decide what was stored can be given another value. Evaluations and instruments
are those of sac_glam.py, in metrics.csv and report.html by number of updates.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import OmegaConf
from tensordict.nn import TensorDictSequential
from tqdm import tqdm

from torchrl_glam.models import CandidateActor, OnDevice, ScoresOnly
from torchrl_glam.objectives import WeightAverage
from torchrl_glam.runs.buffer import make_buffer, make_sampler
from torchrl_glam.runs.build import (
    choose_autocast,
    choose_device,
    make_language_model,
    make_sac,
    make_trunk_and_critic,
    seed_everything,
)
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.config import SACGLAMConfig, read_config
from torchrl_glam.runs.environments import (
    make_env,
    make_eval_envs,
    make_probe,
    refuse_named_env,
)
from torchrl_glam.runs.evaluation import EVAL_SEED, evaluate_splits
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.memory import bound_kernel_caches
from torchrl_glam.runs.program import program
from torchrl_glam.runs.records.metrics import MetricsTable
from torchrl_glam.text import describe_env

# What rows hold was decided when they were stored; with returns of one step, not the discount.
STORED = ("env", "env_class", "num_envs", "n_step", "storage", "capacity", "hindsight")


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
    if (options.out / "metrics.csv").exists():
        parser.error(f"--out ({str(options.out)!r}) holds metrics already: give another folder")
    saved, config = read_run(options.run, options.keys)

    # 1. A new agent, as in sac_glam.py
    device = choose_device(config.device)
    bound_kernel_caches()
    seed_everything(config.seed)
    autocast = choose_autocast(config.autocast, device)
    model, tokenizer = make_language_model(config, device, autocast)
    env = make_env(config, tokenizer)
    game = describe_env(env)
    eval_envs = make_eval_envs(config, tokenizer)
    probe = make_probe(config, tokenizer)
    trunk, critic = make_trunk_and_critic(
        config, model, tokenizer, autocast, num_actions=game.num_actions
    )
    actor = CandidateActor()
    acting = TensorDictSequential(ScoresOnly(trunk), actor, selected_out_keys=["action"])
    policy = OnDevice(acting)  # environments and replay are in main memory
    loss, targets, optimizer = make_sac(
        config, trunk, actor, critic, num_actions=game.num_actions, device=device
    )
    average = WeightAverage([loss.trunk_params, loss.qvalue_network_params], config.average_decay)

    # 2. What the run stored, drawn as this configuration asks for
    buffer = make_buffer(saved, env, options.out, game.goal_kind_prior)
    step = CheckpointManager(options.run).load_some({"buffer": buffer})
    buffer.set_sampler(make_sampler(config, game.goal_kind_prior))
    buffer.set_rng(torch.Generator().manual_seed(config.seed))
    print(f"{len(buffer):,} transitions, stored by step {step}")

    # 3. Training
    options.out.mkdir(parents=True, exist_ok=True)
    replace_file(options.out / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(config)))
    table = MetricsTable(options.out, unit="updates")
    for update in tqdm(range(1, options.updates + 1), desc="offline_sac", unit="update"):
        terms = loss(buffer.sample(config.batch_size).to(device))
        optimizer.backward(terms, update_actor=update > config.warmup_updates)
        norms = optimizer.step()
        targets.step()
        average.update()
        if update % options.every == 0 or update == options.updates:
            row = {key: value.item() for key, value in terms.items()}
            row |= {f"grad_norm/{group}": norm for group, norm in norms.items()}
            with average.applied():
                row |= evaluate_splits(policy, eval_envs, seed=EVAL_SEED)
            row |= probe(policy, loss.policy_and_values) if probe else {}
            table.add(update, row)
    table.write_page()
    names = [key for key in table.rows[-1] if key.endswith("sampled/success")]
    print({key: table.rows[-1][key] for key in names}, f"Results in {table.path}")


def read_run(run: Path, keys: Sequence[str]) -> tuple[SACGLAMConfig, SACGLAMConfig]:
    """The configuration of a run, as it was and with other values for some of its keys."""
    if not (run / "config.yaml").is_file():
        raise FileNotFoundError(f"run ({str(run)!r}) must be the folder of a run of sac_glam.py")
    schema = OmegaConf.structured(SACGLAMConfig)
    schema.env, schema.eval_splits = {}, {}  # those of the run alone
    saved = OmegaConf.merge(schema, OmegaConf.load(run / "config.yaml"), {"push": None})
    config = read_config(SACGLAMConfig, OmegaConf.merge(saved, OmegaConf.from_dotlist(list(keys))))
    before = OmegaConf.to_object(saved)
    if not any(key.startswith("env_class=") for key in keys):
        refuse_named_env(before.env_class, "the run's folder", "env_class")
    stored = [*STORED, *(["gamma"] if before.n_step > 1 else [])]
    for key in stored:
        if getattr(config, key) != getattr(before, key):
            raise ValueError(
                f"{key} ({getattr(config, key)}) must stay what it was ({getattr(before, key)}): "
                "it decided what was stored"
            )
    return before, config


if __name__ == "__main__":
    main()
