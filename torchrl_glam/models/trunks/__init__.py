"""Trunks: one pass of a language model over a state's prompt and candidate actions.

The fast way reads a token trie of the candidates; models that take none are read packed, or one
candidate at a time. Each way is compared with the model's own forward before it is used.
"""

from torchrl_glam.models.trunks.decoder_only import DecoderOnlyTrunk, RepeatedDecoderOnlyTrunk
from torchrl_glam.models.trunks.encoded_actions import EncodedActionsTrunk
from torchrl_glam.models.trunks.encoder_decoder import EncoderDecoderTrunk, RepeatedTrunk
from torchrl_glam.models.trunks.exactness import InexactTrunkError, score_error
from torchrl_glam.models.trunks.factory import make_trunk
from torchrl_glam.models.trunks.gradients import check_gradients, checkpoint_layers
from torchrl_glam.models.trunks.likelihood import Normalisation
from torchrl_glam.models.trunks.passes import fingerprint, split_by_tokens
from torchrl_glam.models.trunks.trie import CandidateTrie, build_trie
from torchrl_glam.models.trunks.trunk import CandidateTrunk

__all__ = [
    "CandidateTrie",
    "CandidateTrunk",
    "DecoderOnlyTrunk",
    "EncodedActionsTrunk",
    "EncoderDecoderTrunk",
    "InexactTrunkError",
    "Normalisation",
    "RepeatedDecoderOnlyTrunk",
    "RepeatedTrunk",
    "build_trie",
    "check_gradients",
    "checkpoint_layers",
    "fingerprint",
    "make_trunk",
    "score_error",
    "split_by_tokens",
]
