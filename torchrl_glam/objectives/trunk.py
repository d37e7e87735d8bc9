"""The trunk under several heads: its trainable weights, and the parts of it that heads read."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensordict import NestedKey, TensorDict, TensorDictParams, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from torchrl_glam.models.protocol import Part, Trunk


class SharedTrunk:
    """A loss whose trunk belongs to the policy too."""

    trunk: TensorDictModuleBase
    trunk_params: TensorDictParams

    def share_trunk(self, trunk: TensorDictModuleBase) -> None:
        """Makes the trunk's trainable parameters those of the loss."""
        # Not a submodule: its frozen weights are no business of the loss's state_dict, and
        # convert_to_functional would copy and re-initialise pretrained ones.
        self.__dict__["trunk"] = trunk
        self.trunk_params = TensorDictParams(trainable_leaves(trunk), no_convert=True)

    def trunk_parameters(self) -> Iterator[nn.Parameter]:
        """The trainable parameters of the trunk: the live ones, each once."""
        return self.trunk_params.parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> "SharedTrunk":
        self.trunk._apply(fn)  # frozen weights too; the trained ones do not move twice
        return super()._apply(fn)

    def _state_keys(self, heads: Iterable[TensorDictModuleBase]) -> list[NestedKey]:
        """Entries a state must hold: all that trunk and heads read, less what the trunk writes."""
        made = {unravel_key(key) for key in self.trunk.out_keys}
        read = [unravel_key(key) for head in heads for key in head.in_keys]
        keys = [*map(unravel_key, self.trunk.in_keys), *(key for key in read if key not in made)]
        return list(dict.fromkeys(keys))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedTrunk":
        memo[id(self)] = copied = object.__new__(type(self))
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        # TensorDictParams copies its parameters again, so they would not be the copied trunk's.
        copied.share_trunk(copied.trunk)
        return copied


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


def enough(trunk: TensorDictModuleBase, heads: Iterable[TensorDictModuleBase]) -> Part | None:
    """The smallest part of the outputs of a trunk that heads can do with; None for everything."""
    if not isinstance(trunk, Trunk):
        return None
    made = {unravel_key(key) for key in trunk.out_keys}
    read = {unravel_key(key) for head in heads for key in head.in_keys} & made
    parts = ("prompt", "scores", "embeddings")
    return next((p for p in parts if read <= {*map(unravel_key, trunk.written_keys(p))}), None)
