"""A trunk that writes no more than acting needs."""

from __future__ import annotations

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from torchrl_glam.models.protocol import Trunk


class ScoresOnly(TensorDictModuleBase):
    """A trunk without action embeddings, for policies: the critic does not act.

    The last token of each candidate is then read by nobody, which saves part of the
    decoder's positions. Shares the language model with the trunk.

    Args:
        trunk: the trunk to run.

    Examples:
        >>> from tensordict.nn import TensorDictSequential
        >>> from torchrl_glam.models import CandidateActor, load_language_model, make_trunk
        >>> trunk = make_trunk(*load_language_model("tiny"))
        >>> policy = TensorDictSequential(ScoresOnly(trunk), CandidateActor())
        >>> ScoresOnly(trunk).out_keys
        ['log_likelihood', 'prompt_embedding']
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.in_keys = trunk.in_keys
        scores, _, prompt_embedding = trunk.out_keys
        self.out_keys = [scores, prompt_embedding]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes log-likelihoods and the embedding of the prompt."""
        return self.trunk(tensordict, only="scores")
