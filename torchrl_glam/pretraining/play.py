"""Random play of any text environment, in words: what reading exercises are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_glam.text import decode_text, describe_env


class Move(NamedTuple):
    """A step of random play.

    Attributes:
        goal: the goal pursued.
        observation: what was observed before it.
        actions: the admissible actions.
        action: the one that was taken.
        after: what was observed then.
        reached: whether it reached the goal.
        named: the goals that it reached, as hindsight tells.
        later: the goals that it and the steps after it reached, to the end of the episode.
    """

    goal: str
    observation: str
    actions: list[str]
    action: str
    after: str
    reached: bool
    named: list[str]
    later: list[str]


def record_play(env: EnvBase, num_steps: int, seed: int = 0) -> list[Move]:
    """Plays admissible actions at random.

    Args:
        env: an environment of the text contract, ``[B]``, that writes text.
        num_steps: steps to play, over all instances; rounded up to a multiple of B.
        seed: of environment and actions. Default: 0.

    Returns:
        The steps, episode after episode of each instance.

    Raises:
        ValueError: if there is not one step to play.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> move = record_play(PlaygroundTextEnv(num_envs=2, num_objects=3), 8)[0]
        >>> move.action in move.actions, move.named == move.later[: len(move.named)]
        (True, True)
    """
    if num_steps < 1:
        raise ValueError(f"num_steps ({num_steps}) must be at least 1")
    game = describe_env(env)
    generator = torch.Generator().manual_seed(seed)
    env.set_seed(seed)
    state = env.reset()
    ways = [[] for _ in range(state.numel())]
    ended = [[] for _ in ways]
    for _ in range(-(-num_steps // state.numel())):
        mask = state["action_mask"]
        action = torch.multinomial(mask.cpu().float(), 1, generator=generator).squeeze(-1)
        step, state = env.step_and_maybe_reset(state.set("action", action.to(mask.device)))
        reached = step["next"][game.success_key].flatten(1).gt(0).any(1).tolist()
        named = _named_goals(step["next"], game.goal_texts)
        over = step["next", "done"].flatten().tolist()
        for row, move in enumerate(_in_words(step, reached, named)):
            ways[row].append(move)
            ended[row].append(over[row])
    return [
        move
        for moves, ends in zip(ways, ended, strict=True)
        for move in _with_later_goals(moves, ends)
    ]


def _in_words(
    step: TensorDictBase, reached: Sequence[bool], named: Sequence[list[str]]
) -> list[Move]:
    chosen, allowed = step["action"].tolist(), step["action_mask"].tolist()
    texts = [decode_text(step[key]) for key in ("goal", "observation", "actions")]
    after = decode_text(step["next", "observation"])
    return [
        Move(
            goal,
            observation,
            [text for text, has in zip(actions, allowed[row], strict=True) if has],
            actions[chosen[row]],
            after[row],
            reached[row],
            named[row],
            [],
        )
        for row, (goal, observation, actions) in enumerate(zip(*texts, strict=True))
    ]


def _named_goals(step: TensorDictBase, goal_texts: Sequence[str] | None) -> list[list[str]]:
    """The goals that each step reached, in words; none where the environment names none."""
    ids: Tensor | None = step.get(("hindsight", "goal_id"), None)
    if ids is not None and goal_texts is not None:
        return [[goal_texts[goal] for goal in row if goal >= 0] for row in ids.tolist()]
    text = step.get(("hindsight", "goal"), None)
    if text is None:
        return [[] for _ in range(step.numel())]
    return [[goal for goal in row if goal] for row in decode_text(text)]


def _with_later_goals(moves: Sequence[Move], ends: Sequence[bool]) -> list[Move]:
    """Moves of one instance, with the goals of the rest of their episodes."""
    out, later = [], []
    for move, end in zip(reversed(moves), reversed(ends), strict=True):
        later = list(dict.fromkeys([*move.named, *([] if end else later)]))
        out.append(move._replace(later=later))
    return out[::-1]
