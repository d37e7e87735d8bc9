"""BabyAI's go-to without a language model: what hindsight teaches where a part of the room is seen.

    python recipes/results/games/goto_table.py MODEL --out goto_table.csv

Random play is stored as replay buffers would have it. A state is where the goal's thing is seen, or
that it is not and the last two actions. Q-iteration to the end says what each state is worth, and a
softmax of those values plays new rooms. MODEL is a folder of pretrain.py; its settings are read.
"""

import argparse
import csv
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

from torchrl_glam.runs.config.pretrain import PretrainConfig
from torchrl_glam.runs.environments import make_bare_env
from torchrl_glam.text import decode_text, draw_admissible

GAMMA, SWEEPS, TEMPERATURE = 0.9, 120, 0.05
COPIES = 4  # goals drawn for an episode by "any and pursued", and times that its own counts


class Step(NamedTuple):
    goal: str
    observation: str
    action: str
    after: str
    reached: set[str]


def state(observation: str, goal: str) -> str:
    thing = re.escape(goal.removeprefix("go to the "))
    if seen := re.search(rf"You see an? {thing} (.*)", observation):
        return seen[1]
    first = observation.split("\n")[0]
    return f"unseen, {first}" if first.startswith("Last actions") else "unseen"


def play(config, act, num_envs, steps, seed, split):
    """Finished episodes, each with its instance and whether it was won."""
    env = make_bare_env(config, num_envs, seed, split)
    env.set_seed(seed)
    now, going, ended = env.reset(), [[] for _ in range(num_envs)], []
    for _ in range(steps):
        texts = [decode_text(now[key]) for key in ("goal", "observation", "actions")]
        action = act(*texts, now["action_mask"])
        step, now = env.step_and_maybe_reset(now.set("action", action))
        after = step["next"]
        named, kinds = decode_text(after["hindsight", "goal"]), after["hindsight", "kind"].tolist()
        seen = decode_text(after["observation"])
        for i, (goal, observation, actions) in enumerate(zip(*texts, strict=True)):
            reached = {g for g, kind in zip(named[i], kinds[i], strict=True) if kind >= 0}
            reached |= {goal} if after["success"][i] else set()
            going[i].append(Step(goal, observation, actions[int(action[i])], seen[i], reached))
            if after["done"][i]:
                ended.append((going[i], i, bool(after["success"][i])))
                going[i] = []
    env.close()
    return ended


def rows_of(episode, hindsight, goals, rng):
    """Rows of an episode and of its hindsight: state, action, reward, next state or None."""
    own = episode[0].goal
    named = {goal for step in episode for goal in step.reached} - {own}
    asked = {  # goals, and which steps are stored under one, by where it is reached
        "pursued": [(own, "all")],
        "future": [(own, "all"), *((goal, "before") for goal in named)],
        "past": [(own, "all"), *((goal, "after") for goal in named)],
        "any": [(goal, "all") for goal in goals],
        "any and pursued": [(goal, "all") for goal in rng.sample(goals, COPIES)],
    }[hindsight]
    asked += [(own, "all")] * COPIES * (hindsight == "any and pursued")
    for goal, part in asked:
        hits = [at for at, step in enumerate(episode) if goal in step.reached]
        first, last = (hits[0], hits[-1]) if hits else (-1, -1)
        for at, step in enumerate(episode):
            if (
                part == "all"
                or (part == "before" and at <= last)
                or (part == "after" and at > first)
            ):
                hit = goal in step.reached
                then = None if hit else state(step.after, goal)
                yield state(step.observation, goal), step.action, float(hit), then


def values(rows):
    """Action values of the rows' states, and how often each state is stored."""
    outcomes, actions, visits = defaultdict(list), defaultdict(set), defaultdict(int)
    for now, action, reward, then in rows:
        outcomes[now, action].append((reward, then))
        actions[now].add(action)
        visits[now] += 1
    q = dict.fromkeys(outcomes, 0.0)
    for _ in range(SWEEPS):
        best = {now: max(q[now, a] for a in taken) for now, taken in actions.items()}
        for key, told in outcomes.items():
            q[key] = sum(r + GAMMA * best.get(then, 0.0) for r, then in told) / len(told)
    return q, best, visits


def softmax_of(q):
    def act(goals, observations, actions, mask):
        rows = []
        for goal, seen, names, allowed in zip(goals, observations, actions, mask, strict=True):
            here = state(seen, goal)
            told = [q.get((here, name), 0.0) for name in names] + [0.0] * (
                len(allowed) - len(names)
            )
            rows.append(torch.tensor(told).masked_fill(~allowed, -torch.inf))
        return (torch.stack(rows) / TEMPERATURE).softmax(-1).multinomial(1).squeeze(-1)

    return act


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    args = parser.parse_args()
    config = PretrainConfig(**json.loads((args.model / "report.json").read_text())["settings"])
    config, told = config.tasks(), []
    for seed in args.seeds:
        torch.manual_seed(seed)
        rng = random.Random(seed)
        uniform = lambda goals, seen, actions, mask: draw_admissible(mask)  # noqa: E731
        ended = play(config, uniform, 16, 200, seed, "train")
        goals = sorted({episode[0].goal for episode, *_ in ended})
        for hindsight in ("future", "past", "pursued", "any", "any and pursued"):
            rows = [row for e, *_ in ended for row in rows_of(e, hindsight, goals, rng)]
            q, best, visits = values(rows)
            row = {"seed": seed, "hindsight": hindsight, "rows": len(rows)}
            for name, unseen in (("seen", False), ("unseen", True)):
                which = [now for now in visits if now.startswith("unseen") == unseen]
                total = sum(best[now] * visits[now] for now in which)
                row[f"value_{name}"] = round(total / sum(visits[now] for now in which), 3)
            played = play(config, softmax_of(q), 100, 32, 1000 + seed, "test")
            first = {i: won for _, i, won in reversed(played)}  # each ends within 32 steps
            row["success"] = round(sum(first.values()) / len(first), 3)
            told.append(row)
            print(row, flush=True)
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, told[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(told)


if __name__ == "__main__":
    main()
