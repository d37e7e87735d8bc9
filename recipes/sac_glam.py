"""Trains a language-model agent with SAC-GLAM and hindsight on a text environment.

    python recipes/sac_glam.py                              # two cores, embedded model, minutes
    python recipes/sac_glam.py --config-name paper          # the paper's configuration
    python recipes/sac_glam.py hindsight=false seed=1       # any key of the configuration
    python recipes/sac_glam.py env=my_module:MyEnv          # any game; env.key=value, its arguments
    python recipes/sac_glam.py resume=runs/sac_glam/...     # go on with a run
    torchrun --nproc-per-node=2 recipes/sac_glam.py         # two processes, or two cards

The keys are explained in the files of recipes/config. A run writes metrics.csv, report.html (a page
of charts), checkpoints and the trained model to its folder. Ctrl-C saves a checkpoint.

SAC-GLAM: Gaven et al., 2024, https://arxiv.org/abs/2410.12481
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import hydra
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl._utils import timeit
from torchrl.collectors import Collector
from tqdm import tqdm

from torchrl_glam.models import CandidateActor, OnDevice, ScoresOnly, score_error
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
from torchrl_glam.runs.config import MAY_CHANGE_ON_RESUME, SACGLAMConfig, read_config, register
from torchrl_glam.runs.divergence import check_rewards, diverged
from torchrl_glam.runs.environments import make_env, make_eval_envs, make_probe
from torchrl_glam.runs.evaluation import EVAL_SEED, evaluate_splits
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.interrupt import Rescue, StopSignal
from torchrl_glam.runs.memory import bound_kernel_caches, describe_memory, memory_report
from torchrl_glam.runs.out_of_memory import HalvingPasses
from torchrl_glam.runs.probe import GoalCoverage
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.program import how_to_resume, program
from torchrl_glam.runs.records.metrics import EpisodeStatistics, MetricsTable, pace, policy_lag
from torchrl_glam.runs.results import save_results
from torchrl_glam.runs.run_folder import RunFolder
from torchrl_glam.text import describe_env

register("sac_glam", SACGLAMConfig, Path(__file__).parent / "config")


@program
@hydra.main(version_base=None, config_path="config/sac_glam", config_name="quickstart")
def main(cfg: SACGLAMConfig) -> None:
    config = read_config(SACGLAMConfig, cfg)

    # 1. Processes (one without torchrun), folder, device, seeds
    ranks = Ranks.join(config)
    mine = ranks.share(config)  # environments, batches and replay of this process
    folder = Path(config.resume or config.output)
    checkpoints = CheckpointManager(folder, keep=config.keep_checkpoints, ranks=ranks)
    claimed = RunFolder(folder)
    with ranks.together():
        if ranks.first:
            claimed.claim(resume=config.resume is not None)
    device = choose_device(config.device)
    bound_kernel_caches()
    seed_everything(config.seed)

    # 2. Language model, environments, policy
    autocast = choose_autocast(config.autocast, device)
    model, tokenizer = make_language_model(config, device, autocast)
    env = make_env(mine, tokenizer)
    game = describe_env(env)
    config.check_game(game)
    eval_envs = make_eval_envs(config, tokenizer)
    probe = make_probe(config, tokenizer)
    trunk, critic = make_trunk_and_critic(
        config, model, tokenizer, autocast, num_actions=game.num_actions
    )
    actor = CandidateActor()
    acting = TensorDictSequential(ScoresOnly(trunk), actor, selected_out_keys=["action"])
    policy = OnDevice(acting)  # environments and replay are in main memory

    # 3. Loss, target weights, optimizer
    options = {"num_actions": game.num_actions, "device": device, "group": ranks.group}
    loss, targets, optimizer = make_sac(config, trunk, actor, critic, **options)
    ranks.align(loss, mine.seed)
    average = WeightAverage([loss.trunk_params, loss.qvalue_network_params], config.average_decay)
    if ranks.first:
        print("Memory:", describe_memory(memory_report(loss, optimizer)))

    # 4. Replay, with hindsight and n-step returns
    buffer = make_buffer(mine, env, folder, game.goal_kind_prior, name=ranks.own("replay"))
    collector = Collector(  # without an end, at which it would close what is still to be saved
        env, policy, frames_per_batch=mine.update_every, auto_register_policy_transforms=False
    )

    # 5. Records, and an earlier run to go on with
    counters = {"steps": 0, "updates": 0, "seconds": 0.0}
    statistics = EpisodeStatistics(game.goal_kinds, success_key=game.success_key)
    coverage = GoalCoverage()
    table = MetricsTable(
        folder, config.loggers, "sac_glam", wandb=vars(config.wandb), write=ranks.first
    )
    state = {"loss": loss, "optimizer": optimizer, "buffer": buffer, "collector": collector}
    state |= dict(counters=counters, statistics=statistics, coverage=coverage, metrics=table)
    state |= {"average": average}
    if config.resume:
        checkpoints.load(state, asdict(config), MAY_CHANGE_ON_RESUME)
        trunk.check_exactness()
    if ranks.first:
        replace_file(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))

    passes = HalvingPasses(trunk, optimizer, config.max_tokens_per_pass)

    @passes
    def update(batch: TensorDict, update_actor: bool) -> tuple[TensorDict, dict[str, float]]:
        """One step of every optimizer and of the targets; one part of the batch at a time."""
        parts = passes.split(batch)
        shares = [len(part) / config.batch_size for part in parts]  # of all processes' rows
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

    # 6. Training
    bar = tqdm(
        total=config.total_steps,
        initial=counters["steps"],
        desc="sac_glam",
        unit="step",
        disable=not ranks.first,
    )
    ready, stopping, terms, since = False, False, None, dict(counters)
    rescue = Rescue(
        lambda: checkpoints.save(counters["steps"], state, asdict(config)), ranks.shared_errors
    )
    with StopSignal() as stop, rescue:
        started = time.perf_counter() - counters["seconds"]
        if not table.rows:
            table.add(0, evaluate_splits(policy, eval_envs, seed=EVAL_SEED, ranks=ranks))
        batches = rescue.batches(collector)
        while counters["steps"] < config.total_steps and not stopping:
            steps = next(batches)
            check_rewards(steps, counters)
            counters["steps"] += config.update_every
            statistics.add(steps)
            if config.hindsight:
                coverage.add(steps)
            # collecting and updating take turns: one policy made all of these steps
            now = torch.full(steps.shape, counters["updates"], dtype=torch.int32)
            with timeit("time/store"):
                buffer.extend(steps.set("recorded_at", now).reshape(mine.num_envs, -1))
            rescue.whole = True

            ready = ready or ranks.all(len(buffer) >= mine.batch_size)
            if ready:
                loss.target_entropy.fill_(config.target_entropy_at(counters["steps"]))
                for _ in range(config.num_updates):
                    with timeit("time/sample"):
                        batch = buffer.sample().to(device)
                    with timeit("time/update"):
                        warmed_up = counters["updates"] >= config.warmup_updates
                        terms, norms = update(batch, update_actor=warmed_up)
                    counters["updates"] += 1

            # 7. Metrics, evaluation, checkpoints
            bar.update(config.update_every)
            counters["seconds"] = time.perf_counter() - started
            at, row = counters["steps"], {}
            finished = at >= config.total_steps
            if at % config.log_every == 0 and terms is not None:
                ranks.hand_over(statistics, coverage)
                stored = buffer.storage[:]
                row = {
                    "hindsight_in_batch": batch["is_hindsight"].float().mean().item(),
                    "hindsight_in_buffer": stored["is_hindsight"].float().mean().item(),
                    "buffer_size": len(buffer) * ranks.size,
                    "score_error": score_error(trunk, batch),
                }
                row |= policy_lag(batch["recorded_at"], counters["updates"], "batch")
                row |= policy_lag(stored["recorded_at"], counters["updates"], "buffer")
                row = ranks.mean(row) | {k: v.item() for k, v in ranks.sum(terms).items()}
                row |= {f"grad_norm/{group}": norm for group, norm in norms.items()}
                row |= statistics.summary() | coverage.summary() | pace(counters, since)
                row |= timeit.todict() | timeit.todict(percall=False, prefix="seconds")
                timeit.erase()
                since = dict(counters)
                bar.set_postfix({k: f"{row[k]:.2f}" for k in ("success", "entropy") if k in row})
            if (config.eval_every and at % config.eval_every == 0) or finished:
                with average.applied():
                    row |= evaluate_splits(policy, eval_envs, seed=EVAL_SEED, ranks=ranks)
                row |= probe(policy, loss.policy_and_values) if probe else {}
            if row:
                table.add(at, row)
            save = config.checkpoint_every and at % config.checkpoint_every == 0
            stopping = ranks.any(stop.requested)  # all of them after the same round
            if save or finished or stopping:
                rescue.save()
    bar.close()
    collector.shutdown()
    if not ranks.first:
        return
    if stopping:
        print(f"Stopped at step {counters['steps']}; go on with: {how_to_resume(folder)}")
        return

    # 8. Results
    critics = loss.qvalue_network_params
    with average.applied():
        final = save_results(folder, table, model, tokenizer, eval_envs["train"], critics, config)
    print(f"Success after {counters['steps']} steps: {final}. Results in {folder}")


if __name__ == "__main__":
    main()
