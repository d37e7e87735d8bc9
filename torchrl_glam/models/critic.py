"""Critic and value heads: multilayer perceptrons on the language model's embeddings.

Whether their loss also trains the language model is the loss's choice.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from tensordict import NestedKey
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import MLP

from torchrl_glam.models.trunks.encoded_actions import EncodedActionsTrunk
from torchrl_glam.models.trunks.trunk import CandidateTrunk

CriticInput = Literal["observation-action", "observation", "encoded-action"]


def make_critic(
    trunk: CandidateTrunk | EncodedActionsTrunk,
    critic_input: CriticInput = "observation-action",
    *,
    num_actions: int,
    hidden_sizes: Sequence[int] = (1024, 1024),
    action_value_key: NestedKey = "action_value",
) -> tuple[CandidateTrunk | EncodedActionsTrunk, "CandidateCritic | ObservationCritic"]:
    """The critic with one of the inputs of SAC-GLAM, and the trunk that writes it.

    Args:
        trunk: reads prompt and candidates; its output keys are the critic's input keys. For a
            second critic, the one that the first call returned will do.
        critic_input: ``"observation-action"`` (Appendix B): one value for each candidate,
            from the hidden state after its last token; the pass that scores it makes it.
            ``"observation"`` (Appendix B): ``num_actions`` values from the prompt's embedding.
            ``"encoded-action"`` (section 2.2): one value for each candidate, read as the end of the
            encoder's input, which takes ``num_actions`` encoder passes more. Default:
            ``"observation-action"``.
        num_actions: number ``A`` of candidate slots.
        hidden_sizes: units of the hidden layers. Default: ``(1024, 1024)`` (Appendix C).
        action_value_key: Q-values, float ``[*B, A]``. Default: ``"action_value"``.

    Returns:
        The trunk to hand to the loss (and to :class:`~torchrl_glam.models.ScoresOnly`), which is
        ``trunk`` itself except for ``"encoded-action"``, and the critic.

    Raises:
        ValueError: for an unknown ``critic_input``, for ``"encoded-action"`` with a model that has
            no encoder, or as the critics raise it.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> trunk = make_trunk(*load_language_model("tiny"))
        >>> trunk, critic = make_critic(trunk, "observation", num_actions=5, hidden_sizes=(16,))
        >>> critic.in_keys, critic.out_keys
        (['prompt_embedding'], ['action_value'])
    """
    if critic_input not in get_args(CriticInput):
        raise ValueError(f"critic_input ({critic_input!r}) must be one of {get_args(CriticInput)}")
    trunk = getattr(trunk, "trunk", trunk)  # which EncodedActionsTrunk wraps
    _, action_embedding_key, prompt_embedding_key = trunk.out_keys
    keys = {"action_value_key": action_value_key}
    if critic_input == "observation":
        keys["prompt_embedding_key"] = prompt_embedding_key
        return trunk, ObservationCritic(trunk.embedding_dim, num_actions, hidden_sizes, **keys)
    if critic_input == "encoded-action":
        trunk = EncodedActionsTrunk(trunk)
    keys |= {"action_embedding_key": action_embedding_key, "action_mask_key": trunk.in_keys[-1]}
    return trunk, CandidateCritic(trunk.embedding_dim, hidden_sizes, **keys)


class CandidateCritic(TensorDictModule):
    """Q-value of each candidate from its own embedding (Appendix B, observation-action input).

    The embedding is the hidden state after the candidate's last token, which has read prompt and
    action; one ReLU perceptron turns each into one number. Masked candidates get the value 0 and
    pass no gradient, whatever their embedding holds.

    Args:
        embedding_dim: width ``D`` of the embeddings.
        hidden_sizes: units of the hidden layers. Default: ``(1024, 1024)`` (Appendix C).
        action_embedding_key: float ``[*B, A, D]``; computed in the perceptron's dtype. Default:
            ``"action_embedding"``.
        action_mask_key: bool ``[*B, A]``, True where the candidate is admissible.
            Default: ``"action_mask"``.
        action_value_key: Q-values, float ``[*B, A]``. Default: ``"action_value"``.

    Raises:
        ValueError: if ``embedding_dim`` or a hidden size is smaller than 1.

    Examples:
        >>> import torch
        >>> critic = CandidateCritic(embedding_dim=8, hidden_sizes=(16,))
        >>> mask = torch.tensor([[True, True, True], [True, False, False]])
        >>> critic(action_embedding=torch.randn(2, 3, 8), action_mask=mask)[1, 1:].tolist()
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
            _Value(embedding_dim, hidden_sizes, out_features=1),
            in_keys=[action_embedding_key, action_mask_key],
            out_keys=[action_value_key],
        )


class ObservationCritic(TensorDictModule):
    """Q-values of all candidates from the prompt's embedding (Appendix B, observation input).

    Output ``i`` belongs to candidate slot ``i``, so the environment must keep the meaning of its
    slots; masked slots get a value too, which losses and policies ignore.

    Args:
        embedding_dim: width ``D`` of the embedding.
        num_actions: number ``A`` of candidate slots.
        hidden_sizes: units of the hidden layers. Default: ``(1024, 1024)`` (Appendix C).
        prompt_embedding_key: float ``[*B, D]``; computed in the perceptron's dtype. Default:
            ``"prompt_embedding"``.
        action_value_key: Q-values, float ``[*B, A]``. Default: ``"action_value"``.

    Raises:
        ValueError: if ``embedding_dim``, ``num_actions`` or a hidden size is smaller than 1.

    Examples:
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
        super().__init__(
            _Value(embedding_dim, hidden_sizes, out_features=num_actions),
            in_keys=[prompt_embedding_key],
            out_keys=[action_value_key],
        )


class ValueHead(ObservationCritic):
    """Value of a state from the prompt's embedding, for PPO and other state-value methods.

    The perceptron of :class:`ObservationCritic` with one output. GLAM (Carta et al., 2023) has the
    same head on the same language model as its policy.

    Args:
        embedding_dim, hidden_sizes, prompt_embedding_key: those of :class:`ObservationCritic`.
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


class _Value(nn.Module):
    """A perceptron on embeddings ``[*B, D]``, or with a mask on ``[*B, A, D]``."""

    def __init__(self, in_features: int, hidden_sizes: Sequence[int], out_features: int) -> None:
        super().__init__()
        sizes = list(hidden_sizes)
        if min(in_features, out_features, *sizes) < 1:
            raise ValueError(
                f"embedding_dim ({in_features}), hidden_sizes ({sizes}) and num_actions "
                f"({out_features}) must all be at least 1"
            )
        self.mlp = MLP(in_features, out_features, num_cells=sizes, activation_class=nn.ReLU)

    def forward(self, embedding: Tensor, mask: Tensor | None = None) -> Tensor:
        embedding = embedding.to(self.mlp[0].weight.dtype)
        if mask is None:
            return self.mlp(embedding)
        at = mask.flatten().nonzero().squeeze(-1)  # an empty slot may hold NaN; a GPU's host waits
        values = self.mlp(embedding.flatten(0, -2).index_select(0, at)).squeeze(-1)
        return values.new_zeros(mask.numel()).scatter(0, at, values).view(mask.shape)
