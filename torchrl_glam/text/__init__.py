"""Text as environments write it and as language models read it.

The contract says what a text environment writes; text travels as tensors of bytes, becomes tokens
at the environment's boundary, and goals and observations are put together into prompts.
"""

from torchrl_glam.text.contract import (
    EnvDescription,
    GameStep,
    Oracle,
    describe_env,
    draw_admissible,
    token_lengths,
)
from torchrl_glam.text.encoding import decode_text, encode_text, join_segments
from torchrl_glam.text.prompt import PromptBuilder, check_composition
from torchrl_glam.text.template import PromptTemplate
from torchrl_glam.text.tokenize import TokenizeText

__all__ = [
    "EnvDescription",
    "GameStep",
    "Oracle",
    "PromptBuilder",
    "PromptTemplate",
    "TokenizeText",
    "check_composition",
    "decode_text",
    "describe_env",
    "draw_admissible",
    "encode_text",
    "join_segments",
    "token_lengths",
]
