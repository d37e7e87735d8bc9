"""The value head: a multilayer perceptron on the prompt's embedding."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import NestedKey

from torchrl_glam.models.critic import ObservationCritic


class ValueHead(ObservationCritic):
    """Value of a state from the prompt's embedding, for PPO and other state-value methods.

    The perceptron of :class:`ObservationCritic` with one output, the state's value instead of the
    actions'. GLAM (Carta et al., 2023) has the same head on the same language model as its policy.

    Args:
        embedding_dim: width ``D`` of the embedding.
        hidden_sizes: units of the hidden layers. Default: ``(1024, 1024)``.
        prompt_embedding_key: float ``[*B, D]``; computed in the dtype of the
            perceptron. Default: ``"prompt_embedding"``.
        state_value_key: the value, float ``[*B, 1]``. Default: ``"state_value"``.

    Raises:
        ValueError: if ``embedding_dim`` or a hidden size is smaller than 1.

    Examples:
        >>> import torch
        >>> value = ValueHead(embedding_dim=8, hidden_sizes=(16,))
        >>> value(prompt_embedding=torch.randn(2, 8)).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        embedding_dim: int,
        hidden_sizes: Sequence[int] = (1024, 1024),
        *,
        prompt_embedding_key: NestedKey = "prompt_embedding",
        state_value_key: NestedKey = "state_value",
    ) -> None:
        super().__init__(
            embedding_dim,
            num_actions=1,
            hidden_sizes=hidden_sizes,
            prompt_embedding_key=prompt_embedding_key,
            action_value_key=state_value_key,
        )
