"""Language models as trunks, and the actor and critic heads on top of them."""

from torchrl_glam.models.actor import CandidateActor
from torchrl_glam.models.agent import Agent, load_agent, zero_shot_agent
from torchrl_glam.models.card import AgentCard
from torchrl_glam.models.critic import (
    CandidateCritic,
    CriticInput,
    ObservationCritic,
    make_critic,
)
from torchrl_glam.models.decoder_only import DecoderOnlyTrunk
from torchrl_glam.models.encoded_actions import EncodedActionsTrunk
from torchrl_glam.models.encoder_decoder import EncoderDecoderTrunk
from torchrl_glam.models.exactness import InexactTrunkError, score_error
from torchrl_glam.models.export import export_agent
from torchrl_glam.models.factory import make_trunk
from torchrl_glam.models.gradients import check_gradients
from torchrl_glam.models.hub import push_agent, write_model_card
from torchrl_glam.models.judge import GoalJudge
from torchrl_glam.models.loading import load_language_model, load_tokenizer
from torchrl_glam.models.on_device import OnDevice
from torchrl_glam.models.passes import split_by_tokens
from torchrl_glam.models.protocol import Trunk
from torchrl_glam.models.repeated import RepeatedTrunk
from torchrl_glam.models.repeated_decoder_only import RepeatedDecoderOnlyTrunk
from torchrl_glam.models.scores_only import ScoresOnly
from torchrl_glam.models.trie import CandidateTrie, build_trie
from torchrl_glam.models.trunk import CandidateTrunk
from torchrl_glam.models.value import ValueHead

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
    "RepeatedDecoderOnlyTrunk",
    "RepeatedTrunk",
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
    "push_agent",
    "score_error",
    "split_by_tokens",
    "write_model_card",
    "zero_shot_agent",
]
