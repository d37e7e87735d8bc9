"""
A trained agent: load, look, evaluate
=====================================

Every run of a recipe leaves its agent in ``<output>/model``; ``load_agent`` takes the run's folder.
``"tiny"`` is the agent that comes with the package, trained on the paper's task.
"""

# %%
# Load
# ----
# Trunk, actor, value heads, tokenizer and prompt come back as they were.

import tempfile
from pathlib import Path

import torch

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.models import load_agent
from torchrl_glam.text import decode_text
from torchrl_glam.viewing import format_results, measure, record, tokenize, write_page

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
agent = load_agent("tiny")
print(agent.template.text)

# %%
# Look
# ----
# An episode, action by action:

game = PlaygroundTextEnv(num_envs=8)
env = tokenize(game, agent)
env.set_seed(3)
steps = env.rollout(game.max_steps, agent.policy, break_when_any_done=False)[0]
print(decode_text(steps["goal"][0]))
for step in steps:
    print(decode_text(step["actions"])[step["action"]], "- reward", step["next", "reward"].item())
    if step["next", "done"]:
        break

# %%
# And eight of them as a page that opens in any browser, as ``recipes/watch.py`` writes it:

episodes = record(agent, env, seed=0)
write_page(
    folder / "episodes.html", {"agent": (agent, episodes)}, game.goal_kinds, "Eight episodes"
)
print((folder / "episodes.html").stat().st_size // 1000, "kB")

# %%
# Evaluate
# --------
# An episode in each instance, on the same scenes for everybody; ``recipes/evaluate.py`` does so by
# split and number of objects.

game = PlaygroundTextEnv(num_envs=100)
options = {"split": "train", "objects": 6, "seed": 10_000}
results = [
    *measure(agent.policy, tokenize(game, agent), "agent, sampled", **options),
    *measure(None, game, "random play", **options),
    *measure(OraclePolicy(game.goals), game, "oracle", **options),
]
print(format_results(results))
