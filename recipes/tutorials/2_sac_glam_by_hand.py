"""
SAC-GLAM by hand
================

Candidate actions are scored with a language model, and the model is trained to choose among them,
with the components that ``recipes/sac_glam.py`` is made of.
"""

# %%
# Scores and the policy
# ---------------------
# The embedded model reads the prompt of each state once, and all candidate actions in one pass.
# Their log-likelihoods are equation 1 of the paper, the softmax over them is equation 2.

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import Compose
from torchrl.objectives import SoftUpdate

from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.goals import UniformGoals
from torchrl_glam.models import (
    CandidateActor,
    CandidateCritic,
    ScoresOnly,
    load_language_model,
    make_trunk,
    score_error,
)
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.text import TokenizeText, decode_text, token_lengths

torch.manual_seed(0)
model, tokenizer = load_language_model("tiny")
trunk, actor = make_trunk(model, tokenizer), CandidateActor()

# The easier half of the goals: to walk to something and grasp it
goals = GoalSpace("train", sequential=False)
grasps = UniformGoals(goals.texts, kinds=goals.kind_ids, shares=[1, 0, 0, 0])
game = PlaygroundTextEnv(
    num_envs=32, num_objects=3, sequential=False, max_steps=4, seed=0, goal_sampler=grasps
)
env = TransformedEnv(game, TokenizeText(tokenizer, **token_lengths(game, tokenizer)))


@torch.no_grad()
def show(state, values=None):
    """The candidates of one state, with log-likelihood, probability and value."""
    probability = actor.get_dist(trunk(state)).probs
    print(decode_text(state["goal"]), "-", decode_text(state["observation"]).splitlines()[0])
    for index, text in enumerate(decode_text(state["actions"])):
        if state["action_mask"][index]:
            score = state["log_likelihood"][index]
            value = "" if values is None else f"  value {values[index]:.2f}"
            print(f"{text:20} {score:7.2f} nats  probability {probability[index]:.2f}{value}")


states = env.reset()
show(states[0].clone())

# %%
# One pass for all candidates gives what the model's own forward gives for each of them alone:

error = score_error(trunk, states)
print(f"largest difference: {error:.0e} nats")

# %%
# Heads, loss, target weights, optimizer
# --------------------------------------
# The critic turns the hidden state after a candidate's last token into a value. The loss runs the
# language model three times: on the states, and on the next ones with live and with target weights.

policy = TensorDictSequential(ScoresOnly(trunk), actor, selected_out_keys=["action"])
critic = CandidateCritic(trunk.embedding_dim, (64,))
loss = SACGLAMLoss(
    trunk, actor, critic, num_actions=env.action_spec.n, alpha_init=0.05, target_entropy=0.01
)
loss.make_value_estimator(gamma=0.7)
targets = SoftUpdate(loss, tau=0.1)
optimizer = SharedTrunkOptimizer(loss, lr_trunk=3e-4, lr_heads=1e-3, max_grad_norm=0.3)

# %%
# Replay
# ------

buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(10_000),
    sampler=HindsightRatioSampler(0.5),
    transform=Compose(SegmentMultiStepTransform(3, 0.7), HindsightTransform()),
    batch_size=32,
    generator=torch.Generator().manual_seed(0),
)

# %%
# Training
# --------
# The first updates train the critic alone: its advice is noise until then.

successes, updates = [], 0
collector = Collector(
    env,
    policy,
    frames_per_batch=64,
    total_frames=1_280,
    auto_register_policy_transforms=False,
)
for steps in collector:
    ended = steps["next", "done"]
    successes.append((steps["next", "reward"][ended] > 0).float().mean().item())
    buffer.extend(steps)
    for _ in range(12 if len(buffer) >= 32 else 0):
        optimizer.backward(loss(buffer.sample()), update_actor=updates >= 50)
        optimizer.step()
        targets.step()
        updates += 1
print("success:", " ".join(f"{share:.2f}" for share in successes))

# %%
# The trained policy, and what its critic holds of the candidates:

state = env.reset()[0].clone()
_, values = loss.policy_and_values(state[None])
show(state, values[0])
