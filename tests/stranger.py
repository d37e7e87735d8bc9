"""Your own environment: a game in words, and three ways to train a language model on it.

python tests/stranger.py sac     # or ppo, or torchrl
"""

import random
import sys

import torch
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import TransformedEnv
from torchrl.objectives import ClipPPOLoss, SoftUpdate
from torchrl.objectives.value import GAE

from torchrl_glam.envs import TextEnvWrapper, check_text_env
from torchrl_glam.models import (
    CandidateActor,
    CandidateCritic,
    ScoresOnly,
    ValueHead,
    load_language_model,
    make_trunk,
)
from torchrl_glam.objectives import PPOGLAMLoss, SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.replay import HindsightTransform
from torchrl_glam.text import TokenizeText

# --- the environment


class Room:
    """Of three things one is to be grasped, and there is time to go to one."""

    things = ("red lion", "blue cow", "green cat", "blue rose", "red water")

    def reset(self, seed=None):
        draw = random.Random(seed)
        things = draw.sample(self.things, 3)
        self.info = {
            "goal": f"Grasp {draw.choice(things)}",
            "admissible_commands": [f"Go to {thing}" for thing in things],
        }
        return f"You see: {', '.join(things)}", self.info

    def step(self, action):
        thing = action.removeprefix("Go to ")
        won = self.info["goal"] == f"Grasp {thing}"
        return f"You are on: {thing}", float(won), won, not won, self.info


def grasped(episode):
    """Hindsight: the goal that the last step reached, whatever was to be grasped."""
    return [f"Grasp {episode[-1].action.removeprefix('Go to ')}"]


def make_env(num_envs=16, seed=0):
    games = [Room() for _ in range(num_envs)]
    return TextEnvWrapper(games, max_actions=3, goal="goal", hindsight=grasped, seed=seed)


# --- training


def make_agent():
    model, tokenizer = load_language_model("tiny")
    env = TransformedEnv(make_env(), TokenizeText(tokenizer, observation_length=32))
    return env, make_trunk(model, tokenizer)


def train_sac(total_steps=320):
    """SAC-GLAM with hindsight; returns the rewards of all steps in order."""
    env, trunk = make_agent()
    actor = CandidateActor()
    policy = TensorDictSequential(ScoresOnly(trunk), actor, selected_out_keys=["action"])
    critic = CandidateCritic(trunk.embedding_dim, (64,))
    loss = SACGLAMLoss(trunk, actor, critic, num_actions=env.action_spec.n)
    loss.make_value_estimator(gamma=0.9)
    targets = SoftUpdate(loss, tau=0.1)
    optimizer = SharedTrunkOptimizer(loss, lr_trunk=3e-4, lr_heads=1e-3, max_grad_norm=0.5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(5_000), transform=HindsightTransform(), batch_size=32
    )
    rewards = []
    collector = Collector(
        env,
        policy,
        frames_per_batch=32,
        total_frames=total_steps,
        auto_register_policy_transforms=False,
    )
    for steps in collector:
        rewards += steps["next", "reward"].flatten().tolist()
        buffer.extend(steps)
        for _ in range(4):
            optimizer.backward(loss(buffer.sample()))
            optimizer.step()
            targets.step()
    return rewards


def train_ppo(total_steps=768, own_loss=False):
    """PPO-GLAM, or TorchRL's own loss on the same networks."""
    env, trunk = make_agent()
    value = ValueHead(trunk.embedding_dim, (64,))
    trunk, actor = ScoresOnly(trunk), CandidateActor(return_log_prob=True)
    if own_loss:
        policy = ProbabilisticTensorDictSequential(trunk, *actor)
        critic = TensorDictSequential(trunk, value)
        loss = ClipPPOLoss(policy, critic, entropy_coeff=0.01, functional=False)
        estimate = GAE(gamma=0.9, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    else:
        policy = TensorDictSequential(trunk, actor, value)
        loss = PPOGLAMLoss(trunk, actor, value)
        loss.make_value_estimator(gamma=0.9, lmbda=0.95)
        estimate = loss.prepare
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    rewards, sizes = [], {"frames_per_batch": 96, "total_frames": total_steps}
    for steps in Collector(env, policy, auto_register_policy_transforms=False, **sizes):
        rewards += steps["next", "reward"].flatten().tolist()
        with torch.no_grad():
            rows = estimate(steps if own_loss else steps.reshape(-1)).reshape(-1)
        for _ in range(3):
            for part in rows[torch.randperm(len(rows))].split(32):
                terms = loss(part)
                total = sum(terms[name] for name in terms.keys() if name.startswith("loss_"))
                total.backward()
                optimizer.step()
                optimizer.zero_grad()
    return rewards


if __name__ == "__main__":
    torch.manual_seed(0)
    check_text_env(make_env())
    kind = sys.argv[1] if len(sys.argv) > 1 else "sac"
    rewards = train_sac() if kind == "sac" else train_ppo(own_loss=kind == "torchrl")
    parts = torch.tensor(rewards).chunk(5)
    print("success:", " ".join(f"{part.mean():.2f}" for part in parts))
