"""The memory report against the bytes that are there after a step."""

import pytest
import torch
from flan_t5 import make_flan_t5
from peft import LoraConfig
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, load_language_model, make_critic, make_trunk
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.training.memory import memory_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_flan_t5(tmp_path_factory.mktemp("models") / "flan")


def make(folder, separate=True, **options):
    trunk = make_trunk(*load_language_model(folder, **options))
    trunk, critic = make_critic(trunk, num_actions=5, hidden_sizes=(16,))
    loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=5)
    SoftUpdate(loss, tau=0.1)
    return loss, SharedTrunkOptimizer(loss, separate=separate)


# One hidden layer of 16 units on embeddings of 64, in float32.
CRITIC = 4 * (64 * 16 + 16 + 16 + 1)
# Adapters of rank 2 on q and v, 64 x 64, of 2 encoder layers, 2 decoder layers with two each.
ADAPTERS = 4 * 2 * (2 + 2 * 2) * 2 * (64 + 64)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("in_4bit", [False, True], ids=["float32", "4-bit"])
def test_targets_and_moments_are_of_trained_weights_only(folder, in_4bit, separate):
    lora = LoraConfig(r=2, target_modules=["q", "v"])
    loss, optimizer = make(folder, separate, lora=lora, load_in_4bit=in_4bit)
    report = memory_report(loss, optimizer)
    assert report["trained"] == ADAPTERS
    assert report["critics"] == CRITIC
    assert report["targets"] == ADAPTERS + CRITIC
    adams = 2 if separate else 1
    assert report["optimizer"] == 2 * (adams * ADAPTERS + CRITIC + 4)  # 4: the coefficient
    held = sum(p.nbytes for p in loss.trunk.model.parameters())
    assert report["model"] >= held
    if in_4bit:  # constants of the quantisation come on top
        assert held < report["model"] < 1.5 * held


def test_moments_are_as_large_as_reported(folder):
    loss, optimizer = make(folder)
    for group in optimizer.optimizers.values():
        for parameter in group.param_groups[0]["params"]:
            parameter.grad = torch.zeros_like(parameter)
        group.step()
    moments = [
        value
        for group in optimizer.optimizers.values()
        for state in group.state.values()
        for name, value in state.items()
        if name.startswith("exp_avg")
    ]
    assert memory_report(loss, optimizer)["optimizer"] == sum(m.nbytes for m in moments)
    weights = list(loss.trunk.model.parameters())
    assert memory_report(loss, optimizer)["model"] == sum(w.nbytes for w in weights)
