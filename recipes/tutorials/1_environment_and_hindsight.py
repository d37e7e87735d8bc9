"""
The environment and hindsight, step by step
===========================================

Playground-Text describes a room in words. An episode is played by hand here, misses its goal, and
is looked at as the replay buffer stores it.
"""

# %%
# A room
# ------
# One instance, three objects, goals of one part, three steps of time.

import torch
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import Compose

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import load_tokenizer
from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.text import TokenizeText, decode_text

room = PlaygroundTextEnv(num_envs=1, num_objects=3, sequential=False, max_steps=3, seed=0)
room.reset()
print(room.render())

# %%
# An episode
# ----------
# Text is tensors of bytes; ``TokenizeText`` adds the tokens that a language model reads. The plan
# feeds the mouse, though the goal is the cow.

env = TransformedEnv(room, TokenizeText(load_tokenizer("tiny")))
plan = iter([0, 3, 1])  # Go to blue mouse, Grasp, Go to red food
policy = TensorDictModule(lambda mask: torch.tensor([next(plan)]), ["action_mask"], ["action"])
room.set_seed(0)
episode = env.rollout(3, policy)
for step in episode[0]:
    print(decode_text(step["actions"])[step["action"]], "- reward", step["next", "reward"].item())

# %%
# The social partner
# ------------------
# After each step the environment names the goals that it reached, as ids in its table of goals.

for step in episode[0]:
    named = step["next", "hindsight", "goal_id"]
    print(room.goals.texts_of(named[named >= 0]))

# %%
# What is stored
# --------------
# ``HindsightTransform`` lets the episode in when it is over: as it was, and the steps up to t once
# more for each goal that was named after step t, which they then reach.

buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(1_000), transform=HindsightTransform(), batch_size=8
)
buffer.extend(episode)
rows = buffer[:]
for row in rows:
    done = "the end" if row["next", "done"] else ""
    goal = room.goals[row["goal_id"].item()]
    print(f"{goal:20} step reward {row['next', 'reward'].item()} {done}")

# %%
# n-step returns, and half of a batch hindsight
# ---------------------------------------------
# Inverse transforms run from last to first: hindsight first, then returns within each episode or
# copy. With a discount of 0.9 the first step towards a grasp is worth 0.9, and the first towards
# the grown mouse 0.81.

buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(1_000),
    sampler=HindsightRatioSampler(0.5),
    transform=Compose(SegmentMultiStepTransform(3, 0.9), HindsightTransform()),
    batch_size=8,
)
buffer.extend(episode)
returns = buffer[:]["next", "reward"].flatten()
batch = buffer.sample()
print(sorted({round(value, 2) for value in returns.tolist()}))
print("hindsight:", batch["is_hindsight"].sum().item(), "of", len(batch))
