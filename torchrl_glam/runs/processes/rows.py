"""Rows that the processes of a run have together: put on one scale, and divided into batches."""

import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_glam.runs.processes.ranks import Ranks


def standardise(values: Tensor, ranks: Ranks) -> Tensor:
    """Values of all processes, shifted and scaled together to mean 0 and deviation 1.

    Examples:
        >>> standardise(torch.tensor([1.0, 2.0, 3.0]), Ranks())
        tensor([-1.,  0.,  1.])
    """
    if ranks.size == 1:
        return (values - values.mean()) / values.std().clamp_min(1e-4)
    count = values.new_tensor(values.numel())
    total = ranks.sum(TensorDict(sum=values.double().sum(), count=count))
    mean = total["sum"] / total["count"]
    squares = (values.double() - mean).square().sum()
    squares = ranks.sum(TensorDict(squares=squares))["squares"]
    scale = (squares / (total["count"] - 1)).sqrt().clamp_min(1e-4)
    return ((values - mean) / scale).to(values.dtype)


def minibatches(count: int, batch_size: int, ranks: Ranks) -> list[tuple[Tensor, int]]:
    """Divides the rows of all processes, once each and at random, among whole batches.

    Each process gives rows in proportion to its ``count``, and one at least to each batch, which
    has ``batch_size`` rows over all processes, give or take one for each of them. Returns for each
    batch the indices of this process's rows, and how many those of all are.

    Examples:
        >>> [(len(rows), total) for rows, total in minibatches(10, 4, Ranks())]
        [(4, 4), (4, 4)]
    """
    counts = ranks.gather(count)
    batches = min(sum(counts) // batch_size, *counts)
    kept, begin, whole = [], 0, batches * batch_size
    for rows in counts:
        share = (begin + rows) * whole // sum(counts) - begin * whole // sum(counts)
        kept.append(max(batches, share))
        begin += rows
    sizes = [[n // batches + (i < n % batches) for i in range(batches)] for n in kept]
    totals = [sum(of_batch) for of_batch in zip(*sizes, strict=True)]
    order = torch.randperm(count)[: kept[ranks.rank]]
    return list(zip(order.split(sizes[ranks.rank]), totals, strict=True))
