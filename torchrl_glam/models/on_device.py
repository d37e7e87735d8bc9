"""A policy on a GPU for environments that are not."""

from __future__ import annotations

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase


class OnDevice(TensorDictModuleBase):
    """A module that reads tensors of another device than its own, and writes back to theirs.

    Only what the module reads is copied there, which nothing waits for, and only what it writes is
    copied back. So environments, collectors and replay stay in main memory, where a few dozen
    instances play fastest, know of no GPU, and play the same games for a seed wherever the language
    model is. On inputs of its own device it is the module itself.

    Args:
        module: the module, such as a policy; its device is that of its parameters.

    Examples:
        >>> from tensordict.nn import TensorDictSequential
        >>> from torchrl_glam.models import (
        ...     CandidateActor, ScoresOnly, load_language_model, make_trunk
        ... )
        >>> trunk = make_trunk(*load_language_model("tiny"))
        >>> policy = TensorDictSequential(
        ...     ScoresOnly(trunk), CandidateActor(), selected_out_keys=["action"]
        ... )
        >>> OnDevice(policy).out_keys
        ['action']
    """

    def __init__(self, module: TensorDictModuleBase) -> None:
        super().__init__()
        self.module = module
        self.in_keys, self.out_keys = module.in_keys, module.out_keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Runs the module."""
        here = tensordict.get(self.in_keys[0]).device
        there = next((parameter.device for parameter in self.module.parameters()), here)
        if here == there:
            return self.module(tensordict)
        found = self.module(tensordict.select(*self.in_keys).to(there))
        return tensordict.update(found.select(*self.out_keys).to(here))
