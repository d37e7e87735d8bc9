"""A run's device: memory that runs out, memory and kernels that are kept, arithmetic as it is."""

import copy
import ctypes
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from families import fresh_trunk, make_transitions
from forked_processes import run_processes
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, make_critic
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.runs.device import KeepFloat32, bound_kernel_caches
from torchrl_glam.runs.out_of_memory import HalvingPasses


class Training:
    """An update as the recipes do it, on a device that holds so many states at a time."""

    def __init__(self, states, max_tokens, group=None):
        self.states, self.read, self.group = states, [], group
        self.trunk = fresh_trunk("flan-t5")
        plain = self.trunk._read
        self.trunk._read = lambda *inputs: plain(*self.fits(*inputs))
        torch.manual_seed(0)
        _, critic = make_critic(self.trunk, num_actions=5, hidden_sizes=(16,))
        self.loss = SACGLAMLoss(self.trunk, CandidateActor(), critic, num_actions=5)
        self.loss.make_value_estimator(gamma=0.9)
        SoftUpdate(self.loss, tau=0.1)
        self.optimizer = SharedTrunkOptimizer(self.loss, group=group)
        self.passes = HalvingPasses(self.trunk, self.optimizer, max_tokens)

    def update(self):
        batch = make_transitions()
        size = len(batch) * (2 if self.group else 1)
        return self.passes.update(self.loss, batch, size)[1]

    def fits(self, prompt, *others):
        if len(prompt) > self.states:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")
        self.read.append(len(prompt))
        return prompt, *others

    def weights(self):
        return copy.deepcopy(self.loss.state_dict())


def same(ours, expected):
    assert ours.keys() == expected.keys()
    return all(torch.equal(torch.as_tensor(ours[k]), torch.as_tensor(expected[k])) for k in ours)


def whole_pass():
    """Tokens of a pass that reads everything."""
    batch = make_transitions()
    prompts, nodes = fresh_trunk("flan-t5").count_tokens(batch)
    return len(batch) * int(prompts.max() + nodes.max())


@pytest.mark.parametrize("given", [True, False], ids=["tokens given", "one pass"])
def test_the_update_is_that_of_smaller_passes(given, caplog):
    tokens = whole_pass()
    training = Training(states=6, max_tokens=tokens if given else None)
    expected = Training(states=100, max_tokens=tokens // 2)
    assert training.update() == expected.update()
    assert same(training.weights(), expected.weights())
    assert training.passes.max_tokens == tokens // 2
    said = caplog.text
    assert f"max_tokens_per_pass={tokens // 2}" in said and "Tried to allocate 2.00 GiB" in said
    caplog.clear()
    training.update()  # and says no more
    assert not caplog.text and max(training.read) <= 6


def test_what_a_broken_backward_pass_left_is_forgotten():
    training = Training(states=100, max_tokens=None)
    expected = Training(states=100, max_tokens=whole_pass() // 2)
    backward = training.optimizer.backward

    def fails_late(terms, share):
        backward(terms, share)
        training.optimizer.backward = backward
        raise torch.OutOfMemoryError("CUDA out of memory.")

    training.optimizer.backward = fails_late
    training.update()
    expected.update()
    assert same(training.weights(), expected.weights())


@pytest.mark.parametrize(
    ("states", "max_tokens", "message"),
    [
        (2, None, "again, after passes were halved once.*set max_tokens_per_pass=.*or less"),
        (0, 1, "max_tokens_per_pass: 1; CUDA out of memory"),
    ],
)
def test_memory_that_runs_out_again_ends_the_run_and_changes_nothing(states, max_tokens, message):
    """Or for one token, which is not halved."""
    training = Training(states, max_tokens)
    before = training.weights()
    with pytest.raises(torch.OutOfMemoryError, match=message):
        training.update()
    assert same(training.weights(), before)


def test_one_process_of_two_halves_its_passes():
    def update(ranks):
        training = Training((100, 6)[ranks.rank], max_tokens=None, group=ranks.group)
        training.update()
        return training.weights(), max(training.read) <= 6

    (first, _), (second, halved) = run_processes(update)
    alone = Training(states=100, max_tokens=None)
    alone.update()
    assert halved and same(first, second)
    torch.testing.assert_close(first, dict(alone.weights()), atol=1e-5, rtol=0)


def test_memory_that_runs_out_in_a_step_ends_the_run():
    """Some parameters may have moved, so the update is not made again."""
    training = Training(states=100, max_tokens=None)
    full = mock.Mock(side_effect=torch.OutOfMemoryError("full"))
    training.optimizer.optimizers["alpha"].step = full
    with pytest.raises(torch.OutOfMemoryError, match="^full$"):
        training.update()
    full.assert_called_once()


def printed_by(program, env):
    return float(subprocess.check_output([sys.executable, "-c", program], env=env, text=True))


CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

# Prints by how many MB the process grows from products of 200 shapes, after one of the largest.
GROWTH = """
import torch
from torchrl_glam.runs.device import bound_kernel_caches

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


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's own count")
def test_memory_does_not_grow_with_the_number_of_shapes():
    """Where bfloat16 is native; 200 shapes grow it by more than 500 MB without the bound."""
    env = {key: value for key, value in os.environ.items() if key not in CAPACITIES}
    assert printed_by(GROWTH, env) < 150


def test_a_capacity_that_the_user_set_stays(monkeypatch):
    monkeypatch.delenv(CAPACITIES[0], raising=False)
    monkeypatch.setenv(CAPACITIES[1], "7")
    bound_kernel_caches(300)
    assert [os.environ[name] for name in CAPACITIES] == ["300", "7"]


# Prints how many pages the system gives out for 50 rounds of ten blocks of 4 MiB, after a first.
FAULTS = """
import resource, torch
from torchrl_glam.runs.device import keep_freed_memory

def faults():
    blocks = [torch.ones(1 << 20) for _ in range(10)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
before = faults()
print(max(faults() for _ in range(50)) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's allocator")
@pytest.mark.parametrize(
    ("setting", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "0"}, False)]
)
def test_freed_memory_is_kept_unless_the_user_says_otherwise(setting, kept):
    env = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    assert (printed_by(FAULTS, env | setting) < 20_000) is kept


def test_muon_orthogonalises_in_float32():
    """A step is U p(S) V^T, where p is the quintic five times over the scaled singular values."""
    matrix = torch.nn.Parameter(torch.zeros(16, 16))
    matrix.grad = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    given = matrix.grad.clone()
    u, s, v = torch.linalg.svd(given.double() / given.double().norm())
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    with KeepFloat32():
        torch.optim.Muon([matrix], lr=1.0, weight_decay=0.0).step()
        assert torch.ones(2).bfloat16().dtype == torch.float32
    torch.testing.assert_close(matrix.double(), -(u * s) @ v, atol=1e-4, rtol=0)
    torch.testing.assert_close(matrix.grad, given)
    assert torch.ones(2).bfloat16().dtype == torch.bfloat16
