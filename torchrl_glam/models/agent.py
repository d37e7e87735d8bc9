"""A trained agent from the folder that its run left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from torchrl_glam._files import kind_of, shorten
from torchrl_glam.models.actor import CandidateActor, OnDevice, ScoresOnly
from torchrl_glam.models.card import CARD, HEADS, AgentCard, find_export
from torchrl_glam.models.critic import ValueHead, make_critic
from torchrl_glam.models.loading import load_language_model
from torchrl_glam.models.trunks.encoded_actions import EncodedActionsTrunk
from torchrl_glam.models.trunks.factory import make_trunk
from torchrl_glam.models.trunks.trunk import CandidateTrunk
from torchrl_glam.text import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Agent:
    """A trunk and the heads on it, as :func:`load_agent` returns them.

    Args:
        trunk: reads prompt and candidates; holds the language model.
        actor: turns log-likelihoods into the policy.
        critics: the value heads, whose minimum is the value; empty if there are none.
        tokenizer: the language model's.
        card: how the agent reads and scores, and where it was trained.

    Examples:
        >>> agent = zero_shot_agent("tiny")
        >>> agent.critics, agent.policy.out_keys
        ([], ['action'])
    """

    trunk: CandidateTrunk | EncodedActionsTrunk
    actor: CandidateActor
    critics: list[TensorDictModule]
    tokenizer: PreTrainedTokenizerBase
    card: AgentCard

    @property
    def template(self) -> PromptTemplate:
        """The prompt that it reads."""
        return self.card.template

    @property
    def policy(self) -> OnDevice:
        """From token tensors to ``"action"``, for collectors, rollouts and evaluations."""
        acting = (ScoresOnly(self.trunk), self.actor)
        return OnDevice(TensorDictSequential(*acting, selected_out_keys=self.actor.out_keys))

    @torch.no_grad()
    def read(self, states: TensorDictBase) -> TensorDictBase:
        """Probabilities and values of the candidates of states.

        Args:
            states: the trunk's inputs, ``[*B]``. Not changed.

        Returns:
            ``"probability"`` float ``[*B, A]``, 0 where masked; and the heads' ``"action_value"``
            ``[*B, A]`` or ``"state_value"`` ``[*B, 1]``. Heads of input ``"observation"`` have one
            value for each slot of their training, and are left out for other numbers of
            candidates.
        """
        state = states.select(*self.trunk.in_keys)
        here = state[self.trunk.in_keys[0]].device
        state = state.to(next(self.trunk.parameters()).device)
        state = self.trunk(state, **({} if self.critics else {"only": "scores"}))
        probability = self.actor.get_dist(state).probs
        out = state.empty().set("probability", probability)
        for critic in self.critics:
            (key,) = critic.out_keys
            value = critic(state.copy())[key]
            if self.card.critic == "state" or value.shape == probability.shape:
                out.set(key, value if key not in out.keys() else torch.minimum(value, out[key]))
        return out.to(here)


def load_agent(folder: str | Path, *, device: torch.device | str = "cpu", **kwargs) -> Agent:
    """Loads a trained agent: language model, trunk, actor and value heads.

    The agent scores as it did when it was exported, in full precision: give ``autocast`` again if
    it was trained with it. Nothing is unpickled: weights are read from safetensors, the rest from
    JSON.

    Args:
        folder: a folder that :func:`~torchrl_glam.models.export_agent` wrote with a card, or the
            folder of a run that ended (whose ``model`` is read); or ``"tiny"``, the embedded agent.
        device: where to put the agent. Default: the CPU.
        **kwargs: other arguments of :func:`~torchrl_glam.models.make_trunk`, such as
            ``max_tokens_per_pass``.

    Raises:
        FileNotFoundError: if the folder holds no agent; names what is missing, and whether its run
            is still going.
        ValueError: if card, heads or weights are damaged or do not fit each other, or as
            :func:`~torchrl_glam.models.load_language_model` raises it.

    Examples:
        >>> import tempfile
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.text import TokenizeText
        >>> from torchrl_glam.models import AgentCard, export_agent, load_language_model
        >>> folder, card = tempfile.mkdtemp(), AgentCard(num_critics=0)
        >>> _ = export_agent(folder, *load_language_model("tiny"), card=card)  # a run does so

        >>> agent = load_agent(folder)
        >>> tokenize = TokenizeText(agent.tokenizer, template=agent.template)
        >>> env = TransformedEnv(PlaygroundTextEnv(num_envs=2, num_objects=3), tokenize)
        >>> env.rollout(1, agent.policy)["action"].shape
        torch.Size([2, 1])
        >>> agent.read(env.reset())["probability"].sum(-1).round(decimals=3)
        tensor([1., 1.])
    """
    folder = find_export(folder)
    card = AgentCard.read(folder)
    model, tokenizer = load_language_model(
        folder,
        load_in_4bit=card.load_in_4bit and (folder / "adapter_config.json").exists(),
        dtype=getattr(torch, card.dtype),
        compute_dtype=getattr(torch, card.compute_dtype),
        device=device,
    )
    return _make_agent(folder, card, model, tokenizer, device, kwargs)


def zero_shot_agent(
    model: str | Path, chat_template: bool = False, *, device: torch.device | str = "cpu", **kwargs
) -> Agent:
    """An untrained language model as an agent without value heads, to compare trained ones with.

    Args:
        model: as ``name`` of :func:`~torchrl_glam.models.load_language_model`.
        chat_template: whether the prompt is a user's turn, for chat models. Default: False.
        device: where to put it. Default: the CPU.
        **kwargs: other arguments of :func:`~torchrl_glam.models.make_trunk`.

    Examples:
        >>> zero_shot_agent("tiny").critics
        []
    """
    loaded, tokenizer = load_language_model(model, device=device)
    template = PromptTemplate().as_chat(tokenizer) if chat_template else PromptTemplate()
    card = AgentCard(model=str(model), template=template, num_critics=0)
    return _make_agent(Path(), card, loaded, tokenizer, device, kwargs)


def _make_agent(
    folder: Path,
    card: AgentCard,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device | str,
    options: dict[str, Any],
) -> Agent:
    trunk = make_trunk(model, tokenizer, card.template, normalisation=card.normalisation, **options)
    sizes = {"num_actions": card.num_actions or 1, "hidden_sizes": card.hidden_sizes}
    whole, critics = trunk, []
    with torch.device("meta"):  # until their weights are known to have the sizes that it tells
        for _ in range(card.num_critics):
            if card.critic == "state":
                key = trunk.out_keys[-1]
                critic = ValueHead(trunk.embedding_dim, card.hidden_sizes, prompt_embedding_key=key)
            else:
                whole, critic = make_critic(trunk, card.critic, **sizes)
            critics.append(critic)
    if critics:
        _load_heads(folder, card, critics)
    critics = [critic.to(device).requires_grad_(False).eval() for critic in critics]
    actor = CandidateActor(log_likelihood_key=trunk.out_keys[0], action_mask_key=trunk.in_keys[-1])
    return Agent(whole, actor, critics, tokenizer, card)


def _load_heads(folder: Path, card: AgentCard, critics: list[TensorDictModule]) -> None:
    path = folder / HEADS
    if kind_of(path) != "file":
        raise FileNotFoundError(
            f"folder ({str(folder)!r}) holds no {HEADS}, and its {CARD} names "
            f"{card.num_critics} value heads: copy the export again, or set num_critics to 0 to go "
            "without them"
        )
    try:
        heads = nn.ModuleDict({"critic": nn.ModuleList(critics)})
        heads.load_state_dict(load_file(path), assign=True)
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} does not hold the value heads that {CARD} names ({card.num_critics} "
            f"of input {card.critic!r} with hidden_sizes {list(card.hidden_sizes)}): "
            f"{shorten(error)}; copy the export again, or correct its card"
        ) from None
