"""Critic heads: multilayer perceptrons on the embeddings that the language model computes.

SAC-GLAM (Gaven et al., 2024), Appendix B, compares two inputs: the observation together with the
action (one output, :class:`CandidateCritic`) and the observation alone (one output per action,
:class:`ObservationCritic`). Whether their loss also trains the language model is the loss's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import NestedKey
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import MLP


class CandidateCritic(TensorDictModule):
    """Q-value of each candidate from its own embedding (Appendix B, observation-action input).

    The embedding is the decoder's last hidden state after the candidate's last token, which has
    read prompt and action; one ReLU perceptron turns each into one number. Masked candidates get
    the value 0 and pass no gradient, whatever their embedding holds.

    Args:
        embedding_dim (int): width ``D`` of the embeddings.
        hidden_sizes (sequence of int): units of the hidden layers. Default: ``(1024, 1024)``
            (Appendix C).

    Keyword Args:
        action_embedding_key (NestedKey): float ``[*B, A, D]``; computed in the dtype of the
            perceptron. Default: ``"action_embedding"``.
        action_mask_key (NestedKey): bool ``[*B, A]``, True where the candidate is admissible.
            Default: ``"action_mask"``.
        action_value_key (NestedKey): Q-values, float ``[*B, A]``. Default: ``"action_value"``.

    Raises:
        ValueError: if ``embedding_dim`` or a hidden size is smaller than 1.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> critic = CandidateCritic(embedding_dim=8, hidden_sizes=(16,))
        >>> state = TensorDict(
        ...     action_embedding=torch.randn(2, 3, 8),
        ...     action_mask=torch.tensor([[True, True, True], [True, False, False]]),
        ...     batch_size=[2],
        ... )
        >>> critic(state)["action_value"].shape
        torch.Size([2, 3])
        >>> state["action_value"][1, 1:].tolist()
        [0.0, 0.0]
    """

    def __init__(
        self,
        embedding_dim: int,
        hidden_sizes: Sequence[int] = (1024, 1024),
        *,
        action_embedding_key: NestedKey = "action_embedding",
        action_mask_key: NestedKey = "action_mask",
        action_value_key: NestedKey = "action_value",
    ) -> None:
        super().__init__(
            _CandidateValue(_mlp(embedding_dim, hidden_sizes, out_features=1)),
            in_keys=[action_embedding_key, action_mask_key],
            out_keys=[action_value_key],
        )


class ObservationCritic(TensorDictModule):
    """Q-values of all candidates from the prompt's embedding (Appendix B, observation input).

    Output ``i`` belongs to candidate slot ``i``, so the environment must keep the meaning of its
    slots; masked slots get a value too, which losses and policies ignore.

    Args:
        embedding_dim (int): width ``D`` of the embedding.
        num_actions (int): number ``A`` of candidate slots.
        hidden_sizes (sequence of int): units of the hidden layers. Default: ``(1024, 1024)``
            (Appendix C).

    Keyword Args:
        prompt_embedding_key (NestedKey): float ``[*B, D]``; computed in the dtype of the
            perceptron. Default: ``"prompt_embedding"``.
        action_value_key (NestedKey): Q-values, float ``[*B, A]``. Default: ``"action_value"``.

    Raises:
        ValueError: if ``embedding_dim``, ``num_actions`` or a hidden size is smaller than 1.

    Example:
        >>> import torch
        >>> critic = ObservationCritic(embedding_dim=8, num_actions=3, hidden_sizes=(16,))
        >>> critic(prompt_embedding=torch.randn(2, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        embedding_dim: int,
        num_actions: int,
        hidden_sizes: Sequence[int] = (1024, 1024),
        *,
        prompt_embedding_key: NestedKey = "prompt_embedding",
        action_value_key: NestedKey = "action_value",
    ) -> None:
        if num_actions < 1:
            raise ValueError(f"num_actions ({num_actions}) must be at least 1: one value per slot.")
        super().__init__(
            _ObservationValue(_mlp(embedding_dim, hidden_sizes, out_features=num_actions)),
            in_keys=[prompt_embedding_key],
            out_keys=[action_value_key],
        )


class _CandidateValue(nn.Module):
    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, embedding: Tensor, mask: Tensor) -> Tensor:
        # Zeros in, so that a NaN in an empty slot reaches neither values nor weight gradients.
        embedding = embedding.to(self.mlp[0].weight.dtype).masked_fill(~mask.unsqueeze(-1), 0.0)
        return self.mlp(embedding).squeeze(-1).masked_fill(~mask, 0.0)


class _ObservationValue(nn.Module):
    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, embedding: Tensor) -> Tensor:
        return self.mlp(embedding.to(self.mlp[0].weight.dtype))


def _mlp(in_features: int, hidden_sizes: Sequence[int], out_features: int) -> MLP:
    hidden_sizes = list(hidden_sizes)
    if in_features < 1:
        raise ValueError(
            f"embedding_dim ({in_features}) must be at least 1: the width of the embeddings."
        )
    if any(size < 1 for size in hidden_sizes):
        raise ValueError(f"hidden_sizes ({hidden_sizes}) must all be at least 1.")
    return MLP(in_features, out_features, num_cells=hidden_sizes, activation_class=nn.ReLU)
