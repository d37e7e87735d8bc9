"""What a device computes against what the CPU does: scores, losses, gradients, replay, 4 bits.

Each function returns ``{name: difference}``; `difference` says what that is. Models are small, with
weights so large that a wrong mask or position would show. In float32 nothing may differ by more
than `TOLERANCE`; in bfloat16 the differences are stated.
"""

import copy
import functools

import torch
from families import make_model, make_nine_states, make_transitions
from peft import LoraConfig
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import Compose
from torchrl.objectives import SoftUpdate

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    CandidateActor,
    ScoresOnly,
    ValueHead,
    load_language_model,
    load_tokenizer,
    make_critic,
    make_trunk,
)
from torchrl_glam.objectives import PPOGLAMLoss, SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.replay import (
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
    close_rollout,
)
from torchrl_glam.text import TokenizeText

TOLERANCE = 1e-4


def difference(ours, expected):
    """Norm of the difference as a share of the expected norm; absolute where that is below 1."""
    ours, expected = ours.detach().double().cpu(), expected.detach().double().cpu()
    assert ours.shape == expected.shape, (ours.shape, expected.shape)
    return float((ours - expected).norm() / expected.norm().clamp_min(1.0))


def differences(ours, expected):
    """Of every entry of two dictionaries of tensors, by name."""
    assert ours.keys() == expected.keys(), set(ours) ^ set(expected)
    return {name: difference(ours[name], expected[name]) for name in expected}


@functools.cache
def _checked_trunk(family):
    tokenizer = load_tokenizer("tiny")
    return make_trunk(make_model(family, tokenizer), tokenizer)


def fresh_trunk(family, autocast=None):
    """A trunk on the CPU, with the same weights each time."""
    trunk = copy.deepcopy(_checked_trunk(family))
    trunk.autocast = autocast
    return trunk


def scoring(device, family, autocast=None):
    """Log-likelihoods and embeddings of nine states."""
    states, found = make_nine_states(load_tokenizer("tiny")), []
    for at, products in ((device, autocast), ("cpu", None)):
        trunk = fresh_trunk(family, products).to(at)
        with torch.no_grad():
            out = trunk(states.to(at))
        mask = out["action_mask"]
        out = {key: out[key] for key in trunk.out_keys}
        found.append({k: v if k == "prompt_embedding" else v[mask] for k, v in out.items()})
    return differences(*found)


def sac(device, family, autocast=None):
    """Losses of SAC, and the weights after a step of optimizer and targets."""
    batch, found = make_transitions(), []
    for at, products in ((device, autocast), ("cpu", None)):
        trunk = fresh_trunk(family, products)
        torch.manual_seed(0)
        trunk, critic = make_critic(trunk, num_actions=5, hidden_sizes=(16,))
        loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=5).to(at)
        loss.make_value_estimator(gamma=0.9)
        targets = SoftUpdate(loss, tau=0.1)
        # A rate at which a gradient of another sign shows, and one in the last bits does not.
        rates = dict.fromkeys(("lr_trunk_actor", "lr_trunk_critic", "lr_heads", "lr_alpha"), 1e-5)
        optimizer = SharedTrunkOptimizer(loss, **rates)
        terms = loss(batch.to(at))
        out = dict(terms.detach().items())
        optimizer.backward(terms)
        norms = optimizer.step()
        targets.step()
        out |= {f"norm of {name}": torch.tensor(norm) for name, norm in norms.items()}
        out["weights"] = torch.cat([p.detach().flatten() for p in loss.parameters()])
        moved = [loss.target_trunk_params, loss.target_qvalue_network_params]
        moved = [v.detach().flatten() for p in moved for v in p.values(True, True)]
        out["targets"] = torch.cat(moved)
        found.append(out)
    return differences(*found)


