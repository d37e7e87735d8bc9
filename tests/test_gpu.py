"""The same numbers on a GPU as on the CPU; without a GPU, on one that is pretended.

``pytest -m gpu`` runs those that need a GPU, and skips them with a reason where there is none.
Models are small, with weights so large that a wrong mask or position would show.
"""

import copy
import functools
from functools import partial

import pytest
import stairs
import torch
from families import (
    fresh_trunk,
    make_model,
    make_nine_states,
    make_transitions,
    outputs_and_gradients,
)
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
from torchrl_glam.objectives import PPOGLAMLoss, SACGLAMLoss, SharedTrunkOptimizer, trainable_leaves
from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.runs.checkpoints.adapters import CollectorState
from torchrl_glam.runs.config import SACGLAMRayConfig
from torchrl_glam.runs.processes.ray_pool import CollectorWorker
from torchrl_glam.runs.processes.ray_worker import make_collector
from torchrl_glam.text import TokenizeText

no_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")


@pytest.fixture(params=[pytest.param("card", marks=[pytest.mark.gpu, no_card]), "pretended card"])
def device(request):
    if request.param == "card":
        yield "cuda"
    else:
        with PretendCard():
            yield "cuda"


# What is compared, ``{name: tensor}``


def compare(ours, expected, tolerance=1e-4):
    """That no norm of a difference is above a share of the expected norm, or of 1 if that is less.

    One that is NaN is.
    """
    assert ours.keys() == expected.keys(), set(ours) ^ set(expected)
    found = {}
    for name in expected:
        one, other = (side[name].detach().double().cpu() for side in (ours, expected))
        assert one.shape == other.shape, (name, one.shape, other.shape)
        found[name] = float((one - other).norm() / other.norm().clamp_min(1.0))
    assert all(value <= tolerance for value in found.values()), found


def scoring(device, trunk, tokenizer=None):
    states = make_nine_states(tokenizer or load_tokenizer("tiny"))
    return outputs_and_gradients(trunk.to(device), states.to(device))[0]


def sac(device, trunk):
    """Losses of SAC, and the weights after a step of optimizer and targets."""
    torch.manual_seed(0)
    trunk, critic = make_critic(trunk, num_actions=5, hidden_sizes=(16,))
    loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=5).to(device)
    loss.make_value_estimator(gamma=0.9)
    targets = SoftUpdate(loss, tau=0.1)
    # A rate at which a gradient of another sign shows, and one in the last bits does not.
    rates = dict.fromkeys(("lr_trunk", "lr_heads", "lr_alpha"), 1e-5)
    optimizer = SharedTrunkOptimizer(loss, **rates)
    terms = loss(make_transitions().to(device))
    out = dict(terms.detach().items())
    optimizer.backward(terms)
    norms = optimizer.step()
    targets.step()
    out |= {f"norm of {name}": torch.tensor(norm) for name, norm in norms.items()}
    state = torch.cat([value.flatten() for value in loss.state_dict().values()])
    return out | {"weights and targets": state}


def ppo(device, trunk):
    """Losses and gradient of PPO on rows that the policy recorded, a little off."""
    torch.manual_seed(0)
    actor, value = CandidateActor(return_log_prob=True), ValueHead(trunk.embedding_dim, (16,))
    loss = PPOGLAMLoss(ScoresOnly(trunk), actor, value).to(device)
    with torch.no_grad():
        recorded = loss.value(loss.trunk(make_transitions().to(device)))
        log_prob = actor.get_dist(recorded).log_prob(recorded["action"])
    following = recorded["next"]
    recorded["action_log_prob"] = log_prob + 0.05 * following["reward"].squeeze(-1)
    following["done"] = torch.ones_like(following["done"])  # runs of one step
    terms = loss(loss.prepare(recorded))
    out = {k: v.detach() for k, v in terms.items() if k.startswith("loss_")}
    sum(terms[name] for name in out).backward()
    leaves = [*loss.trunk_parameters(), *loss.critic_parameters()]
    return out | {"gradient": torch.cat([p.grad.flatten() for p in leaves])}


@functools.cache
def steps():
    """Batches that a collector gives at random play; not to be changed."""
    env = PlaygroundTextEnv(num_envs=4, num_objects=3, sequential=False, max_steps=4, seed=0)
    env = TransformedEnv(env, TokenizeText(load_tokenizer("tiny")))
    return [batch.clone() for batch in Collector(env, None, frames_per_batch=8, total_frames=48)]


