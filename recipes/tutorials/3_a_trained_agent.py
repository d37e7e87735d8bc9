"""
A trained agent: load, look, evaluate
=====================================

Every run of a recipe leaves its agent in ``<output>/model``; ``load_agent`` takes the run's folder.
No run at hand? An agent that imitates shortest plans for a few seconds stands in for one here: no
way to train agents, but one that plays.
"""

# %%
# A folder with an agent
# ----------------------

import tempfile
from pathlib import Path

import torch
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.models import AgentCard, export_agent, load_agent, load_language_model, make_trunk
from torchrl_glam.pretraining import imitate
from torchrl_glam.text import TokenizeText, decode_text, token_lengths
from torchrl_glam.viewing import format_results, measure, record, tokenize, write_page

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
settings = {"num_objects": 3, "sequential": False, "max_steps": 10}
game = PlaygroundTextEnv(num_envs=32, seed=0, **settings)
model, tokenizer = load_language_model("tiny")
imitate(
    make_trunk(model, tokenizer),
    TransformedEnv(game, TokenizeText(tokenizer, **token_lengths(game, tokenizer))),
    OraclePolicy(game.goals),
    num_steps=1_536,
    batch_size=64,
    lr=2e-3,
)
export_agent(folder, model, tokenizer, card=AgentCard(model="tiny", num_critics=0))

# %%
# Load
# ----
# Trunk, actor, value heads (this one has none), tokenizer and prompt come back as they were.

agent = load_agent(folder)
print(agent.template.text)

# %%
# Look
# ----
# An episode, action by action:

game = PlaygroundTextEnv(num_envs=8, **settings)
env = tokenize(game, agent)
env.set_seed(3)
steps = env.rollout(10, agent.policy)[0]
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

game = PlaygroundTextEnv(num_envs=100, **settings)
options = {"split": "train", "objects": 3, "seed": 10_000}
results = [
    *measure(agent.policy, tokenize(game, agent), "agent, sampled", **options),
    *measure(None, game, "random play", **options),
    *measure(OraclePolicy(game.goals), game, "oracle", **options),
]
print(format_results(results))
