"""Several processes that talk over gloo, forked from the test: nothing is imported again."""

import datetime
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from torchrl_glam.runs.processes.ranks import Ranks


def run_processes(function, size=2, timeout=300):
    """What ``function(ranks)`` returns in each of several processes, by rank.

    None waits for another one for longer than ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_run, (function, size, folder, timeout), nprocs=size, start_method="fork")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def caught(act):
    """Kind and words of what a call raises."""
    try:
        act()
    except Exception as error:
        return type(error).__name__, str(error)


def _run(rank, function, size, folder, timeout):
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=timeout)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", timeout=patience, rank=rank, world_size=size
    )
    result = function(Ranks(rank, size, dist.group.WORLD))
    torch.save(result, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
