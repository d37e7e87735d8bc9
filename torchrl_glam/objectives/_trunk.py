"""What losses on a shared language model need of it."""

from __future__ import annotations

from collections.abc import Iterable

from tensordict import NestedKey, TensorDict, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import nn

from torchrl_glam.models.protocol import Part, Trunk


def trainable_leaves(trunk: nn.Module) -> TensorDict:
    """The trunk's parameters that require gradient, nested by module, tied ones once."""
    leaves = TensorDict()
    for name, parameter in trunk.named_parameters():
        if parameter.requires_grad:
            leaves[tuple(name.split("."))] = parameter
    return leaves


def state_keys(
    trunk: TensorDictModuleBase, heads: Iterable[TensorDictModuleBase]
) -> list[NestedKey]:
    """What a state must hold: inputs of the trunk, and of the heads unless the trunk's."""
    made = {unravel_key(key) for key in trunk.out_keys}
    read = [unravel_key(key) for head in heads for key in head.in_keys]
    keys = [*map(unravel_key, trunk.in_keys), *(key for key in read if key not in made)]
    return list(dict.fromkeys(keys))


def enough(trunk: TensorDictModuleBase, heads: Iterable[TensorDictModuleBase]) -> Part | None:
    """The least that the trunk can write and the heads can do with; None for everything."""
    if not isinstance(trunk, Trunk):
        return None
    made = {unravel_key(key) for key in trunk.out_keys}
    read = {unravel_key(key) for head in heads for key in head.in_keys} & made
    for part in ("prompt", "scores", "embeddings"):
        if read <= {unravel_key(key) for key in trunk.written_keys(part)}:
            return part
    return None
