"""Trains a language-model agent with SAC-GLAM while collectors in other processes play, on Ray.

    python recipes/sac_glam_ray.py                          # a learner and two collectors
    python recipes/sac_glam_ray.py --config-name paper num_collectors=4 collector_gpus=0.25
    python recipes/sac_glam_ray.py ray_address=auto         # collectors on a cluster's machines

It needs pip install "torchrl_glam[ray]". The keys are those of sac_glam.py, and of
torchrl_glam/runs/config/sac_glam_ray.py. As there, the learner makes num_updates updates with
each batch of update_every steps; the collectors play on, with weights at most max_policy_lag old.
A run leaves what sac_glam.py does. Ctrl-C saves a checkpoint, from which resume=FOLDER goes on.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import hydra
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torchrl._utils import timeit
from tqdm import tqdm

from torchrl_glam.models import CandidateActor, score_error
from torchrl_glam.objectives import WeightAverage
from torchrl_glam.runs.buffer import make_buffer
from torchrl_glam.runs.build import (
    choose_autocast,
    choose_device,
    make_language_model,
    make_sac,
    make_trunk_and_critic,
    seed_everything,
)
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.config import SACGLAMRayConfig, read_config, register
from torchrl_glam.runs.config.sac_glam_ray import RAY_MAY_CHANGE_ON_RESUME
from torchrl_glam.runs.divergence import check_rewards, diverged
from torchrl_glam.runs.environments import make_env, make_eval_envs, make_probe
from torchrl_glam.runs.evaluation import EVAL_SEED, evaluate_splits
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.interrupt import Rescue, StopSignal
from torchrl_glam.runs.memory import bound_kernel_caches, describe_memory, memory_report
from torchrl_glam.runs.out_of_memory import HalvingPasses
from torchrl_glam.runs.probe import GoalCoverage
from torchrl_glam.runs.processes.async_collection import AsyncCollectors
from torchrl_glam.runs.processes.ray_pool import RayPool, import_ray
from torchrl_glam.runs.processes.ray_worker import make_collector, make_policy, trained_weights
from torchrl_glam.runs.program import how_to_resume, program
from torchrl_glam.runs.records.metrics import EpisodeStatistics, MetricsTable, pace, policy_lag
from torchrl_glam.runs.results import save_results
from torchrl_glam.runs.run_folder import RunFolder
from torchrl_glam.text import describe_env

register("sac_glam", SACGLAMRayConfig, Path(__file__).parent / "config")


@program
@hydra.main(version_base=None, config_path="config/sac_glam", config_name="quickstart")
def main(cfg: SACGLAMRayConfig) -> None:
    config = read_config(SACGLAMRayConfig, cfg)
    import_ray()

    # 1. Folder, device, seeds
    folder = Path(config.resume or config.output)
    checkpoints = CheckpointManager(folder, keep=config.keep_checkpoints)
    claimed = RunFolder(folder)
    claimed.claim(resume=config.resume is not None)
    device = choose_device(config.device)
    bound_kernel_caches()
    seed_everything(config.seed)

    # 2. Language model, environments, policy
    autocast = choose_autocast(config.autocast, device)
    model, tokenizer = make_language_model(config, device, autocast)
    env = make_env(config, tokenizer)
    game = describe_env(env)
    config.check_game(game)
    eval_envs = make_eval_envs(config, tokenizer)
    probe = make_probe(config, tokenizer)
    trunk, critic = make_trunk_and_critic(
        config, model, tokenizer, autocast, num_actions=game.num_actions
    )
    policy = make_policy(trunk)

    # 3. Loss, target weights, optimizer
    options = {"num_actions": game.num_actions, "device": device}
    loss, targets, optimizer = make_sac(config, trunk, CandidateActor(), critic, **options)
    average = WeightAverage([loss.trunk_params, loss.qvalue_network_params], config.average_decay)
    print("Memory:", describe_memory(memory_report(loss, optimizer)))

    # 4. Replay, with hindsight and n-step returns
    buffer = make_buffer(config, env, folder, game.goal_kind_prior)
    hindsight = buffer.transform[-1]

    # 5. Collectors in other processes
    make = partial(make_collector, config)
    resources = {"num_cpus": config.collector_cpus, "num_gpus": config.collector_gpus}
    collectors = AsyncCollectors(
        RayPool(make, config.num_collectors, config.ray_address, **resources),
        updates_per_batch=config.num_updates,
        max_policy_lag=config.max_policy_lag,
        timeout=config.collector_timeout,
        forget=hindsight.forget,
    )

    # 6. Records, and an earlier run to go on with
    counters = {"steps": 0, "updates": 0, "seconds": 0.0}
    statistics = EpisodeStatistics(game.goal_kinds, success_key=game.success_key)
    coverage = GoalCoverage()
    table = MetricsTable(folder, config.loggers, "sac_glam_ray", wandb=vars(config.wandb))
    state = {"loss": loss, "optimizer": optimizer, "buffer": buffer, "collectors": collectors}
    state |= dict(counters=counters, statistics=statistics, coverage=coverage, metrics=table)
    state |= {"average": average}
    if config.resume:
        checkpoints.load(state, asdict(config), RAY_MAY_CHANGE_ON_RESUME)
        trunk.check_exactness()
        hindsight.clear()  # nobody is left to end those episodes
    replace_file(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))

    passes = HalvingPasses(trunk, optimizer, config.max_tokens_per_pass)

    @passes
    def update(batch: TensorDict, update_actor: bool) -> tuple[TensorDict, dict[str, float]]:
        """One step of every optimizer and of the targets; one part of the batch at a time."""
        parts = passes.split(batch)
        shares = [len(part) / len(batch) for part in parts]
        metrics = []

        try:
            for part, share in zip(parts, shares, strict=True):
                terms = loss(part)
                metrics.append(terms.detach() * share)
                optimizer.backward(terms, share, update_actor=update_actor)
            norms = optimizer.step()
        except FloatingPointError as error:
            raise diverged(error, counters, config, checkpoints.latest()) from error
        targets.step()
        average.update()
        return torch.stack(metrics).sum(0), norms

    # 7. Training
    bar = tqdm(total=config.total_steps, initial=counters["steps"], desc="sac_glam", unit="step")
    terms, since = None, dict(counters)
    rescue = Rescue(lambda: checkpoints.save(counters["steps"], state, asdict(config)))
    with StopSignal() as stop, rescue, collectors:
        started = time.perf_counter() - counters["seconds"]
        if not table.rows:
            table.add(0, evaluate_splits(policy, eval_envs, seed=EVAL_SEED))
        while counters["steps"] < config.total_steps:
            collectors.publish(trained_weights(policy), counters["updates"])
            with timeit("time/wait"):
                steps = collectors.next()
            rescue.whole = False
            check_rewards(steps, counters)
            counters["steps"] += steps.numel()
            statistics.add(steps)
            if config.hindsight:
                coverage.add(steps)
            with timeit("time/store"):
                buffer.extend(steps)
            rescue.whole = True
            if len(buffer) >= config.batch_size:
                loss.target_entropy.fill_(config.target_entropy_at(counters["steps"]))
                for _ in range(config.num_updates):
                    with timeit("time/sample"):
                        batch = buffer.sample().to(device)
                    with timeit("time/update"):
                        terms, norms = update(batch, counters["updates"] >= config.warmup_updates)
                    counters["updates"] += 1

            # 8. Metrics, evaluation, checkpoints
            bar.update(steps.numel())
            counters["seconds"] = time.perf_counter() - started
            at, row = counters["steps"], {}
            finished = at >= config.total_steps
            if at % config.log_every == 0 and terms is not None:
                row = statistics.summary() | {k: v.item() for k, v in terms.items()}
                row |= {f"grad_norm/{group}": norm for group, norm in norms.items()}
                row |= {
                    "hindsight_in_batch": batch["is_hindsight"].float().mean().item(),
                    "hindsight_in_buffer": buffer.storage[:]["is_hindsight"].float().mean().item(),
                    "buffer_size": len(buffer),
                    "score_error": score_error(trunk, batch),
                }
                row |= policy_lag(batch["recorded_at"], counters["updates"], "batch")
                row |= policy_lag(buffer.storage[:]["recorded_at"], counters["updates"], "buffer")
                row |= pace(counters, since) | collectors.summary() | coverage.summary()
                row |= timeit.todict() | timeit.todict(percall=False, prefix="seconds")
                seconds = timeit.todict(percall=False)
                row["learner_busy"] = 1 - seconds["time/wait"] / sum(seconds.values())
                timeit.erase()
                since = dict(counters)
                bar.set_postfix({k: f"{row[k]:.2f}" for k in ("success", "entropy") if k in row})
            if (config.eval_every and at % config.eval_every == 0) or finished:
                with average.applied():
                    row |= evaluate_splits(policy, eval_envs, seed=EVAL_SEED)
                row |= probe(policy, loss.policy_and_values) if probe else {}
            if row:
                table.add(at, row)
            save = config.checkpoint_every and at % config.checkpoint_every == 0
            if save or finished or stop.requested:
                rescue.save()
            if stop.requested:
                break
    bar.close()
    if stop.requested:
        print(f"Stopped at step {counters['steps']}; go on with: {how_to_resume(folder)}")
        return

    # 9. Results
    critics = loss.qvalue_network_params
    with average.applied():
        final = save_results(folder, table, model, tokenizer, eval_envs["train"], critics, config)
    print(f"Success after {counters['steps']} steps: {final}. Results in {folder}")


if __name__ == "__main__":
    main()
