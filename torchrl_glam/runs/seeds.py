"""Seeds: of a process, of a block, and of what numbers name together."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch within the block; the generators of the CPU and the GPU in use are put back."""
    # By default those of all GPUs are kept, which begins to use each of them.
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield


def derive_seed(*numbers: int) -> int:
    """A seed for what these numbers name together, such as a run's seed and a process of it.

    Examples:
        >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
