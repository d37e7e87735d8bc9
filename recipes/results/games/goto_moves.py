"""What agents of BabyAI's go-to think that states are worth, and which thing they go to.

    python recipes/results/games/goto_moves.py --out goto_moves.csv multirun/games_small/goto/*/*

Values: the agent plays the 100 new games of the evaluations, sampled. Which thing: states of random
play in which several things are seen whose shortest ways begin with different moves, each of these
things in turn as the goal.
"""

import argparse
import csv
import re
from pathlib import Path
from statistics import fmean

import torch
from torchrl.envs.utils import step_mdp

from torchrl_glam.models import AgentCard, load_agent
from torchrl_glam.models.card import find_export
from torchrl_glam.runs.config.viewing import ViewConfig
from torchrl_glam.runs.evaluation import EVAL_SEED
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.text import decode_text, draw_admissible
from torchrl_glam.viewing import choose_game, make_game, tokenize

GAMMA, STEPS, EVERY = 0.9, 120, 6  # of random play, and of which states are asked about


@torch.no_grad()
def values(agent, env):
    """Value of each state that the agent comes to, and what it earns from there."""
    told, going = [], []
    with seeded(EVAL_SEED):
        env.set_seed(EVAL_SEED)
        state = env.reset()
        number = len(state)
        going, running = [[] for _ in range(number)], torch.ones(number, dtype=torch.bool)
        won = torch.zeros(number, dtype=torch.bool)
        while running.any():
            read = agent.read(state)
            value = read.get("state_value", None)  # PPO-GLAM's
            if value is None:
                value = (read["probability"] * read["action_value"]).sum(-1)
            value = value.flatten()
            texts = zip(*(decode_text(state[key]) for key in ("goal", "observation")), strict=True)
            for i, (goal, seen) in enumerate(texts):
                if running[i]:
                    going[i].append((goal.removeprefix("go to the ") in seen, float(value[i])))
            if not running.all():
                state.set("_step", running.unsqueeze(-1))
            action = read["probability"].clamp_min(1e-9).multinomial(1).squeeze(-1)
            after = env.step(state.set("action", action))["next"]
            won = torch.where(running, after["success"].view(-1), won)
            running &= ~after["done"].view(-1)
            state = step_mdp(after.new_empty(after.batch_size).set("next", after))
    for i, steps in enumerate(going):
        for left, (seen, value) in enumerate(reversed(steps)):
            told.append((seen, value, GAMMA**left * float(won[i])))
    row = {"success": fmean(won.float().tolist())}
    for name, which in (("seen", True), ("unseen", False)):
        row[f"value_{name}"] = fmean(value for seen, value, _ in told if seen == which)
        row[f"earned_{name}"] = fmean(earned for seen, _, earned in told if seen == which)
    return row


def move_to(place):
    """First move of the shortest way to a place, where one move alone is."""
    sideways, ahead = re.search("left|right", place), "forward" in place
    if sideways and not ahead:
        return f"turn {sideways[0]}"
    return "go forward" if ahead and not sideways else None


def questions(env):
    """States of random play with a thing as the goal, its move, and those of the other things."""
    torch.manual_seed(0)
    env.set_seed(1)
    state, goals, asked = env.reset(), {}, []
    for step in range(STEPS):
        texts = decode_text(state["goal"])
        goals |= {text: goal.clone() for text, goal in zip(texts, state["goal"], strict=True)}
        if step % EVERY == EVERY - 1:
            for i, seen in enumerate(decode_text(state["observation"])):
                things = re.findall(r"You see an? (\w+ (?:ball|box|key)) (.*)", seen)
                names = [name for name, _ in things]
                moves = {n: move_to(p) for n, p in things if names.count(n) == 1 and move_to(p)}
                if len(set(moves.values())) > 1:
                    asked += [
                        (state[i].clone(), n, m, {*moves.values()} - {m}) for n, m in moves.items()
                    ]
        _, state = env.step_and_maybe_reset(
            state.set("action", draw_admissible(state["action_mask"]))
        )
    asked = [question for question in asked if f"go to the {question[1]}" in goals]
    states = torch.stack([state.exclude("action") for state, *_ in asked])
    states["goal"] = torch.stack([goals[f"go to the {thing}"] for _, thing, *_ in asked])
    return states, [(move, others) for _, _, move, others in asked]


@torch.no_grad()
def goes_to(agent, env, states, moves):
    read = agent.read(env.transform(states.clone()))
    row = {"states": len(moves), "own": 0, "other": 0}
    names = decode_text(states["actions"])
    for i, (move, others) in enumerate(moves):
        likeliest = names[i][int(read["probability"][i].argmax())]
        row["own"] += likeliest == move
        row["other"] += likeliest in others
    return row | {key: row[key] / len(moves) for key in ("own", "other")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("agents", nargs="+", type=Path)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rows, asked = [], None
    for folder in args.agents:
        agent = load_agent(folder, device="cpu", max_tokens_per_pass=16384)
        told = AgentCard.read(find_export(folder)).environment
        config = ViewConfig(env_class=told["env_class"])
        config.env, config.eval_splits = dict(told["env"]), dict(told["eval_splits"])
        game = choose_game(config, AgentCard.read(find_export(folder)))
        plain = make_game(game, num_envs=100, split="test")
        asked = asked or questions(plain)
        env = tokenize(plain, agent, game)
        row = values(agent, env) | goes_to(agent, env, *asked)
        row = {key: round(value, 3) for key, value in row.items()}
        rows.append({"agent": folder.parent.name, "seed": folder.name} | row)
        print(rows[-1], flush=True)
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
