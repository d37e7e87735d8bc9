"""The memory report against the bytes that are there after a step; kernels kept by oneDNN."""

import os
import subprocess
import sys

import pytest
import torch
from flan_t5 import make_flan_t5
from peft import LoraConfig
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, load_language_model, make_critic, make_trunk
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.runs.memory import bound_kernel_caches, memory_report


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


CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

# Prints by how many MB the process grows from products of 200 shapes, after one of the largest.
GROWTH = """
import torch
from torchrl_glam.runs.memory import bound_kernel_caches

def pass_through(rows):
    with torch.autocast("cpu", torch.bfloat16):
        out = layers(torch.randn(rows, 128, requires_grad=True))
    out.float().sum().backward()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

bound_kernel_caches(16)
layers = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.Linear(512, 128))
before = pass_through(2048)
print(max(pass_through(rows) for rows in range(48, 2048, 10)) - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's own count")
def test_memory_does_not_grow_with_the_number_of_shapes():
    """Where bfloat16 is native; 200 shapes grow it by more than 500 MB without the bound."""
    env = {key: value for key, value in os.environ.items() if key not in CAPACITIES}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], env=env, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 150


def test_a_capacity_that_the_user_set_stays(monkeypatch):
    monkeypatch.delenv(CAPACITIES[0], raising=False)
    monkeypatch.setenv(CAPACITIES[1], "7")
    bound_kernel_caches(300)
    assert [os.environ[name] for name in CAPACITIES] == ["300", "7"]
    with pytest.raises(ValueError, match=r"capacity \(0\) must be at least 1"):
        bound_kernel_caches(0)
