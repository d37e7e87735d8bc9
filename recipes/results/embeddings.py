"""Whether a head can tell impossible goals by what it reads: writes goals/embeddings.csv.

python recipes/results/embeddings.py
"""

from itertools import cycle, product

import torch
from tables import RESULTS, write
from torch import nn

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.goals import prompt_tokens
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.text import decode_text, describe_env

TASK = {"num_objects": 3, "sequential": False, "max_steps": 10, "impossible": 0.8}
TOLD = (100, 600)


def fit(embeddings, possible, lr):
    """Predicted success of impossible goals and of others, after each number of steps."""
    torch.manual_seed(1)
    width, drawn = embeddings.shape[1], torch.where(possible, 0.2 / possible.sum(), 0.0)
    drawn += torch.where(possible, 0.0, 0.8 / (~possible).sum())
    head = nn.Sequential(nn.Linear(width, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(head.parameters(), lr=lr)
    for step in range(1, max(TOLD) + 1):
        rows = torch.multinomial(drawn, 128, replacement=True)
        reached = torch.bernoulli(0.9 * possible[rows].float())
        logits = head(embeddings[rows]).squeeze(-1)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, reached).backward()
        optimizer.step()
        if step in TOLD:
            told = head(embeddings).sigmoid().squeeze(-1)
            yield step, told[~possible].mean().item(), told[possible].mean().item()


def main():
    game = describe_env(PlaygroundTextEnv(num_envs=1, **TASK))
    kinds = torch.as_tensor(game.goal_kind_ids)
    possible = kinds != game.goal_kinds.index("impossible")
    order = cycle(range(len(kinds)))
    env = PlaygroundTextEnv(
        num_envs=len(kinds),
        goal_sampler=lambda _, n: torch.tensor([next(order) for _ in range(n)]),
        seed=0,
        **TASK,
    )
    state = env.reset()
    assert state["goal_id"].flatten().tolist() == list(range(len(kinds)))
    model, tokenizer = load_language_model("tiny")
    trunk = make_trunk(model, tokenizer)
    goals = prompt_tokens(trunk, tokenizer, "goal", game.goal_texts)
    reads = {"goal": [""] * len(kinds), "goal and observation": decode_text(state["observation"])}
    rows = []
    for (name, texts), lr, standardised in product(reads.items(), (1e-3, 1e-2), ("no", "yes")):
        seen = prompt_tokens(trunk, tokenizer, "observation", texts)
        parts = zip(goals.split(128), seen.split(128), strict=True)
        with torch.no_grad():
            found = torch.cat([trunk.read_prompts(*trunk.prompt(*part)) for part in parts])
        if standardised == "yes":
            found = (found - found.mean(0)) / found.std(0)
        for step, impossible, others in fit(found, possible, lr):
            row = {"reads": name, "standardised": standardised, "lr": lr, "steps": step}
            rows.append({**row, "impossible": f"{impossible:.3f}", "possible": f"{others:.3f}"})
    write(RESULTS / "goals" / "embeddings.csv", rows)


if __name__ == "__main__":
    main()
