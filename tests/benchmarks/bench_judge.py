"""How often a language model that judges goals agrees with Playground-Text's social partner.

Run: python tests/benchmarks/bench_judge.py [--steps 96] [--batches 256] [--seed 0]

Six objects; 8,470 goals of the training split, or those held out; random play, or shortest plans.
The judge is asked about goals after steps after which the partner named some: as many of each sort
(simple or sequential, named or not) as there are, up to a limit, but for the goal pursued and those
named before in the episode, of which the partner says nothing. The table shows, by kind, how many
were named, and the share of them and of the others that the judge names.

The judge is a copy of the embedded model that has learned what the partner named after steps of
random play under training goals (--batches 0: the embedded model itself). The goal stands in the
answers, so that a step is read once for all goals.
"""

import argparse
import random
import time
from typing import NamedTuple

import torch
from tqdm import tqdm

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import GoalJudge, load_language_model
from torchrl_glam.text import GameStep, decode_text

QUESTION = {
    "prompt": "{before}\nAction: {action}\n{after}\nQuestion: named",
    "yes": "{goal} yes",
    "no": "{goal} no",
}
PLAYS = (("random", "train"), ("random", "test"), ("plans", "train"))


class Step(NamedTuple):
    """A step of play.

    Attributes:
        trajectory: the states before and after it.
        named: ids of the goals that the partner named.
        left_out: those of which it says nothing.
    """

    trajectory: list[GameStep]
    named: set[int]
    left_out: set[int]


def play(env, name, num_steps):
    """Steps after which the partner named something, and others."""
    policy = env.make_oracle() if name == "plans" else env.rand_action
    state, before = env.reset(), [set() for _ in range(env.batch_size[0])]
    out = ([], [])
    for _ in range(num_steps // len(before)):
        step, state = env.step_and_maybe_reset(policy(state))
        texts = [decode_text(step[k]) for k in ("observation", "actions", ("next", "observation"))]
        rows = (step["action"], step["goal_id"], step["next", "hindsight", "goal_id"])
        ends = step["next", "done"].flatten().tolist()
        entries = zip(*texts, *(row.tolist() for row in rows), before, ends, strict=True)
        for seen, actions, then, action, pursued, ids, known, end in entries:
            named = {goal for goal in ids if goal >= 0}
            trajectory = [GameStep(seen, {}), GameStep(then, {}, actions[action])]
            out[not named].append(Step(trajectory, named, known | {pursued}))
            known |= named
            if end:
                known.clear()
    return out


def some_of(things, number, draw):
    return draw.sample(things, min(number, len(things)))


def pairs_of(goals, step, number, draw):
    """Goals to ask about: ids, and whether they were named."""
    pairs = []
    for sort in (range(goals.num_simple), range(goals.num_simple, len(goals))):
        named = [goal for goal in sort if goal in step.named]
        missed = [goal for goal in sort if goal not in step.named and goal not in step.left_out]
        pairs += [(goal, True) for goal in some_of(named, number, draw)]
        pairs += [(goal, False) for goal in some_of(missed, number, draw)]
    return pairs


def ask(judge, goals, steps, pairs):
    texts = [[goals[goal] for goal, _ in row] for row in pairs]
    return judge.log_odds([step.trajectory for step in steps], texts)


def train(judge, env, num_steps, batches, draw, number=32, batch_size=16, lr=1e-3):
    """Binary cross-entropy on the sample as it is; Adam with one cycle of the learning rate."""
    named, others = play(env, "random", num_steps)
    parameters = list(judge.trunk.parameters())
    optimizer = torch.optim.Adam(parameters, lr=lr, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=batches)
    bar = tqdm(range(batches), desc="train", mininterval=20)
    for _ in bar:
        rows = draw.sample(named, batch_size // 2) + draw.sample(others, batch_size // 2)
        pairs = [pairs_of(env.goals, step, number, draw) for step in rows]
        labels = torch.tensor([float(label) for row in pairs for _, label in row])
        odds = ask(judge, env.goals, rows, pairs)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.4f}")


@torch.no_grad()
def measure(judge, env, name, num_steps, number, draw, batch_size=8):
    """Kind, name and probability of the pairs, ``[P]`` each, and pairs a second."""
    steps, pairs, odds, seconds = some_of(play(env, name, 8192)[0], num_steps, draw), [], [], 0.0
    for start in tqdm(range(0, len(steps), batch_size), desc="ask", mininterval=20):
        some = steps[start : start + batch_size]
        asked = [pairs_of(env.goals, step, number, draw) for step in some]
        began = time.process_time()
        odds.append(ask(judge, env.goals, some, asked))
        seconds += time.process_time() - began
        pairs += [pair for row in asked for pair in row]
    ids, named = (torch.tensor(column) for column in zip(*pairs, strict=True))
    return env.goals.kind_ids[ids], named, torch.cat(odds).sigmoid(), len(pairs) / seconds


def show(label, env, measured, thresholds):
    kinds, named, chances, rate = measured
    for kind, name in enumerate((*env.goals.kinds, "all")):
        rows = kinds == kind if kind < len(env.goals.kinds) else kinds >= 0
        truth, chance = named[rows], chances[rows]
        said = [(chance >= threshold).float() for threshold in thresholds]
        cells = [f"{int(truth.sum())}"]
        cells += [f"{one[truth].mean():.3f}, {one[~truth].mean():.3f}" for one in said]
        print(f"| {label} | {name} | {' | '.join(cells)} |", flush=True)
    print(f"{len(named)} pairs, {rate:,.0f} a second of processor time", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=96, help="to ask about")
    parser.add_argument("--goals", type=int, default=48, help="most of a sort to ask about")
    parser.add_argument("--train-steps", type=int, default=4096, help="of random play")
    parser.add_argument("--batches", type=int, default=256, help="of 16 of these steps")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.5, 0.9, 0.99])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    columns = [f"of named and others at {threshold}" for threshold in args.thresholds]
    print(f"| play, goals | kind | named | {' | '.join(columns)} |")
    torch.manual_seed(args.seed)
    draw = random.Random(args.seed)
    model, tokenizer = load_language_model("tiny")
    judge = GoalJudge(model, tokenizer, [], **QUESTION, pad_to_multiple_of=4)
    if args.batches:
        env = PlaygroundTextEnv(64, seed=args.seed + 1)
        train(judge, env, args.train_steps, args.batches, draw)
    for how, split in PLAYS:
        env = PlaygroundTextEnv(64, split=split, seed=args.seed + 2)
        measured = measure(judge, env, how, args.steps, args.goals, draw)
        show(f"{how}, {split}", env, measured, args.thresholds)


if __name__ == "__main__":
    main()
