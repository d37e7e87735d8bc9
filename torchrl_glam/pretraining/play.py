"""Transcripts of random play of any text environment: texts, without rewards or goals reached."""

from itertools import compress
from typing import NamedTuple

import torch
from torchrl.envs import EnvBase

from torchrl_glam.text import decode_text, draw_admissible


class Move(NamedTuple):
    """A step of random play.

    Attributes:
        goal: the goal pursued.
        observation: what was observed before it.
        actions: the admissible actions.
        action: the one that was taken.
        after: what was observed then.
    """

    goal: str
    observation: str
    actions: list[str]
    action: str
    after: str


def record_play(env: EnvBase, num_steps: int, seed: int = 0) -> list[Move]:
    """Plays admissible actions at random; returns the steps, those of an instance together.

    Args:
        env: an environment of the text contract, ``[B]``, that writes text.
        num_steps: steps to play, over all instances, rounded up to a multiple of B; ValueError if
            there is not one.
        seed: of environment and actions. Default: 0.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> move = record_play(PlaygroundTextEnv(num_envs=2, num_objects=3), 8)[0]
        >>> move.action in move.actions
        True
    """
    if num_steps < 1:
        raise ValueError(f"num_steps ({num_steps}) must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    env.set_seed(seed)
    state = env.reset()
    rounds, keys = [], ("goal", "observation", "actions", ("next", "observation"))
    for _ in range(-(-num_steps // state.numel())):
        mask = state["action_mask"]
        action = draw_admissible(mask.cpu(), generator)
        step, state = env.step_and_maybe_reset(state.set("action", action.to(mask.device)))
        texts = (decode_text(step[key]) for key in keys)
        played = zip(*texts, mask.tolist(), action.tolist(), strict=True)
        rounds.append(
            [
                Move(goal, observation, [*compress(actions, allowed)], actions[chosen], after)
                for goal, observation, actions, after, allowed, chosen in played
            ]
        )
    return [move for moves in zip(*rounds, strict=True) for move in moves]
