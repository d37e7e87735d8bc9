"""
Hindsight for numeric goals
===========================

The replay transforms ask for no text. Here a robot on a floor of 9 x 9 squares has 16 steps to
reach a place given by its coordinates, and an ordinary network of TorchRL's learns it by DQN.
"""

# %%
# An environment that names goals
# -------------------------------
# Hindsight needs to be told which goal a step reached: its coordinates, and a kind (one here). The
# floor tells so after every step.

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    Bounded,
    Categorical,
    Composite,
    LazyTensorStorage,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import EnvBase
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from torchrl_glam.replay import HindsightTransform

MOVES = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


class Floor(EnvBase):
    """Reach a square of 9 x 9 in 16 steps; reward 1 there."""

    def __init__(self, num_envs=32):
        super().__init__(batch_size=[num_envs])
        place = Unbounded((num_envs, 2))
        kind = Bounded(0, 1, (num_envs,), dtype=torch.int8)
        named = Composite(
            goal=Unbounded((num_envs, 1, 2)),
            kind=Bounded(-1, 1, (num_envs, 1), dtype=torch.int8),
            shape=[num_envs],
        )
        self.observation_spec = Composite(
            place=place, goal=place.clone(), goal_kind=kind, hindsight=named, shape=[num_envs]
        )
        self.action_spec = Categorical(4, shape=(num_envs,))
        self.reward_spec = Unbounded((num_envs, 1))
        self.draw = torch.Generator().manual_seed(0)
        self.place, self.goal, self.steps = torch.zeros((3, num_envs, 2)).unbind(0)

    def state(self):
        kind = torch.zeros(self.batch_size, dtype=torch.int8)
        named = TensorDict(goal=self.place[:, None], kind=kind[:, None], batch_size=self.batch_size)
        entries = dict(place=self.place, goal=self.goal, goal_kind=kind, hindsight=named)
        return TensorDict(entries, self.batch_size).clone()

    def _reset(self, tensordict):
        new = torch.ones(*self.batch_size, 1, dtype=torch.bool)
        if tensordict is not None:
            new = tensordict.get("_reset", new)
        drawn = torch.randint(9, (2, *self.place.shape), generator=self.draw).float()
        self.place, self.goal = (
            torch.where(new, fresh, old)
            for fresh, old in zip(drawn, (self.place, self.goal), strict=True)
        )
        self.steps = torch.where(new, 0, self.steps)
        return self.state()

    def _step(self, tensordict):
        self.place = (self.place + MOVES[tensordict["action"]]).clamp(0, 8)
        self.steps = self.steps + 1
        reached = (self.place == self.goal).all(-1, keepdim=True)
        late = (self.steps[:, :1] >= 16) & ~reached
        ends = dict(done=reached | late, terminated=reached, truncated=late)
        return self.state().update({"reward": reached.float(), **ends})

    def _set_seed(self, seed):
        self.draw.manual_seed(seed)


# %%
# The transform
# -------------
# Its keys say where goals stand; ``naming="every"``: a goal is named after every step that reaches
# it. ``relabel="none"`` is replay without hindsight.


def make_buffer(relabel):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(50_000),
        transform=HindsightTransform(
            relabel,
            naming="every",
            goals_per_episode=4,
            goal_key="goal",
            goal_entries=(),
            hindsight_goal_key=("hindsight", "goal"),
        ),
        batch_size=256,
        generator=torch.Generator().manual_seed(0),
    )


# %%
# DQN, without hindsight and with it
# ----------------------------------


def train(relabel, total_steps=8_192):
    """Share of the episodes that reach their goal, by fifths of the training."""
    torch.manual_seed(0)
    floor = Floor()
    network = MLP(4, 4, num_cells=[128, 128])
    policy = QValueActor(network, in_keys=["place", "goal"], spec=floor.action_spec_unbatched)
    explore = EGreedyModule(floor.action_spec_unbatched, eps_init=0.2, eps_end=0.2)
    loss = DQNLoss(policy, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    targets = SoftUpdate(loss, tau=0.05)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    buffer, successes = make_buffer(relabel), []
    for steps in Collector(
        floor,
        TensorDictSequential(policy, explore),
        frames_per_batch=512,
        total_frames=total_steps,
        auto_register_policy_transforms=False,
    ):
        ended = steps["next", "done"]
        successes += (steps["next", "reward"][ended] > 0).tolist()
        buffer.extend(steps)
        for _ in range(16 if len(buffer) >= 256 else 0):
            optimizer.zero_grad()
            loss(buffer.sample())["loss"].backward()
            optimizer.step()
            targets.step()
    return [part.float().mean().item() for part in torch.tensor(successes).chunk(5)]


plain, hindsight = train("none"), train("all")
print("without hindsight:", " ".join(f"{share:.2f}" for share in plain))
print("with hindsight:   ", " ".join(f"{share:.2f}" for share in hindsight))
