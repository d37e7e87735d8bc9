"""Trains a language-model agent with PPO-GLAM on a text environment, with or without hindsight.

    python recipes/ppo_glam.py                              # two cores, embedded model, minutes
    python recipes/ppo_glam.py --config-name paper          # the paper's configuration
    python recipes/ppo_glam.py hindsight=aligned seed=1     # any key of the configuration
    python recipes/ppo_glam.py env=my_module:MyEnv          # any game; env.key=value, its arguments
    python recipes/ppo_glam.py resume=runs/ppo_glam/...     # go on with a run
    torchrun --nproc-per-node=2 recipes/ppo_glam.py         # two processes, or two cards

The keys are explained in the files of recipes/config. A run writes metrics.csv, report.html (a page
of charts), checkpoints and the trained model to its folder. Ctrl-C saves a checkpoint.

PPO-GLAM: Carta et al., 2023, https://arxiv.org/abs/2302.02662, and, with hindsight, SAC-GLAM,
Appendix G: Gaven et al., 2024, https://arxiv.org/abs/2410.12481
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
from torchrl.envs.transforms import Compose
from tqdm import tqdm

from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
    ScoresOnly,
    ValueHead,
    score_error,
)
from torchrl_glam.objectives import ClippedAdam, PPOGLAMLoss
from torchrl_glam.replay import HindsightTransform, SubgoalFilter, close_rollout
from torchrl_glam.runs.build import (
    choose_autocast,
    choose_device,
    make_language_model,
    make_recipe_trunk,
    seed_everything,
)
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.config import MAY_CHANGE_ON_RESUME, PPOGLAMConfig, read_config, register
from torchrl_glam.runs.divergence import check_rewards, diverged
from torchrl_glam.runs.environments import make_env, make_eval_envs
from torchrl_glam.runs.evaluation import EVAL_SEED, evaluate_splits
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.interrupt import Rescue, StopSignal
from torchrl_glam.runs.memory import bound_kernel_caches
from torchrl_glam.runs.out_of_memory import HalvingPasses
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.program import how_to_resume, program
from torchrl_glam.runs.records.metrics import EpisodeStatistics, MetricsTable, pace
from torchrl_glam.runs.results import save_results
from torchrl_glam.runs.run_folder import RunFolder
from torchrl_glam.text import describe_env

register("ppo_glam", PPOGLAMConfig, Path(__file__).parent / "config")


@program
@hydra.main(version_base=None, config_path="config/ppo_glam", config_name="quickstart")
def main(cfg: PPOGLAMConfig) -> None:
    config = read_config(PPOGLAMConfig, cfg)

    # 1. Processes (one without torchrun), folder, device, seeds
    ranks = Ranks.join(config)
    mine = ranks.share(config)  # environments, rollouts and batches of this process
    folder = Path(config.resume or config.output)
    checkpoints = CheckpointManager(folder, keep=config.keep_checkpoints, ranks=ranks)
    claimed = RunFolder(folder)
    with ranks.together():
        if ranks.first:
            claimed.claim(resume=config.resume is not None)
    device = choose_device(config.device)
    bound_kernel_caches()
    seed_everything(config.seed)

    # 2. Language model, environments, policy (which records values too: nothing is read twice)
    autocast = choose_autocast(config.autocast, device)
    model, tokenizer = make_language_model(config, device, autocast)
    trunk = ScoresOnly(make_recipe_trunk(config, model, tokenizer, autocast))
    goal_ids = ("goal_id", ("hindsight", "goal_id")) if config.hindsight == "aligned" else ()
    env = make_env(mine, tokenizer, keep=goal_ids)
    game = describe_env(env)
    config.check_game(game)
    eval_envs = make_eval_envs(config, tokenizer)
    actor = CandidateActor(return_log_prob=True)
    value = ValueHead(trunk.trunk.embedding_dim, config.critic_hidden_sizes).to(device)
    recorded = ["log_likelihood", "action", "action_log_prob", "state_value"]
    acting = TensorDictSequential(trunk, actor, value, selected_out_keys=recorded)
    policy = OnDevice(acting)  # environments are in main memory

    # 3. Loss and optimizer
    loss = PPOGLAMLoss(
        trunk,
        actor,
        value,
        objective=config.objective,
        clip_center=config.clip_center,
        clip_epsilon=config.clip_epsilon,
        kl_coeff=config.kl_coeff,
        entropy_coeff=config.entropy_coeff,
        critic_coeff=config.critic_coeff,
        critic_backprop=config.critic_backprop,
    ).to(device)
    loss.make_value_estimator(gamma=config.gamma, lmbda=config.lmbda)
    groups = [
        {"params": list(loss.trunk_parameters()), "lr": config.lr_trunk},
        {"params": list(loss.critic_parameters()), "lr": config.lr_heads},
    ]
    optimizer = ClippedAdam(groups, max_grad_norm=config.max_grad_norm, group=ranks.group)
    ranks.align(loss, mine.seed)

    # 4. Rollouts, as rows of finished runs, and again under goals that they reached
    collector = Collector(  # without an end, at which it would close what is still to be saved
        env, policy, frames_per_batch=mine.update_every, auto_register_policy_transforms=False
    )
    to_rows = Compose(HindsightTransform("none" if config.hindsight == "none" else "all"))
    if config.hindsight == "aligned":  # inverse transforms run last to first
        to_rows.append(SubgoalFilter(game.is_subgoal))

    # 5. Records, and an earlier run to go on with
    counters = {"steps": 0, "updates": 0, "seconds": 0.0}
    statistics = EpisodeStatistics(game.goal_kinds, success_key=game.success_key)
    table = MetricsTable(
        folder, config.loggers, "ppo_glam", wandb=vars(config.wandb), write=ranks.first
    )
    state = {"loss": loss, "optimizer": optimizer, "collector": collector}
    state |= {"counters": counters, "statistics": statistics, "metrics": table}
    if config.resume:
        checkpoints.load(state, asdict(config), MAY_CHANGE_ON_RESUME)
        trunk.trunk.check_exactness()
    if ranks.first:
        replace_file(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))

    passes = HalvingPasses(trunk.trunk, optimizer, config.max_tokens_per_pass)

    @passes
    def update(rows: TensorDict, size: int) -> TensorDict:
        """One step of the optimizer; one part of the rows in memory at a time.

        Of the ``size`` rows of all processes these are this one's. Returns its part of the metrics.
        """
        metrics = []
        try:
            for part in passes.split(rows):
                terms, share = loss(part), len(part) / size
                optimizer.backward(terms, share)
                metrics.append(terms.detach() * share)
            norm = optimizer.step()
        except FloatingPointError as error:
            raise diverged(error, counters, config, checkpoints.latest()) from error
        counters["updates"] += 1
        return torch.stack(metrics).sum(0).set("grad_norm", torch.tensor(norm / ranks.size))

    # 6. Training
    shown = {"unit": "step", "initial": counters["steps"], "disable": not ranks.first}
    bar = tqdm(desc="ppo_glam", total=config.total_steps, **shown)
    stopping, since = False, dict(counters)
    rescue = Rescue(
        lambda: checkpoints.save(counters["steps"], state, asdict(config)), ranks.shared_errors
    )
    with StopSignal() as stop, rescue:
        started = time.perf_counter() - counters["seconds"]
        if not table.rows:
            table.add(0, evaluate_splits(policy, eval_envs, seed=EVAL_SEED, ranks=ranks))
        rollouts = rescue.batches(collector)
        while counters["steps"] < config.total_steps and not stopping:
            rollout = next(rollouts)
            check_rewards(rollout, counters)
            counters["steps"] += config.update_every
            statistics.add(rollout)
            rescue.whole = True  # only weights and counters are kept
            with timeit("time/prepare"):
                rollout = rollout.reshape(mine.num_envs, -1)
                rows = to_rows.inv(close_rollout(rollout)).to(device)
                rows = loss.prepare(rows)
                if config.normalize_advantage:
                    rows["advantage"] = ranks.standardise(rows["advantage"])
                hindsight = rows["is_hindsight"].float().mean().item()
                rows = rows.select(*loss.in_keys)
            with timeit("time/update"):
                for _ in range(config.num_epochs):
                    # all rows once, but for those that fill no batch
                    batches = ranks.minibatches(len(rows), config.batch_size)
                    terms = [update(rows[part.to(device)], size) for part, size in batches]
            terms = ranks.sum(torch.stack(terms).mean(0))  # of the last epoch
            if config.objective == "kl" and config.kl_target is not None:
                loss.adapt_kl_coeff(terms["kl"].item(), config.kl_target)

            # 7. Metrics, evaluation, checkpoints
            bar.update(config.update_every)
            counters["seconds"] = time.perf_counter() - started
            at, row = counters["steps"], {}
            finished = at >= config.total_steps
            if at % config.log_every == 0:
                ranks.hand_over(statistics)
                row = {"hindsight_in_batch": hindsight, "score_error": score_error(trunk, rows)}
                row = ranks.mean(row) | {k: v.item() for k, v in terms.items()}
                row |= statistics.summary() | pace(counters, since)
                row |= timeit.todict() | timeit.todict(percall=False, prefix="seconds")
                timeit.erase()
                since = dict(counters)
                bar.set_postfix({k: f"{row[k]:.2f}" for k in ("success", "entropy") if k in row})
            if (config.eval_every and at % config.eval_every == 0) or finished:
                row |= evaluate_splits(policy, eval_envs, seed=EVAL_SEED, ranks=ranks)
            if row:
                table.add(at, row)
            save = config.checkpoint_every and at % config.checkpoint_every == 0
            stopping = ranks.any(stop.requested)  # all of them after the same round
            if save or finished or stopping:
                rescue.save()
    bar.close()
    collector.shutdown()
    if stopping and ranks.first:
        print(f"Stopped at step {counters['steps']}; go on with: {how_to_resume(folder)}")
    if stopping or not ranks.first:
        return

    # 8. Results
    critics = TensorDict.from_module(loss.value).unsqueeze(0)
    final = save_results(folder, table, model, tokenizer, eval_envs["train"], critics, config)
    print(f"Success after {counters['steps']} steps: {final}. Results in {folder}")


if __name__ == "__main__":
    main()
