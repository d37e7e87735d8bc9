"""The protocol that losses, heads and tools expect of a trunk."""

from typing import Literal, Protocol, runtime_checkable

from tensordict import NestedKey, TensorDictBase
from torch import Tensor

Part = Literal["scores", "embeddings", "prompt"]


@runtime_checkable
class Trunk(Protocol):
    """A module that reads states with a language model, and can be asked for parts of it.

    :class:`~torchrl_glam.models.CandidateTrunk` describes the parts. Losses take any
    TensorDictModule as a trunk; where it has these members, they ask only for what they need.

    Attributes:
        in_keys: tokens of goal, observation and candidates, and the mask of admissible candidates.
        out_keys: log-likelihoods, action embeddings and prompt embedding.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> isinstance(make_trunk(*load_language_model("tiny")), Trunk)
        True
    """

    in_keys: list[NestedKey]
    out_keys: list[NestedKey]

    def __call__(self, tensordict: TensorDictBase, only: Part | None = None) -> TensorDictBase:
        """Writes all outputs, or a part of them."""

    def written_keys(self, only: Part | None = None) -> list[NestedKey]:
        """The keys that a call with ``only`` writes."""

    def count_tokens(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Tokens of the prompts and nodes of the candidates of each state, ``[*B]`` both."""
