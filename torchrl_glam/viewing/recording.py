"""Episodes recorded step by step: what the agent read, considered and did."""

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.models import Agent
from torchrl_glam.runs.records.statistics import goals_reached
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.text import decode_text, describe_env


@torch.no_grad()
def record(
    agent: Agent,
    env: EnvBase,
    *,
    seed: int = 0,
    deterministic: bool = False,
    max_steps: int | None = None,
) -> list[dict[str, Any]]:
    """Plays one episode in each instance of an environment and records every step.

    The same seed gives every agent the same goals and scenes.

    Args:
        agent: the agent that plays.
        env: text environment with the tokens that the agent reads, as
            :func:`~torchrl_glam.viewing.tokenize` makes it.
        seed: seed of environment and policy. Default: 0.
        deterministic: take the most likely action instead of sampling. Default: False.
        max_steps: most steps of a record. Default: the environment's limit, or 100.

    Returns:
        For each episode ``goal``, ``kind`` (index of its goal kind), ``success``, ``over`` (False
        where the record breaks off), and ``steps``: dictionaries with ``observation``,
        ``candidates`` (texts of the admissible ones), ``probability`` and, if the agent has such
        heads, ``value`` of each, or ``state_value``; ``chosen`` (index of the action taken),
        ``reward``, ``named`` (goals that the step reached), and for Playground-Text ``scene``.

    Raises:
        ValueError: if the agent's probabilities are not finite, or ``max_steps`` is below 1.

    Examples:
        >>> from torchrl_glam.models import zero_shot_agent
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.viewing import tokenize
        >>> agent, game = zero_shot_agent("tiny"), PlaygroundTextEnv(2, num_objects=3)
        >>> episodes = record(agent, tokenize(game, agent))
        >>> len(episodes), episodes[0]["steps"][0]["candidates"][-1]
        (2, 'Grasp')
    """
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps ({max_steps}) must be at least 1, or None")
    description = describe_env(env)
    limit = max_steps or description.max_steps or 100

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        """The agent as a policy that also writes its probabilities and values."""
        read = agent.read(tensordict)
        probability = read["probability"]
        if not probability.isfinite().all():
            raise ValueError("agent gives probabilities that are not finite")
        if deterministic:
            action = probability.argmax(-1)
        else:
            rows = probability.reshape(-1, probability.shape[-1])
            action = torch.multinomial(rows, 1).view(probability.shape[:-1])
        return tensordict.update(read).set("action", action)

    with seeded(seed):
        env.set_seed(seed)
        steps = env.rollout(limit, act, break_when_any_done=False)
    steps = steps.reshape(-1, steps.shape[-1])
    success = goals_reached(steps["next"], description.success_key)
    return [
        _episode(row, reached, description) for row, reached in zip(steps, success, strict=True)
    ]


def _episode(steps: TensorDictBase, reached: Tensor, description) -> dict[str, Any]:
    """The first episode of an instance; ``reached`` marks the step that reached the goal."""
    done = steps["next", "done"].flatten()
    length = int(done.to(torch.int8).argmax()) + 1 if done.any() else len(done)
    steps, reached = steps[:length], reached[:length]
    return {
        "goal": decode_text(steps["goal"][0]),
        "kind": int(steps["goal_kind"][0]),
        "success": bool(reached.any()),
        "over": bool(done.any()),
        "steps": [_step(step, description) for step in steps],
    }


def _step(step: TensorDictBase, description) -> dict[str, Any]:
    mask = step["action_mask"]
    slots = mask.nonzero().flatten().tolist()
    texts = decode_text(step["actions"])
    record = {
        "observation": decode_text(step["observation"]),
        "candidates": [texts[slot] for slot in slots],
        "probability": step["probability"][mask].tolist(),
        "chosen": slots.index(int(step["action"])),
        "reward": step["next", "reward"].item(),
        "named": _named(step["next"], description),
    }
    if "action_value" in step.keys():
        record["value"] = step["action_value"][mask].tolist()
    if "state_value" in step.keys():
        record["state_value"] = step["state_value"].item()
    if (scene := _scene(step)) is not None:
        record["scene"] = scene
    return record


def _named(after: TensorDictBase, description) -> list[str]:
    """The goals that the social partner named."""
    if (goals := after.get(("hindsight", "goal"), None)) is not None:
        return [goal for goal in decode_text(goals) if goal]
    ids = after.get(("hindsight", "goal_id"), None)
    if ids is None or description.goal_texts is None:
        return []
    return [description.goal_texts[index] for index in ids[ids >= 0].tolist()]


def _scene(step: TensorDictBase) -> dict[str, Any] | None:
    """The drawable part of a Playground-Text state; None for other environments."""
    values = [step.get(("state", k), None) for k in ("objects", "on", "holding", "grown")]
    if any(value is None for value in values):
        return None
    objects, on, holding, grown = values
    return {
        "objects": [OBJECTS[index] for index in objects.tolist()],
        "on": on.item(),
        "holding": holding.item(),
        "grown": grown.nonzero().flatten().tolist(),
    }
