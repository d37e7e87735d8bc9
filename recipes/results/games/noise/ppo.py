"""Trains a language-model agent with PPO-GLAM on a text environment, with or without hindsight.

    python recipes/ppo_glam.py                              # two cores, embedded model, minutes
    python recipes/ppo_glam.py --config-name paper          # the paper's configuration
    python recipes/ppo_glam.py hindsight=aligned seed=1     # any key of the configuration
    python recipes/ppo_glam.py goals=learned_progress       # goals by where success changes
    python recipes/ppo_glam.py env=my_module:MyEnv          # any game; env.key=value, its arguments
    python recipes/ppo_glam.py resume=runs/ppo_glam/...     # resume a run
    torchrun --nproc-per-node=2 recipes/ppo_glam.py         # two processes, or two GPUs

The keys are explained in recipes/config. A run leaves what one of sac_glam.py does.

PPO-GLAM: Carta et al., 2023, https://arxiv.org/abs/2302.02662, and, with hindsight, SAC-GLAM,
Appendix G: Gaven et al., 2024, https://arxiv.org/abs/2410.12481
"""

from pathlib import Path
from statistics import fmean

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl._utils import timeit
from torchrl.envs.transforms import Compose

from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
    ScoresOnly,
    ValueHead,
    make_trunk,
    score_error,
)
from torchrl_glam.objectives import ClippedAdam, PPOGLAMLoss
from torchrl_glam.replay import HindsightTransform, SubgoalFilter, close_rollout
from torchrl_glam.report.record import RunRecord
from torchrl_glam.runs.config import PPOGLAMConfig, read_config, register
from torchrl_glam.runs.goals import PursuedGoals
from torchrl_glam.runs.processes.rows import minibatches, standardise
from torchrl_glam.runs.program import program
from torchrl_glam.runs.run import Run

register("ppo_glam", PPOGLAMConfig, Path(__file__).parents[3] / "config")


def noisy(batch, trunk):
    import os

    word = float(os.environ.get("WORD", 0))
    batch = batch.clone()
    tokens, pad = batch["observation_tokens"], trunk.prompt.pad_id
    seen = tokens[tokens != pad]
    swap = (torch.rand(tokens.shape) < word) & (tokens != pad)
    tokens[swap] = seen[torch.randint(len(seen), (int(swap.sum()),))]
    return batch


@program(config_path="../../../config/ppo_glam", config_name="quickstart")
def main(cfg: PPOGLAMConfig) -> None:
    config = read_config(PPOGLAMConfig, cfg)
    with Run(config, "ppo_glam", record=RunRecord) as run:
        # 1. Policy, which records values too: nothing is read twice
        model, tokenizer = run.load_model()
        scores = make_trunk(model, tokenizer, **run.scoring(tokenizer))
        trunk = ScoresOnly(scores)
        goal_ids = ("goal_id", ("hindsight", "goal_id")) if config.hindsight == "aligned" else ()
        goals = PursuedGoals(run.mine, tokenizer, scores)
        env = run.make_envs(tokenizer, goals, keep=goal_ids)
        actor = CandidateActor(return_log_prob=True)
        value = ValueHead(scores.embedding_dim, config.critic_hidden_sizes).to(run.device)
        recorded = ["log_likelihood", "action", "action_log_prob", "state_value"]
        policy = OnDevice(TensorDictSequential(trunk, actor, value, selected_out_keys=recorded))

        # 2. Loss and optimizer
        terms = ("objective", "clip_center", "clip_epsilon", "kl_coeff", "entropy_coeff")
        options = config.pick(*terms, "critic_coeff")
        loss = PPOGLAMLoss(trunk, actor, value, **options).to(run.device)
        loss.make_value_estimator(gamma=config.gamma, lmbda=config.lmbda)
        groups = [
            {"params": list(loss.trunk_parameters()), "lr": config.lr_trunk},
            {"params": list(loss.critic_parameters()), "lr": config.lr_heads},
        ]
        optimizer = ClippedAdam(groups, max_grad_norm=config.max_grad_norm, group=run.ranks.group)

        # 3. Rollouts, as rows of finished runs, and again under goals that they reached
        collector = run.collect(env, policy, goals.judge)
        to_rows = Compose(HindsightTransform("none" if config.hindsight == "none" else "all"))
        if config.hindsight == "aligned":  # inverse transforms run last to first
            to_rows.append(SubgoalFilter(run.game.is_subgoal))
        run.keeps(loss=loss, optimizer=optimizer, collector=collector, goals=goals)

        # 4. Training
        for rollout in run.rounds(collector, policy):
            goals.update(rollout)
            with timeit("time/prepare"):
                rows = loss.prepare(to_rows.inv(close_rollout(rollout)).to(run.device))
                if config.normalize_advantage:
                    rows["advantage"] = standardise(rows["advantage"], run.ranks)
                hindsight = rows["is_hindsight"].float().mean().item()
                rows = rows.select(*loss.in_keys)
            optimizer.scale_rates(run.rate)
            for _ in range(config.num_epochs):
                # all rows once, but for those that fill no batch
                batches = minibatches(len(rows), config.batch_size, run.ranks)
                updates = [
                    run.step(loss, noisy(rows[part.to(run.device)], scores), n)
                    for part, n in batches
                ]
            terms, norms = zip(*updates, strict=True)  # of the last epoch
            metrics = run.total(torch.stack(terms).mean(0))
            metrics["grad_norm"] = fmean(norm["all"] for norm in norms)
            if config.objective == "kl" and config.kl_target is not None:
                loss.adapt_kl_coeff(metrics["kl"], config.kl_target)
            if run.logs:
                error = score_error(trunk, rows)
                run.log(metrics, {"hindsight_in_batch": hindsight, "score_error": error})
        run.finish(model, critics=TensorDict.from_module(loss.value).unsqueeze(0))


if __name__ == "__main__":
    main()
