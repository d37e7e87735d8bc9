"""Kernels that oneDNN keeps, and memory that the allocator does."""

import ctypes
import os
import subprocess
import sys

import pytest

from torchrl_glam.runs.device import bound_kernel_caches

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
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], env=env, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 150


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
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**env, **setting}, capture_output=True, text=True
    )
    assert (int(done.stdout) < 20_000) is kept, done.stderr
