"""Passes of the language model: rows that differ, and as many at a time as fit memory.

Passes are cut by tokens, with long rows together, so that little is padded.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchrl_glam.models.protocol import Trunk


def split_by_tokens(
    batch: TensorDictBase, trunk: Trunk, max_tokens: int | None
) -> list[TensorDictBase]:
    """Splits states, or transitions, into parts that the language model can read at a time.

    If the loss is a mean over its batch, weight each part by its share of the rows to get the
    gradient of the whole batch, as :meth:`torchrl_glam.objectives.SharedTrunkOptimizer.backward`
    does.

    Args:
        batch: rows ``[B]`` with the trunk's inputs, and with those of the next states under
            ``"next"`` if they are to be read too.
        trunk: the trunk that will read them.
        max_tokens: most tokens, padding included, of a part's states, and of its next states. A
            single row that has more stands alone. None: everything in one part.

    Returns:
        Parts whose rows together are those of the batch, in another order.

    Raises:
        ValueError: if ``max_tokens`` is below 1 or the batch has not one dimension.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> trunk = make_trunk(*load_language_model("tiny"))
        >>> ids, mask = torch.arange(3, 11).expand(4, -1), torch.ones(4, 1).bool()
        >>> texts = [ids, ids, ids[:, None, :2], mask]
        >>> batch = TensorDict(dict(zip(trunk.in_keys, texts)), [4])
        >>> [len(part) for part in split_by_tokens(batch, trunk, 80)]
        [3, 1]
    """
    if max_tokens is None:
        return [batch]
    if max_tokens < 1:
        raise ValueError(f"max_tokens ({max_tokens}) must be at least 1, or None for one part")
    if batch.dim() != 1:
        raise ValueError(
            f"batch has the shape {tuple(batch.shape)}, and rows [B] are split: reshape(-1) it"
        )
    prompts, nodes = trunk.count_tokens(batch)
    if "next" in batch.keys() and all(key in batch["next"].keys(True) for key in trunk.in_keys):
        counts = zip((prompts, nodes), trunk.count_tokens(batch["next"]), strict=True)
        prompts, nodes = (torch.maximum(*pair) for pair in counts)
    passes = token_passes(prompts, nodes, max_tokens)
    return [batch] if len(passes) == 1 else [batch[rows] for rows in passes]


def token_passes(prompts: Tensor, nodes: Tensor, most: int) -> list[Tensor]:
    """Rows of each pass, sorted by length, so that a pass has at most ``most`` padded tokens.

    A pass of R rows has R times (its longest prompt plus its most nodes); one row may have more.
    """
    order = torch.argsort(prompts, stable=True)
    sizes, first, widest = torch.stack([prompts, nodes])[:, order].T.tolist(), 0, 0
    ends = []
    for row, (prompt, width) in enumerate(sizes):
        widest = max(widest, width)
        if row > first and (row + 1 - first) * (prompt + widest) > most:
            ends.append(row)
            first, widest = row, width
    return list(order.tensor_split(ends))


def in_passes(
    read: Callable[..., tuple[Tensor | None, ...]],
    inputs: tuple[Tensor, ...],
    count: Callable[..., tuple[Tensor, Tensor]],
    most: int | None,
) -> tuple[Tensor | None, ...]:
    """Reads rows ``[B, ...]`` in passes of :func:`token_passes`; in one if ``most`` is None.

    ``read`` gives values row by row, or None; ``count`` gives the tokens and nodes of the rows. The
    backward pass computes each pass again, so that memory holds one of them.
    """
    passes = [] if most is None else token_passes(*count(*inputs), most)
    if len(passes) <= 1:
        return read(*inputs)
    run = partial(checkpoint, read, use_reentrant=False) if torch.is_grad_enabled() else read
    parts = [run(*(value[rows] for value in inputs)) for rows in passes]
    back = torch.argsort(torch.cat(passes))
    return tuple(
        None if values[0] is None else torch.cat(values)[back]
        for values in zip(*parts, strict=True)
    )


def fingerprint(tokens: Tensor) -> Tensor:
    """A number for each row of integers, ``[*B, K]`` to ``[*B]`` int64: equal rows, equal numbers.

    Rows that differ have equal numbers once in 2^63 pairs or so: compare them before relying on it.
    """
    return (tokens * _weights(tokens.shape[-1], tokens.device)).sum(-1)


@lru_cache(maxsize=64)
def _weights(number: int, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(0)  # not the generator that seeds a run
    return torch.randint(-(2**63), 2**63 - 1, (number,), generator=draw).to(device)


def distinct_rows(*parts: Tensor) -> tuple[Tensor, Tensor] | None:
    """``rows`` ``[U]``, which differ in some of the parts ``[B, ...]``, and ``back`` ``[B]``.

    ``part[rows][back]`` equals ``part``. None if all rows differ. A GPU's host waits once or twice.
    """
    whole = torch.cat([part.flatten(1).long() for part in parts], 1)
    codes, back = fingerprint(whole).unique(return_inverse=True)
    if len(codes) == len(whole):
        return None
    # Distinct rows in the order of their first appearance.
    index = torch.arange(len(whole), device=whole.device)
    first = index.new_full((len(codes),), len(whole)).scatter_reduce(0, back, index, "amin")
    rows, place = first.sort()
    back = place.argsort()[back]
    return (rows, back) if torch.equal(whole[rows][back], whole) else None