def replay(device):
    """Batches of a replay buffer that steps of the device are put into, and drawn to it.

    TorchRL's collectors leave the numbers of trajectories in main memory where environments and
    policy are on a card, and name no device of a batch.
    """
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=HindsightRatioSampler(0.5),
        transform=Compose(SegmentMultiStepTransform(3, 0.9), HindsightTransform(seed=0)),
        batch_size=16,
        generator=torch.Generator().manual_seed(0),
    )
    for batch in steps():
        numbers = batch["collector", "traj_ids"].clone()
        batch = batch.clone().to(device).clear_device_()
        buffer.extend(batch.set(("collector", "traj_ids"), numbers))
    drawn = torch.cat([buffer.sample().to(device) for _ in range(3)])
    found = {str(k): v for k, v in drawn.items(True, True)}
    assert all(value.device.type == torch.device(device).type for value in found.values())
    return found


def four_bit(device, folder, **options):
    """Scores of a model, of its weights in 4 bits if ``options`` say so."""
    torch.manual_seed(0)
    model, tokenizer = load_language_model(folder, device=device, **copy.deepcopy(options))
    return {"scores": scoring(device, make_trunk(model, tokenizer), tokenizer)["log_likelihood"]}


# Tests

each_kind = pytest.mark.parametrize("kind", [scoring, sac, ppo], ids=lambda kind: kind.__name__)


@pytest.mark.parametrize("family", ["flan-t5", "qwen2"])
@each_kind
def test_scores_losses_and_gradients_are_those_of_the_cpu(device, kind, family):
    compare(kind(device, fresh_trunk(family)), kind("cpu", fresh_trunk(family)))


def test_a_trunk_is_where_its_model_is(device, tokenizer):
    model = make_model("qwen2", tokenizer)
    states = make_nine_states(tokenizer)
    expected = make_trunk(copy.deepcopy(model), tokenizer)(states)
    trunk = make_trunk(model.to(device), tokenizer, normalisation="token_mean")
    means = trunk(states.to(device))["log_likelihood"]
    found = make_trunk(model, tokenizer)(states.to(device))
    compare(*({"scores": out["log_likelihood"]} for out in (found, expected)))
    assert means.is_cuda and (means >= found["log_likelihood"]).all()


def test_replay_gives_the_batches_of_the_cpu(device):
    compare(replay(device), replay("cpu"), 0.0)


def test_a_policy_on_a_card_acts_for_environments_in_main_memory(device, tokenizer):
    """Only what it reads goes up, and only what it writes comes down."""
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
        return worker.collect(trainable_leaves(policy).data.cpu() * 0.5)

    with PretendCard():
        found = collect(gpus=1)
    assert (found == collect(gpus=0)).all()
    assert not any(value.is_cuda for value in found.values(True, True))


@pytest.mark.gpu
@no_card
@each_kind
def test_bfloat16_stays_near(kind):
    near = kind("cuda", fresh_trunk("flan-t5", torch.bfloat16))
    compare(near, kind("cpu", fresh_trunk("flan-t5")), 0.1)


@pytest.mark.gpu
@no_card
def test_four_bits_score_as_on_the_cpu(tmp_path):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes for weights in 4 bits")
    folder = make_flan_t5(tmp_path / "model")
    settings = {"load_in_4bit": True, "compute_dtype": torch.float32}
    settings["lora"] = LoraConfig(r=2, target_modules=["q", "v"])
    on_cpu = four_bit("cpu", folder, **settings)
    compare(four_bit("cuda", folder, **settings), on_cpu, 1e-3)
    compare(on_cpu, four_bit("cpu", folder), 0.1)


@pytest.mark.parametrize("make", [partial(PlaygroundTextEnv, 3), partial(stairs.make, 3)])
def test_environments_move_to_the_device_and_back(device, make):
    env = make(seed=0)
    copied = env.action_spec.clone()
    for place in (device, "cpu"):
        assert env.to(place) is env
        steps = Collector(env, None, frames_per_batch=120, total_frames=120, device=place)
        steps = next(iter(steps))
        assert steps.device.type == torch.device(place).type
        assert steps["action_mask"].gather(-1, steps["action"].unsqueeze(-1)).all()
        assert steps["next", "done"].any() and len(steps["action"].unique()) > 2
        assert env.action_spec.rand().device == env.device and copied.rand().device.type == "cpu"


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
