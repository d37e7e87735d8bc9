"""Trains a language-model agent with SAC-GLAM and hindsight on a text environment.

    python recipes/sac_glam.py                              # two cores, embedded model, minutes
    python recipes/sac_glam.py --config-name paper          # the paper's configuration
    python recipes/sac_glam.py replay=uniform seed=1        # any group or key of the configuration
    python recipes/sac_glam.py goals=learned_progress       # goals by where success changes
    python recipes/sac_glam.py hindsight_by=judge           # hindsight without a social partner
    python recipes/sac_glam.py env=my_module:MyEnv          # any game; env.key=value, its arguments
    python recipes/sac_glam.py resume=runs/sac_glam/...     # resume a run
    torchrun --nproc-per-node=2 recipes/sac_glam.py         # two processes, or two GPUs

The keys are explained in recipes/config. A run writes metrics.csv, report.html (a page of charts),
checkpoints and the trained model to its folder. Ctrl-C saves a checkpoint.

SAC-GLAM: Gaven et al., 2024, https://arxiv.org/abs/2410.12481
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from tensordict.nn import TensorDictSequential
from torchrl._utils import timeit
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers import Sampler
from torchrl.envs.transforms import Compose
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
    ScoresOnly,
    make_critic,
    make_trunk,
    score_error,
    with_random_actions,
)
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.replay import (
    GoalBalancedSampler,
    GoalKindSampler,
    HindsightRatioSampler,
    HindsightTransform,
    TokenNoise,
)
from torchrl_glam.report.record import RunRecord
from torchrl_glam.runs.config import SACGLAMConfig, read_config, register
from torchrl_glam.runs.goals import PursuedGoals
from torchrl_glam.runs.program import program
from torchrl_glam.runs.records.statistics import of_replay
from torchrl_glam.runs.run import Run
from torchrl_glam.text import EnvDescription

register("sac_glam", SACGLAMConfig, Path(__file__).parents[3] / "config")


def make_agent(run: Run, config: SACGLAMConfig) -> SimpleNamespace:
    """Model, environment, policy, loss, target weights and optimizer."""
    model, tokenizer = run.load_model()
    # One pass of the language model a state: scores for the actor, embeddings for the critic
    trunk = make_trunk(model, tokenizer, **run.scoring(tokenizer))
    goals = PursuedGoals(run.mine, tokenizer, trunk)
    env = run.make_envs(tokenizer, goals)
    n, sizes = run.game.num_actions, config.critic_hidden_sizes
    trunk, critic = make_critic(trunk, config.critic_input, num_actions=n, hidden_sizes=sizes)
    actor = CandidateActor()
    acting = TensorDictSequential(ScoresOnly(trunk), actor, selected_out_keys=["action"])
    policy = OnDevice(acting)  # environments and replay buffer are in main memory
    explorer = with_random_actions(policy, n, config.exploration)

    terms = ("alpha_init", "alpha_end", "target_entropy", "target_entropy_weight")
    terms += ("munchausen", "critic_backprop")
    loss = SACGLAMLoss(trunk, actor, critic, num_actions=n, **config.pick(*terms)).to(run.device)
    loss.make_value_estimator(gamma=config.gamma)
    targets = SoftUpdate(loss, tau=config.tau)
    optimizer = SharedTrunkOptimizer(
        loss,
        separate=config.separate_optimizers,
        group=run.ranks.group,
        **config.pick("lr_trunk", "lr_heads", "max_grad_norm"),
    )
    kept = {"loss": loss, "optimizer": optimizer}  # by checkpoints
    parts = {"model": model, "env": env, "goals": goals, "trunk": trunk, "targets": targets}
    parts["noise"] = TokenNoise(config.token_noise, tokenizer.pad_token_id)
    return SimpleNamespace(policy=policy, explorer=explorer, kept=kept, **kept, **parts)


class Early(HindsightTransform):
    """What was played goes to the buffer at once, relabelled rows when the episode ends (n = 1)."""

    def _inv_call(self, tensordict):
        self._gather(tensordict)
        slots = torch.arange(self._log._begin, self._log.length)
        rows = [self._copy(slots, len(slots))]
        episodes = self._log.finished()
        if episodes is not None:
            rows.append(self._rows_of(episodes)[len(episodes.slots) :])
            self._log.forget(episodes.slots)
        return torch.cat(rows)


def make_buffer(
    config: SACGLAMConfig, game: EnvDescription, noise: TokenNoise
) -> TensorDictReplayBuffer:
    """The replay buffer, for what the environment says of its goals."""
    hindsight = Early(
        "all" if config.hindsight else "none", seed=config.seed, capacity=config.capacity
    )
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(config.capacity),
        sampler=make_sampler(config, game),
        # inverse transforms run last to first: episodes are relabelled, then cut into n steps
        transform=Compose(hindsight, noise),
        batch_size=config.batch_size,
        generator=torch.Generator().manual_seed(config.seed),
    )


def make_sampler(config: SACGLAMConfig, game: EnvDescription) -> Sampler:
    """Draws batches as ``sampling`` says."""
    if config.sampling == "uniform" or not config.hindsight:
        return RandomSampler()
    if config.sampling == "ratio":
        return HindsightRatioSampler(config.hindsight_ratio)
    ratio = config.hindsight_ratio if "ratio" in config.sampling else None
    alike = "kinds" in config.sampling  # in hindsight; what was pursued, as it was
    prior = [1.0] * len(game.goal_kinds) if alike else game.goal_kind_prior or len(game.goal_kinds)
    kind = GoalBalancedSampler if "goals" in config.sampling else GoalKindSampler
    return kind(prior, ratio, hindsight_only=alike)


def learn(run: Run, agent: SimpleNamespace, buffer: TensorDictReplayBuffer, more: Callable = dict):
    """A round of updates; ``more`` gives further metrics for its row."""
    config = run.config
    done = run.counters["steps"] / config.total_steps
    agent.loss.schedule(done)
    agent.optimizer.scale_rates(run.rate)
    first, last = run.mine.hindsight_ratio, run.mine.hindsight_ratio_end
    if last is not None and getattr(buffer.sampler, "ratio", None) is not None:
        buffer.sampler.ratio = first + done * (last - first)
    for _ in range(config.num_updates):
        with timeit("time/sample"):
            batch = buffer.sample().to(run.device)
        warmed_up = run.counters["updates"] >= config.warmup_updates
        terms, norms = run.step(agent.loss, batch, update_actor=warmed_up)
        agent.targets.step()
    if run.logs:
        means = {"buffer_size": len(buffer) * run.ranks.size}
        means["score_error"] = score_error(agent.trunk, batch)
        for name, rows in (("batch", batch), ("buffer", buffer.storage[:])):
            means |= of_replay(rows, run.counters["updates"], name, run.game.goal_kinds)
        grads = {f"grad_norm/{group}": norm for group, norm in norms.items()}
        run.log({**run.total(terms), **grads, **more()}, means)


@program(config_path="../../../config/sac_glam", config_name="quickstart")
def main(cfg: SACGLAMConfig) -> None:
    config = read_config(SACGLAMConfig, cfg)
    with Run(config, "sac_glam", record=RunRecord) as run:
        agent = make_agent(run, config)
        buffer = make_buffer(run.mine, run.game, agent.noise)
        collector = run.collect(agent.env, agent.explorer, agent.goals.judge)
        run.keeps(**agent.kept, buffer=buffer, collector=collector, goals=agent.goals)

        heads = agent.loss.policy_and_values
        for steps in run.rounds(collector, agent.policy, heads=heads):
            agent.goals.update(steps)
            with timeit("time/store"):
                buffer.extend(steps)
            if run.ranks.all(len(buffer) >= run.mine.batch_size):
                learn(run, agent, buffer)
        run.finish(agent.model, agent.loss.qvalue_network_params)


if __name__ == "__main__":
    main()
