"""Success of a policy on one episode in each of an environment's instances."""

import time
from collections.abc import Callable, Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.records.statistics import goals_reached
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.runs.success import ALL, Result
from torchrl_glam.text import describe_env, draw_admissible

Policy = Callable[[TensorDictBase], TensorDictBase]
"""Writes the action into the states that it is given."""

EVAL_SEED = 10_000
"""Seed of the recipes' evaluations: all of them play the same goals and scenes."""
LONGEST_EPISODE = 10_000
"""Steps after which an episode is taken for one that never ends."""


def evaluate(
    policy: Policy | None, env: EnvBase, *, seed: int, deterministic: bool = False
) -> dict[str, float]:
    """Plays exactly one episode in every instance of the environment.

    Counting the episodes that end first would favour short ones, and so success. The same seed
    gives the same goals and scenes; the global random state is left as it was.

    Args:
        policy: is given the running instances only. ``None``: admissible actions at random.
        env: a vectorised text environment, one episode an instance.
        seed: of environment and policy.
        deterministic: take the most likely action instead of sampling. Default False.

    Returns:
        ``success`` (share of all episodes), ``success/<kind>`` for every kind that occurred, and
        ``length`` (mean number of steps of an episode).

    Raises:
        ValueError: as ``goals_reached`` raises it.

    Examples:
        >>> from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=8, text=False)
        >>> evaluate(OraclePolicy(env.goals), env, seed=0)["success"]
        1.0
    """
    reached, length, kind = play_episodes(policy, env, seed=seed, deterministic=deterministic)
    out = {"success": reached.float().mean().item(), "length": length.float().mean().item()}
    for index, name in enumerate(describe_env(env).goal_kinds):
        chosen = reached[kind == index]
        if chosen.numel():
            out[f"success/{name}"] = chosen.float().mean().item()
    return out


@torch.no_grad()
def play_episodes(
    policy: Policy | None, env: EnvBase, *, seed: int, deterministic: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The episodes of :func:`evaluate` one by one; its arguments.

    Returns:
        Whether each reached its goal (bool), its steps, and the kind of its goal, ``[B]`` all.
    """
    success_key = describe_env(env).success_key
    mode = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    with seeded(seed), set_exploration_type(mode):
        env.set_seed(seed)
        state = env.reset()
        kind = state["goal_kind"].clone()
        running = torch.ones(env.batch_size, dtype=torch.bool, device=kind.device)
        reached, length = torch.zeros_like(running), torch.zeros_like(kind, dtype=torch.long)
        while running.any():
            if length.max() >= LONGEST_EPISODE:
                raise ValueError(
                    f"env has an episode of {LONGEST_EPISODE:,} steps that does not end: give the "
                    "environment a limit, such as max_steps of TextEnvWrapper"
                )
            # Finished instances stand still, where whole workers of a batched environment are
            # finished; the others begin another episode, which does not count.
            moves = (
                running if running.ndim < 2 else running.any(-1, keepdim=True).expand_as(running)
            )
            if (begun := moves & ~running).any():
                reset = state.empty().set("_reset", begun.unsqueeze(-1))
                state = env.reset(state.update(reset))
            if not moves.all():
                state.set("_step", moves.unsqueeze(-1))
            mask = state["action_mask"]
            action = mask.to(torch.int8).argmax(-1)
            if policy is None:
                action = draw_admissible(mask)
            else:
                action[running] = policy(state[running])["action"]
            step = env.step(state.set("action", action))["next"]
            length += running
            reached |= running & goals_reached(step, success_key)
            running &= ~step["done"].squeeze(-1)
            state = step_mdp(step.new_empty(step.batch_size).set("next", step))
        return reached, length, kind


def play_randomly(env: EnvBase, *, seconds: float = 60.0) -> Result:
    """Plays admissible actions at random, for a line to compare with.

    Args:
        env: a vectorised text environment; it is played in rounds of one episode an instance, to
            2,000 episodes at least, which give success to within 0.02.
        seconds: after which no further round begins, for slow games. Default: 60.

    Returns:
        The result, of policy ``"random play"`` and split ``"train"``.
    """
    successes, played, steps, seed, started = 0, 0, 0, EVAL_SEED, time.monotonic()
    while played == 0 or (played < 2_000 and time.monotonic() - started < seconds):
        reached, length, _ = play_episodes(None, env, seed=seed)
        successes, played = successes + int(reached.sum()), played + reached.numel()
        steps, seed = steps + int(length.sum()), seed + 1
    return Result("random play", "train", 0, ALL, played, successes, steps / played)


def evaluate_splits(policy: Policy, envs: Mapping[str, EnvBase], ranks: Ranks) -> dict[str, float]:
    """:func:`evaluate`, sampled and greedy, on environments by name, with :data:`EVAL_SEED`.

    Several processes take turns, an environment and mode each, and all get all results:
    ``eval/<name>/sampled/...`` and ``eval/<name>/greedy/...``.
    """
    out = {}
    jobs = [(name, mode) for name in envs for mode in ("sampled", "greedy")]
    for name, mode in jobs[ranks.rank :: ranks.size]:
        results = evaluate(policy, envs[name], seed=EVAL_SEED, deterministic=mode == "greedy")
        out |= {f"eval/{name}/{mode}/{key}": value for key, value in results.items()}
    return {name: value for part in ranks.gather(out) for name, value in part.items()}
