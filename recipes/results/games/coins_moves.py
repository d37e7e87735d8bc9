"""What agents do in TextWorld's coins where a way leads back and another on.

    python recipes/results/games/coins_moves.py --out moves.csv multirun/games_small/coins/*/*

Plays the 100 training games and the 100 new ones of the evaluations, sampled. In a row of rooms the
way back, which undoes the last move, is never right.
"""

import argparse
import csv
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from torchrl_glam.models import Agent, AgentCard, load_agent
from torchrl_glam.models.card import find_export
from torchrl_glam.runs.config.viewing import ViewConfig
from torchrl_glam.runs.evaluation import EVAL_SEED
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.text import decode_text
from torchrl_glam.viewing import choose_game, make_game, tokenize

GAMMA = 0.9  # that of games.yaml
BACK = {"go north": "go south", "go south": "go north", "go east": "go west", "go west": "go east"}


@torch.no_grad()
def play(agent: Agent, env: EnvBase) -> dict[str, float]:
    """A row of the table: counts and means over the decisions of one episode in each instance."""
    with seeded(EVAL_SEED):
        env.set_seed(EVAL_SEED)
        state = env.reset()
        number = len(state)
        running, won = torch.ones(number).bool(), torch.zeros(number).bool()
        last, coins, taken, chosen, backs, gaps = [""] * number, 0, 0, [], [], []
        values, earned = [[] for _ in range(number)], []
        while running.any():
            read = agent.read(state)
            action = read["probability"].clamp_min(1e-9).multinomial(1).squeeze(-1)
            for i in running.nonzero().flatten().tolist():
                ways = {text: j for j, text in enumerate(decode_text(state["actions"][i])) if text}
                if "action_value" in read.keys():
                    mean = read["probability"][i] @ read["action_value"][i]
                    values[i].append(mean.item())
                move, back = [*ways][action[i]], BACK.get(last[i])
                if there := [way for way in ways if way.startswith("take ")]:
                    coins, taken = coins + 1, taken + (move in there)
                elif back in ways and len(ways) > 1:
                    chosen.append(move == back)
                    backs.append(read["probability"][i, ways[back]].item())
                    gaps.append(gap(read[i], ways, back))
                last[i] = move if move in BACK else last[i]
            if not running.all():
                state.set("_step", running.unsqueeze(-1))
            step = env.step(state.set("action", action))["next"]
            won |= running & step["success"].view(-1)
            running &= ~step["done"].view(-1)
            state = step_mdp(step.new_empty(step.batch_size).set("next", step))
    for row, reached in zip(values, won.tolist(), strict=True):
        earned += [reached * GAMMA ** (len(row) - 1 - t) for t in range(len(row))]
    gaps, value = torch.tensor(gaps), torch.tensor([value for row in values for value in row])
    row = {"success": won.float().mean().item(), "coins": coins, "taken": taken}
    row |= {"decisions": len(chosen), "back": sum(chosen) / len(chosen)}
    below = (gaps > 0).float().mean().item() if gaps.isfinite().all() else float("nan")
    policy = (torch.tensor(backs) < 0.5).float().mean().item()
    return row | {
        "policy": policy,
        "critic": below,
        "gap": gaps.mean().item(),
        "spread": gaps.std().item(),
        "value": value.mean().item(),
        "earned": torch.tensor(earned).mean().item(),
    }


def gap(read: TensorDictBase, ways: dict[str, int], back: str) -> float:
    """By how much the best other way's value is above that of the way back."""
    if "action_value" not in read.keys():
        return float("nan")
    values = read["action_value"]
    return (max(values[j] for way, j in ways.items() if way != back) - values[ways[back]]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows, games = [], {}
    for run in options.runs:
        agent = load_agent(run, max_tokens_per_pass=16384)
        own = AgentCard.read(find_export(run)).environment
        config = ViewConfig(
            env_class=own["env_class"], env=own["env"], eval_splits=own["eval_splits"]
        )
        settings = choose_game(config, None)
        for split in ("train", "test"):
            if split not in games:
                games[split] = make_game(settings, num_envs=100, split=split)
            row = play(agent, tokenize(games[split], agent, settings))
            rows.append({"agent": run.parent.name, "seed": run.name, "games": split, **row})
            print(rows[-1], flush=True)
    with open(options.out, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


if __name__ == "__main__":
    main()
