"""
Your own loss on our trunk
==========================

A trunk is a TensorDictModule: it reads tokens and writes log-likelihoods and embeddings, with
gradients. What is learned from them is up to the loss. Here it is REINFORCE with a learned baseline
(Williams, 1992), of a dozen lines.
"""

# %%
# The loss
# --------
# The trunk comes first and reads each state once; the heads follow. ``trunk(batch)`` writes into
# what it is given, so the loss selects what it reads.

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import TransformedEnv
from torchrl.objectives.value.functional import reward2go

from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.goals import UniformGoals
from torchrl_glam.models import (
    CandidateActor,
    ScoresOnly,
    ValueHead,
    load_language_model,
    make_trunk,
)
from torchrl_glam.text import TokenizeText, token_lengths


class Reinforce(torch.nn.Module):
    """Log-probabilities of the actions taken, weighted by return less baseline."""

    def __init__(self, trunk, actor, value):
        super().__init__()
        self.trunk, self.actor, self.value = trunk, actor, value

    def forward(self, batch):
        states = self.value(self.trunk(batch.select(*self.trunk.in_keys)))
        policy = self.actor.get_dist(states)
        advantage = batch["return"] - states["state_value"].squeeze(-1)
        return TensorDict(
            loss_policy=-(policy.log_prob(batch["action"]) * advantage.detach()).mean(),
            loss_value=advantage.square().mean(),
            entropy=policy.entropy().detach().mean(),
        )


# %%
# Trunk and heads
# ---------------
# ``ScoresOnly`` leaves out the action embeddings, which only critics of actions need.

torch.manual_seed(0)
model, tokenizer = load_language_model("tiny")
trunk = ScoresOnly(make_trunk(model, tokenizer))
actor, value = CandidateActor(), ValueHead(trunk.trunk.embedding_dim, (64,))
policy = TensorDictSequential(trunk, actor, selected_out_keys=["action"])
loss = Reinforce(trunk, actor, value)
optimizer = torch.optim.Adam(loss.parameters(), lr=5e-4)

# The easier half of the goals: to walk to something and grasp it
goals = GoalSpace("train", sequential=False)
grasps = UniformGoals(goals.texts, kinds=goals.kind_ids, shares=[1, 0, 0, 0])
game = PlaygroundTextEnv(
    num_envs=32, num_objects=3, sequential=False, max_steps=4, seed=0, goal_sampler=grasps
)
env = TransformedEnv(game, TokenizeText(tokenizer, **token_lengths(game, tokenizer)))

# %%
# Training
# --------
# Each batch is learned from once. Episodes that a batch cuts in two count what it shows of them.

successes = []
collector = Collector(
    env,
    policy,
    frames_per_batch=256,
    total_frames=10_240,
    auto_register_policy_transforms=False,
)
for steps in collector:
    reward, done = steps["next", "reward"], steps["next", "done"]
    successes.append((reward[done] > 0).float().mean().item())
    steps["return"] = reward2go(reward, done, gamma=0.7).squeeze(-1)
    for part in steps.flatten().split(64):
        terms = loss(part)
        (terms["loss_policy"] + terms["loss_value"]).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
print("success:", " ".join(f"{share:.2f}" for share in successes))

# %%
# What our losses add
# -------------------
# ``SACGLAMLoss`` and ``PPOGLAMLoss`` are TorchRL's ``DiscreteSACLoss`` and ``ClipPPOLoss`` on such
# heads, with target weights for the trainable parameters alone, and one pass of the language model
# under all of their terms. Other losses of TorchRL's take whole networks, such as
# ``TensorDictSequential(trunk, value)`` and ``ProbabilisticTensorDictSequential(trunk, *actor)``;
# give the loss or its estimator ``deactivate_vmap=True``, since the shapes of a pass follow from
# the tokens. A model too large for a whole batch is trained in parts
# (:func:`~torchrl_glam.models.split_by_tokens`).
