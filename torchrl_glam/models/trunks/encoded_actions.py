"""Action embeddings from prompts that end in the action: one encoder pass for each candidate."""

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor
from torch.nn.functional import pad

from torchrl_glam.models.protocol import Part
from torchrl_glam.models.trunks.passes import distinct_rows, in_passes
from torchrl_glam.models.trunks.trunk import CandidateTrunk


class EncodedActionsTrunk(TensorDictModuleBase):
    """A trunk whose action embeddings have the action in the encoder's input.

    SAC-GLAM (Gaven et al., 2024), section 2.2, read literally: the critic's input is "the LLM
    encoding the concatenation of the prompt and an action", one encoder pass for each action. The
    embedding is the decoder's hidden state at its start token. Log-likelihoods and prompt
    embeddings are those of the wrapped trunk.

    Keys, shapes and ``only`` are those of :class:`~torchrl_glam.models.CandidateTrunk`, but
    ``only="embeddings"`` writes no prompt embedding, and masked candidates have embeddings of 0.

    Args:
        trunk: the trunk, of an encoder-decoder; its weights are shared.

    Raises:
        ValueError: if the model has no encoder; its action embeddings have read prompt and action
            in one text anyway.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> trunk = EncodedActionsTrunk(make_trunk(*load_language_model("tiny")))
        >>> trunk.out_keys
        ['log_likelihood', 'action_embedding', 'prompt_embedding']
    """

    def __init__(self, trunk: CandidateTrunk) -> None:
        super().__init__()
        if not trunk.base_model.config.is_encoder_decoder:
            raise ValueError(
                f"trunk has a model ({trunk.base_model.__class__.__name__}) without an encoder to "
                "put the action into: use critic_input='observation-action', whose embeddings have "
                "read prompt and action as one text there"
            )
        self.trunk, self.embedding_dim = trunk, trunk.embedding_dim
        self.in_keys, self.out_keys = trunk.in_keys, trunk.out_keys

    def written_keys(self, only: Part | None = None) -> list[NestedKey]:
        """The keys that a call with ``only`` writes."""
        return self.trunk.out_keys[1:2] if only == "embeddings" else self.trunk.written_keys(only)

    def count_tokens(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Tokens of all encoder passes, and nodes of the trie, of each state ``[*B]``."""
        prompts, nodes = self.trunk.count_tokens(tensordict)
        *_, actions, mask = (tensordict[key] for key in self.in_keys)
        read = ((actions != self.trunk.prompt.pad_id) & mask.unsqueeze(-1)).sum((-1, -2))
        return prompts * (1 + mask.sum(-1)) + read, nodes

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase, only: Part | None = None) -> TensorDictBase:
        """Writes log-likelihoods and embeddings, or the part of them that is asked for."""
        if only != "embeddings":
            tensordict = self.trunk(tensordict, only="scores" if only is None else only)
        if only in (None, "embeddings"):
            batch = tensordict[self.in_keys[-1]].shape[:-1]
            embeddings = self._embeddings(*self.trunk.flat_inputs(tensordict))
            tensordict.set(self.trunk.out_keys[1], embeddings.view(*batch, *embeddings.shape[1:]))
        return tensordict

    def _embeddings(
        self, goal: Tensor, observation: Tensor, actions: Tensor, mask: Tensor
    ) -> Tensor:
        """``[B, A, D]``, one row of the language model for each admissible candidate."""
        state, _ = at = mask.nonzero(as_tuple=True)
        if not len(state):
            return torch.zeros(*mask.shape, self.embedding_dim, device=mask.device)
        prompt, read = self.trunk.prompt(goal[state], observation[state], actions[at])
        alike = distinct_rows(prompt)
        rows, back = (slice(None), slice(None)) if alike is None else alike
        inputs, most = (prompt[rows], read[rows]), self.trunk.max_tokens_per_pass
        (values,) = in_passes(self._read_trimmed, inputs, self._count, most)
        out = values.new_zeros(*mask.shape, values.shape[-1])
        return out.index_put(at, values[back])

    def _count(self, prompt: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        return read.sum(-1), torch.ones_like(prompt[:, 0])

    def _read_trimmed(self, prompt: Tensor, read: Tensor) -> tuple[Tensor]:
        longest = int(read.sum(-1).max())
        longest += -longest % self.trunk.pad_to_multiple_of
        fit = (0, longest - prompt.shape[1])
        prompt = pad(prompt, fit, value=self.trunk.prompt.pad_id)
        return (self.trunk.read_prompts(prompt, pad(read, fit)),)
