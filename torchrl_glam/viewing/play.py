"""A person plays a text environment in the terminal."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from torchrl_glam.models import Agent
from torchrl_glam.runs.records.statistics import goals_reached
from torchrl_glam.text import decode_text, describe_env

_HELP = "a number or the words of an action; h: what the agent would do; q: quit"


def nearest_goals(goal: str, goals: Sequence[str]) -> int:
    """The index of a goal among the texts of an environment's goals, ignoring case.

    Args:
        goal: its text.
        goals: those of all goals.

    Raises:
        ValueError: if there is no such goal; the message offers the nearest ones.

    Examples:
        >>> nearest_goals("Grasp red loin", ["Grasp red lion", "Grow red lion"])
        Traceback (most recent call last):
            ...
        ValueError: goal ('Grasp red loin') is none of the environment's 2 goals; the nearest are
        'Grasp red lion', 'Grow red lion'
    """
    lowered = [text.lower() for text in goals]
    if (wanted := " ".join(goal.lower().split())) in lowered:
        return lowered.index(wanted)
    close = get_close_matches(wanted, lowered, n=5, cutoff=0.5) or lowered[:1]
    raise ValueError(
        f"goal ({goal!r}) is none of the environment's {len(goals)} goals; the nearest are "
        + ", ".join(repr(goals[lowered.index(text)]) for text in close)
    )


@torch.no_grad()
def play(
    env: EnvBase,
    agent: Agent | None = None,
    *,
    read: Callable[[str], str] = input,
    write: Callable[[str], None] = print,
) -> bool:
    """Plays one episode with a person.

    Args:
        env: text environment with one instance, and with the tokens that the agent reads.
        agent: gives hints. Default: None, no hints.
        read: reads a line from the person, given a prompt. Default: ``input``.
        write: shows the person a text. Default: ``print``.

    Returns:
        Whether the goal was reached; False if the person quits.

    Raises:
        ValueError: if the environment has several instances.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> play(PlaygroundTextEnv(num_envs=1), read=lambda prompt: "q", write=[].append)
        False
    """
    if (number := env.batch_size.numel()) != 1:
        raise ValueError(f"env has {number} instances {list(env.batch_size)}: play takes one")
    game = describe_env(env)
    limit = f" of {game.max_steps}" if game.max_steps else ""
    state, step = env.reset(), 0
    write(_HELP)
    while True:
        seen = state.reshape(-1)[0]
        texts, admissible = decode_text(seen["actions"]), seen["action_mask"].nonzero()
        choices = {slot: texts[slot] for slot in admissible.flatten().tolist()}
        write(f"\nGoal: {decode_text(seen['goal'])} (step {step}{limit})")
        write(decode_text(seen["observation"]))
        write("  ".join(f"{slot} {text}" for slot, text in choices.items()))
        action = None
        while action is None:
            try:
                said = " ".join(read("> ").lower().split())
            except EOFError:
                return False
            if said in ("q", "quit"):
                return False
            meant = [slot for slot, text in choices.items() if said in (str(slot), text.lower())]
            if meant:
                action = meant[0]
            elif said == "h":
                write(_hint(state, choices, agent))
            else:
                write(f"{said!r} is no action here. Give {_HELP}.")
        after = env.step(state.set("action", torch.full(env.batch_size, action)))["next"]
        step += 1
        if (reward := after["reward"].item()) != 0:
            write(f"Reward {reward:g}.")
        if goals_reached(after, game.success_key).item():
            write(f"Goal reached in {step} steps.")
            return True
        if after["done"].item():
            write(f"The episode is over after {step} steps, and the goal is not reached.")
            return False
        state = step_mdp(after.new_empty(after.batch_size).set("next", after))


def _hint(state: TensorDictBase, choices: dict[int, str], agent: Agent | None) -> str:
    if agent is None:
        return "There is no agent to ask: start with agent=FOLDER."
    said = agent.read(state).reshape(-1)[0]
    probability, value = said["probability"], said.get("action_value", None)
    lines = []
    for slot in sorted(choices, key=lambda slot: -probability[slot].item()):
        share = probability[slot].item()
        line = f"{share:6.1%} {'#' * round(20 * share):20} {choices[slot]}"
        lines.append(line if value is None else f"{line} (Q {value[slot].item():.3f})")
    return "\n".join(lines)
