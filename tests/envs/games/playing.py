"""A game that is played by the texts of its actions."""

import torch
from torchrl.envs.utils import step_mdp

from torchrl_glam.text import decode_text


def choose(env, state, text):
    """What the action of this text leads to in every instance, and the state after it."""
    rows = decode_text(state["actions"])
    step = env.step(state.set("action", torch.tensor([row.index(text) for row in rows])))["next"]
    return step, step_mdp(step.new_empty(step.batch_size).set("next", step))


def listed(state):
    """The actions of the first instance."""
    return [text for text in decode_text(state["actions"])[0] if text]
