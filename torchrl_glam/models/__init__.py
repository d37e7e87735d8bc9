"""Language models as trunks, and the actor and critic heads on top of them."""

from torchrl_glam.models.actor import CandidateActor, OnDevice, ScoresOnly, with_random_actions
from torchrl_glam.models.agent import Agent, load_agent, zero_shot_agent
from torchrl_glam.models.card import AgentCard
from torchrl_glam.models.critic import (
    CandidateCritic,
    CriticInput,
    ObservationCritic,
    ValueHead,
    make_critic,
)
from torchrl_glam.models.export import export_agent
from torchrl_glam.models.judge import GoalJudge
from torchrl_glam.models.loading import load_language_model, load_tokenizer
from torchrl_glam.models.model_card import write_model_card
from torchrl_glam.models.protocol import Trunk
from torchrl_glam.models.trunks.decoder_only import DecoderOnlyTrunk
from torchrl_glam.models.trunks.encoded_actions import EncodedActionsTrunk
from torchrl_glam.models.trunks.encoder_decoder import EncoderDecoderTrunk
from torchrl_glam.models.trunks.exactness import InexactTrunkError, score_error
from torchrl_glam.models.trunks.factory import make_trunk
from torchrl_glam.models.trunks.gradients import check_gradients
from torchrl_glam.models.trunks.passes import split_by_tokens
from torchrl_glam.models.trunks.trie import CandidateTrie, build_trie
from torchrl_glam.models.trunks.trunk import CandidateTrunk

__all__ = [
    "Agent",
    "AgentCard",
    "CandidateActor",
    "CandidateCritic",
    "CandidateTrie",
    "CandidateTrunk",
    "CriticInput",
    "DecoderOnlyTrunk",
    "EncodedActionsTrunk",
    "EncoderDecoderTrunk",
    "GoalJudge",
    "InexactTrunkError",
    "ObservationCritic",
    "OnDevice",
    "ScoresOnly",
    "Trunk",
    "ValueHead",
    "build_trie",
    "check_gradients",
    "export_agent",
    "load_agent",
    "load_language_model",
    "load_tokenizer",
    "make_critic",
    "make_trunk",
    "score_error",
    "split_by_tokens",
    "write_model_card",
    "zero_shot_agent",
    "with_random_actions",
]
