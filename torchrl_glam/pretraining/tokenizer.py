"""The tokenizer of the embedded model: one token a thing, one token a fixed phrase.

Samples per second decide how soon a small machine learns, and the language model's work grows with
the number of tokens. What a tokenizer learned from such texts would merge is therefore one token
here: the fixed phrases of a prompt ("\\nYou are holding:"), a colour with its name ("red lion",
"any animal"), and "then" with its verb; commas are left out. Any other text is spelled in
characters, and what is not ASCII becomes the unknown token.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from torchrl_glam.envs.playground.vocabulary import CATEGORIES, COLOURS, TYPES

PHRASES = (
    "Goal:",
    "You see:",
    "\nYou see:",
    "\nYou are on:",
    "\nYou are holding:",
    "\nYou have grown:",
    "\nAction:",
    "\nQuestion:",
    " Go to",
    " then grow",
    " then grasp",
)
WORDS = (
    *("Grasp", "Release", "Grow", "grasp", "grow", "release", "then", "any", "thing", "nothing"),
    *("yes", "no", "first", "second", "goal", "here", "held", "grown", "feeds", "on", "left"),
    *("named", "role", "find", "state", "kind"),
    *(*COLOURS, *TYPES, *CATEGORIES),
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer.

    Tokens begin at white space, so that a prompt can be put together from pieces that begin at
    white space. Among all ways to cut a text the one with the fewest tokens is taken.

    Returns:
        A tokenizer with ``<pad>`` (also the decoder's start), ``</s>`` and ``<unk>``.

    Examples:
        >>> make_tokenizer().tokenize("Goal: Grow any lion\\nYou see: red lion, blue water")
        ['Goal:', ' Grow', ' any lion', '\\nYou see:', ' red lion', ' blue water']
    """
    special = ["<pad>", "</s>", "<unk>"]
    things = [f" {c} {name}" for c in (*COLOURS, "any") for name in (*TYPES, *CATEGORIES, "thing")]
    pieces = [*PHRASES, *(f" {word}" for word in WORDS), *things]
    characters = ["\n", *(chr(code) for code in range(32, 127))]
    # A known piece costs 1, a character more than any piece, so that pieces win wherever they fit.
    vocabulary = [(piece, 0.0) for piece in special]
    vocabulary += [(piece, -1.0) for piece in dict.fromkeys(pieces)]
    vocabulary += [(piece, -10.0) for piece in characters if piece not in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special.index("<unk>")))
    tokenizer.normalizer = normalizers.Replace(",", "")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", special.index("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
