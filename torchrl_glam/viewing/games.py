"""The environment of an agent's card, to be played again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv, TokenizeText, token_lengths
from torchrl_glam.models import Agent


def make_game(
    settings: Mapping[str, Any],
    *,
    num_envs: int,
    split: str = "train",
    seed: int = 0,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> EnvBase:
    """The environment that settings describe, with its text.

    Args:
        settings: ``environment`` of an :class:`~torchrl_glam.models.AgentCard`.
        num_envs: instances.
        split: ``"train"`` or ``"test"`` goals. Default: ``"train"``.
        seed: of goals and scenes. Default: 0.
        device: of its tensors. Default: the CPU.
        **kwargs: settings in place of those given, and other arguments of the environment.

    Raises:
        ValueError: if it has no such setting, or as the environment raises it.

    Examples:
        >>> make_game({"num_objects": 3, "sequential": False}, num_envs=2).num_objects
        3
    """
    settings = {**settings, **kwargs}
    try:
        return PlaygroundTextEnv(
            num_envs=num_envs, split=split, seed=seed, device=device, **settings
        )
    except TypeError as error:
        raise ValueError(
            f"environment ({settings}) has settings that Playground-Text does not know ({error}): "
            "give those of the environment that the agent was trained on"
        ) from None


def tokenize(env: EnvBase, agent: Agent) -> TransformedEnv:
    """The environment with the token tensors that an agent reads, beside its text.

    Examples:
        >>> from torchrl_glam.models import zero_shot_agent
        >>> env = tokenize(make_game({"num_objects": 6}, num_envs=2), zero_shot_agent("tiny"))
        >>> env.reset()["action_tokens"].shape
        torch.Size([2, 8, 2])
    """
    lengths = token_lengths(env, agent.tokenizer, agent.template)
    return TransformedEnv(env, TokenizeText(agent.tokenizer, template=agent.template, **lengths))
