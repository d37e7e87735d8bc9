"""The tokenizer of the embedded model: one token a word, one token a fixed phrase.

Samples per second decide how soon a small machine learns, and the encoder's work grows with the
number of tokens. The fixed phrases of a prompt ("\\nYou are holding:") are therefore single
tokens, and so is a comma together with the colour that follows it. Any other text is spelled in
characters, and what is not ASCII becomes the unknown token.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast

from torchrl_glam.envs.vocabulary import CATEGORIES, COLOURS, TYPES

PHRASES = (
    "Goal:",
    "You see:",
    "\nYou see:",
    "\nYou are on:",
    "\nYou are holding:",
    "\nYou have grown:",
    "\nAction:",
    "\nNext:",
    "\nQuestion:",
    " Go to",
)
WORDS = (
    *("Grasp", "Release", "Grow", "grasp", "grow", "then", "any", "thing", "nothing", "yes", "no"),
    *("first", "second", "goal", "named", "here", "held", "grown", "feeds", "is", "what", "which"),
    *(*COLOURS, *TYPES, *CATEGORIES),
)
NUM_SENTINELS = 4


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer.

    Tokens begin at white space or at a comma, so that a prompt can be put together from pieces
    that begin at white space. Among all ways to cut a text the one with the fewest tokens is
    taken.

    Returns:
        A tokenizer with ``<pad>`` (also the decoder's start), ``</s>``, ``<unk>`` and sentinels
        ``<extra_id_0>`` … for span denoising.

    Examples:
        >>> make_tokenizer().tokenize("Goal: Grow any lion\\nYou see: red lion, blue water")
        ['Goal:', ' Grow', ' any', ' lion', '\\nYou see:', ' red', ' lion', ', blue', ' water']
    """
    special = ["<pad>", "</s>", "<unk>"]
    sentinels = [f"<extra_id_{i}>" for i in range(NUM_SENTINELS)]
    after_comma = [f", {word}" for word in (*COLOURS, "yes", "no", "nothing")]
    pieces = [*PHRASES, *(f" {word}" for word in WORDS), *after_comma]
    characters = ["\n", *(chr(code) for code in range(32, 127))]
    # A whole word costs 1, a character more than any word, so that words win wherever they fit.
    vocabulary = [(piece, 0.0) for piece in (*special, *sentinels)]
    vocabulary += [(piece, -1.0) for piece in dict.fromkeys(pieces)]
    vocabulary += [(piece, -10.0) for piece in characters if piece not in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special.index("<unk>")))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", special.index("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=sentinels,
        clean_up_tokenization_spaces=False,
    )
