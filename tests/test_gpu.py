"""The same numbers on a GPU as on the CPU; without a GPU, on one that is pretended.

``pytest -m gpu`` runs those that need a card, and skips them with a reason where there is none.
"""

import copy
from functools import partial

import gpu_parity
import pytest
import torch
from families import make_model, make_nine_states
from flan_t5 import make_flan_t5
from pretend_card import PretendCard
from tensordict.nn import TensorDictSequential
from torch.utils._pytree import tree_map
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType, set_exploration_type

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
    ScoresOnly,
    load_tokenizer,
    make_trunk,
)
from torchrl_glam.runs.checkpoints.adapters import CollectorState
from torchrl_glam.runs.config import SACGLAMRayConfig
from torchrl_glam.runs.processes.ray_pool import CollectorWorker
from torchrl_glam.runs.processes.ray_worker import make_collector, trained_weights

NEEDS_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


def check(found, tolerance=gpu_parity.TOLERANCE):
    assert gpu_parity.within(found, tolerance), found


@pytest.fixture(params=[pytest.param("card", marks=NEEDS_CARD), "pretended card"])
def device(request):
    """A card, or one that is pretended."""
    if request.param == "card":
        yield "cuda"
    else:
        with PretendCard():
            yield "cuda"


@pytest.mark.parametrize("family", ["flan-t5", "qwen2"])
@pytest.mark.parametrize("kind", ["scoring", "sac", "ppo"])
def test_scores_losses_and_gradients_are_those_of_the_cpu(device, kind, family):
    check(getattr(gpu_parity, kind)(device, family))


def test_a_trunk_is_where_its_model_is(device):
    tokenizer = load_tokenizer("tiny")
    model = make_model("qwen2", tokenizer)
    states = make_nine_states(tokenizer)
    expected = make_trunk(copy.deepcopy(model), tokenizer)(states)["log_likelihood"]
    trunk = make_trunk(model.to(device), tokenizer, normalisation="word_mean")
    words = trunk(states.to(device))["log_likelihood"]
    trunk = make_trunk(model, tokenizer)
    check({"scores": gpu_parity.difference(trunk(states.to(device))["log_likelihood"], expected)})
    assert words.is_cuda and (words >= trunk(states.to(device))["log_likelihood"]).all()


def test_replay_gives_the_batches_of_the_cpu(device):
    check(gpu_parity.replay(device), 0.0)


def test_rollouts_with_hindsight_are_those_of_the_cpu(device):
    check(gpu_parity.relabelled_rollout(device), 0.0)


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
    check(getattr(gpu_parity, kind)("cuda", "flan-t5", torch.bfloat16), 0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_four_bits_score_as_on_the_cpu(tmp_path):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes for weights in 4 bits")
    found = gpu_parity.four_bit("cuda", make_flan_t5(tmp_path / "model"))
    assert found["CPU"] < 1e-3 and found["full"] < 0.1


def test_a_difference_is_seen():
    """Of norm 2 between vectors of norm 4 and above; a NaN is never within a tolerance."""
    expected, ours = torch.tensor([0.0, 4.0]), torch.tensor([2.0, 4.0])
    assert gpu_parity.difference(ours, expected) == 0.5
    assert not gpu_parity.within({"a": 0.0, "b": 0.5})
    assert not gpu_parity.within({"a": float("nan")}, 1.0)


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
