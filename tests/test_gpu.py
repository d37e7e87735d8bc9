"""The same numbers on a GPU as on the CPU; without a GPU, on one that is pretended.

``pytest -m gpu`` runs those that need a GPU, and skips them with a reason where there is none.
Models are small, with weights so large that a wrong mask or position would show.
"""

import copy
import functools
from functools import partial

import pytest
import torch
from families import fresh_trunk, make_model, make_nine_states, make_transitions
from flan_t5 import make_flan_t5
from peft import LoraConfig
from pretend_card import PretendCard
from tensordict.nn import TensorDictSequential
from torch.utils._pytree import tree_map
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ExplorationType, TransformedEnv, set_exploration_type
from torchrl.envs.transforms import Compose
from torchrl.objectives import SoftUpdate

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
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
)
from torchrl_glam.runs.checkpoints.adapters import CollectorState
from torchrl_glam.runs.config import SACGLAMRayConfig
from torchrl_glam.runs.processes.ray_pool import CollectorWorker
from torchrl_glam.runs.processes.ray_worker import make_collector, trained_weights
from torchrl_glam.text import TokenizeText

NEEDS_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


def check(found, tolerance=1e-4):
    """That no difference is above the tolerance; one that is NaN is."""
    assert all(value <= tolerance for value in found.values()), found


@pytest.fixture(params=[pytest.param("card", marks=NEEDS_CARD), "pretended card"])
def device(request):
    """A card, or one that is pretended."""
    if request.param == "card":
        yield "cuda"
    else:
        with PretendCard():
            yield "cuda"


# What is compared, ``{name: difference}``


def difference(ours, expected):
    """Norm of the difference as a share of the expected norm; absolute where that is below 1."""
    ours, expected = ours.detach().double().cpu(), expected.detach().double().cpu()
    assert ours.shape == expected.shape, (ours.shape, expected.shape)
    return float((ours - expected).norm() / expected.norm().clamp_min(1.0))


def differences(ours, expected):
    """Of every entry of two dictionaries of tensors, by name."""
    assert ours.keys() == expected.keys(), set(ours) ^ set(expected)
    return {name: difference(ours[name], expected[name]) for name in expected}


def trunks(device, family, autocast):
    """The same trunk to be compared on a device and, as it is, on the CPU."""
    yield device, fresh_trunk(family, autocast)
    yield "cpu", fresh_trunk(family, None)


def scoring(device, family, autocast=None):
    """Log-likelihoods and embeddings of nine states."""
    states, found = make_nine_states(load_tokenizer("tiny")), []
    for at, trunk in trunks(device, family, autocast):
        trunk = trunk.to(at)
        with torch.no_grad():
            out = trunk(states.to(at))
        mask = out["action_mask"]
        out = {key: out[key] for key in trunk.out_keys}
        found.append({k: v if k == "prompt_embedding" else v[mask] for k, v in out.items()})
    return differences(*found)


def sac(device, family, autocast=None):
    """Losses of SAC, and the weights after a step of optimizer and targets."""
    batch, found = make_transitions(), []
    for at, trunk in trunks(device, family, autocast):
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
    for at, trunk in trunks(device, family, autocast):
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


COMPARISONS = {"scoring": scoring, "sac": sac, "ppo": ppo}


# Tests


@pytest.mark.parametrize("family", ["flan-t5", "qwen2"])
@pytest.mark.parametrize("kind", ["scoring", "sac", "ppo"])
def test_scores_losses_and_gradients_are_those_of_the_cpu(device, kind, family):
    check(COMPARISONS[kind](device, family))


def test_a_trunk_is_where_its_model_is(device):
    tokenizer = load_tokenizer("tiny")
    model = make_model("qwen2", tokenizer)
    states = make_nine_states(tokenizer)
    expected = make_trunk(copy.deepcopy(model), tokenizer)(states)["log_likelihood"]
    trunk = make_trunk(model.to(device), tokenizer, normalisation="token_mean")
    means = trunk(states.to(device))["log_likelihood"]
    trunk = make_trunk(model, tokenizer)
    check({"scores": difference(trunk(states.to(device))["log_likelihood"], expected)})
    assert means.is_cuda and (means >= trunk(states.to(device))["log_likelihood"]).all()


def test_replay_gives_the_batches_of_the_cpu(device):
    check(replay(device), 0.0)


def test_a_policy_on_a_card_acts_for_environments_in_main_memory(device):
    """Only what it reads goes up, and only what it writes comes down."""
    tokenizer = load_tokenizer("tiny")
    trunk, states = make_trunk(make_model("t5", tokenizer), tokenizer), make_nine_states(tokenizer)
    policy = OnDevice(TensorDictSequential(ScoresOnly(trunk), CandidateActor()))
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        expected = policy(states.clone())["action"]
        policy.to(device)
        out = policy(states.clone().set("reward", torch.ones(9)))
        there = policy(states.to(device))
    assert not out["action"].is_cuda and out["action"].equal(expected)
    assert there["action"].is_cuda and there["action"].cpu().equal(expected)
    assert set(out.keys()) == set(there.keys()) | {"reward"}


def test_a_collector_whose_environment_is_on_a_card_goes_on_from_what_was_saved(device):
    def collector():
        env = PlaygroundTextEnv(4, num_objects=3, seed=0, text=False, device=device)
        return Collector(env, env.make_oracle(), frames_per_batch=16)

    first, second = collector(), collector()
    batches = iter(first)
    next(batches)
    state = copy.deepcopy(CollectorState(first).state_dict())
    state = tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, state)  # as from disk
    expected = next(batches).clone()
    again = iter(second)
    CollectorState(second).load_state_dict(state)
    assert (next(again) == expected).all()


def test_a_worker_collects_on_its_card_for_a_learner_without():
    """Weights go there and steps come back; nothing of the batch is on the card."""

    def collect(gpus):
        config = SACGLAMRayConfig(num_envs=2, update_every=4, collector_gpus=gpus, autocast="false")
        worker = CollectorWorker()
        worker.start(partial(make_collector, config), 0)
        policy = worker._collector.policy
        return worker.collect(trained_weights(policy) * 0.5)

    with PretendCard():
        found = collect(gpus=1)
    assert (found == collect(gpus=0)).all()
    assert not any(value.is_cuda for value in found.values(True, True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("kind", ["scoring", "sac", "ppo"])
def test_bfloat16_stays_near(kind):
    check(COMPARISONS[kind]("cuda", "flan-t5", torch.bfloat16), 0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_four_bits_score_as_on_the_cpu(tmp_path):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes for weights in 4 bits")
    found = four_bit("cuda", make_flan_t5(tmp_path / "model"))
    assert found["CPU"] < 1e-3 and found["full"] < 0.1


def test_the_pretended_card_refuses_tensors_of_both_sides():
    with PretendCard():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert there.device == torch.device("cuda:0") and here.device.type == "cpu"
        assert (there * 2).device == there.device and there.to("cpu").device == here.device
        assert (there + torch.tensor(1.0)).is_cuda  # a single number may come from anywhere
        for mixed in (lambda: there + here, lambda: torch.cat([here, there])):
            with pytest.raises(RuntimeError, match="not on the device of the first"):
                mixed()
        with pytest.raises(RuntimeError, match="not on the device of the first"):
            here[torch.arange(2, device="cuda")]
        assert there[torch.arange(2)].is_cuda
        layer = torch.nn.Linear(3, 2).to("cuda")
        layer(there).sum().backward()
        assert layer.weight.grad.is_cuda and isinstance(layer.weight, torch.nn.Parameter)