def ppo(device, family, autocast=None):
    """Losses and gradient of PPO on rows that the policy recorded, a little off."""
    rows, found = make_transitions(), []
    for at, products in ((device, autocast), ("cpu", None)):
        trunk = fresh_trunk(family, products)
        torch.manual_seed(0)
        actor, value = CandidateActor(return_log_prob=True), ValueHead(trunk.embedding_dim, (16,))
        loss = PPOGLAMLoss(ScoresOnly(trunk), actor, value).to(at)
        recorded = rows.to(at)
        with torch.no_grad():
            recorded = loss.value(loss.trunk(recorded))
            log_prob = actor.get_dist(recorded).log_prob(recorded["action"])
        reward = recorded["next", "reward"]
        recorded["action_log_prob"] = log_prob + 0.05 * reward.squeeze(-1)
        following = recorded["next"]
        following["done"] = torch.ones_like(following["done"])  # runs of one step
        terms = loss(loss.prepare(recorded))
        out = {k: v.detach() for k, v in terms.items() if k.startswith("loss_")}
        sum(terms[name] for name in out).backward()
        leaves = [*loss.trunk_parameters(), *loss.critic_parameters()]
        out["gradient"] = torch.cat([p.grad.flatten() for p in leaves])
        found.append(out)
    return differences(*found)


@functools.cache
def steps(num_batches=6):
    """Batches that a collector gives at random play; not to be changed."""
    tokenizer = load_tokenizer("tiny")
    env = PlaygroundTextEnv(num_envs=4, num_objects=3, sequential=False, max_steps=4, seed=0)
    env = TransformedEnv(env, TokenizeText(tokenizer))
    collector = Collector(env, None, frames_per_batch=8, total_frames=8 * num_batches)
    found = [batch.clone() for batch in collector]
    collector.shutdown()
    return found


def collected_on(device, batch):
    """A batch as TorchRL's collectors give it where environments and policy are on a card.

    Their numbers of trajectories stay in main memory then, and the batch names no device.
    """
    numbers = batch["collector", "traj_ids"].clone()
    batch = batch.clone().to(device).clear_device_()
    return batch.set(("collector", "traj_ids"), numbers)


def replay(device):
    """Batches of a replay buffer that steps of the device are put into, and drawn to it."""
    rollouts, found = steps(), []
    for at in (device, "cpu"):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(200),
            sampler=HindsightRatioSampler(0.5),
            transform=Compose(SegmentMultiStepTransform(3, 0.9), HindsightTransform(seed=0)),
            batch_size=16,
            generator=torch.Generator().manual_seed(0),
        )
        for batch in rollouts:
            buffer.extend(collected_on(at, batch))
        drawn = torch.cat([buffer.sample().to(at) for _ in range(3)])
        found.append({str(k): v for k, v in drawn.items(True, True)})
        assert all(value.device.type == torch.device(at).type for value in found[-1].values())
    return differences(*found)


def relabelled_rollout(device):
    """Rows of an on-policy rollout, with hindsight, as PPO prepares them."""
    whole, found = torch.cat(steps(), 1), []
    for at in (device, "cpu"):
        rows = Compose(HindsightTransform(seed=0)).inv(close_rollout(collected_on(at, whole)))
        found.append({str(k): v for k, v in rows.reshape(-1).items(True, True)})
    return differences(*found)


def four_bit(device, folder):
    """Scores of 4-bit weights of a model: on the device against the CPU, and against full ones."""
    settings = {"load_in_4bit": True, "compute_dtype": torch.float32}
    settings["lora"] = LoraConfig(r=2, target_modules=["q", "v"])
    found = []
    for at, options in ((device, settings), ("cpu", settings), ("cpu", {})):
        torch.manual_seed(0)
        model, tokenizer = load_language_model(folder, device=at, **copy.deepcopy(options))
        states = make_nine_states(tokenizer).to(at)
        with torch.no_grad():
            scores = make_trunk(model, tokenizer)(states)["log_likelihood"]
        found.append(scores[states["action_mask"]])
    return {"CPU": difference(found[0], found[1]), "full": difference(found[1], found[2])}


def within(found: dict[str, float], tolerance: float = TOLERANCE) -> bool:
    """Whether no difference is above the tolerance; one that is NaN is."""
    return all(value <= tolerance for value in found.values())
