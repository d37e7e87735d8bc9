"""The trunk under several heads: its trainable weights, and the parts of it that heads read."""

from __future__ import annotations

from collections.abc import Iterable

from tensordict import NestedKey, TensorDict, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import nn

from torchrl_glam.models.protocol import Part, Trunk


def trainable_leaves(trunk: nn.Module) -> TensorDict:
    """The parameters of a module that require gradient, nested by module, tied ones once.

    Args:
        trunk: any module.

    Examples:
        >>> layer = nn.Linear(2, 3)
        >>> _ = layer.bias.requires_grad_(False)
        >>> list(trainable_leaves(layer).keys())
        ['weight']
    """
    named = trunk.named_parameters()
    return TensorDict({tuple(name.split(".")): p for name, p in named if p.requires_grad})


def state_keys(
    trunk: TensorDictModuleBase, heads: Iterable[TensorDictModuleBase]
) -> list[NestedKey]:
    """Entries that a state must hold: all that trunk and heads read, less what the trunk writes."""
    made = {unravel_key(key) for key in trunk.out_keys}
    read = [unravel_key(key) for head in heads for key in head.in_keys]
    keys = [*map(unravel_key, trunk.in_keys), *(key for key in read if key not in made)]
    return list(dict.fromkeys(keys))


def enough(trunk: TensorDictModuleBase, heads: Iterable[TensorDictModuleBase]) -> Part | None:
    """The smallest part of the outputs of a trunk that heads can do with; None for everything."""
    if not isinstance(trunk, Trunk):
        return None
    made = {unravel_key(key) for key in trunk.out_keys}
    read = {unravel_key(key) for head in heads for key in head.in_keys} & made
    parts = ("prompt", "scores", "embeddings")
    return next((p for p in parts if read <= {*map(unravel_key, trunk.written_keys(p))}), None)
