"""Tokenizers of small models: one token a word, and for Playground-Text one a thing or phrase.

Fewer tokens mean more samples per second. And a word that is spelled in many tokens hurts twice: an
untrained model finds such actions hundreds of nats apart, so the policy is nearly deterministic.

For Playground-Text, the fixed phrases of a prompt ("\\nYou are holding:"), a colour with its name
("red lion", "any animal"), and "then" with its verb are one token each; commas are left out.
"""

import re
from collections import Counter
from collections.abc import Iterable

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
    *("yes", "no", "first", "second", "here", "held", "grown", "named", "asked", "state", "kind"),
    *(*COLOURS, *TYPES, *CATEGORIES),
)

# A word, with the white space in front of it and a colon behind it, or a sign.
_WORD = re.compile(r"\s?\w+(?:['-]\w+)*:?|\s?[^\w\s]|\s")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer of Playground-Text, with ``<pad>``, ``</s>`` and ``<unk>``.

    Examples:
        >>> make_tokenizer().tokenize("Goal: Grow any lion\\nYou see: red lion, blue water")
        ['Goal:', ' Grow', ' any lion', '\\nYou see:', ' red lion', ' blue water']
    """
    things = [f" {c} {name}" for c in (*COLOURS, "any") for name in (*TYPES, *CATEGORIES, "thing")]
    pieces = [*PHRASES, *(f" {word}" for word in WORDS), *things]
    return _from_pieces(pieces, normalizers.Replace(",", ""))


def make_word_tokenizer(texts: Iterable[str], size: int = 4096) -> PreTrainedTokenizerFast:
    """Builds a tokenizer that has the words of some texts, and spells other words in characters.

    Tokens begin at white space, so that a prompt can be put together from pieces that begin at
    white space. Among all ways to cut a text the one with the fewest tokens is taken. What is
    neither in the texts nor ASCII becomes the unknown token.

    Args:
        texts: prompts and actions, as the model will read them.
        size: words to have, the most frequent ones. Default: 4096.

    Returns:
        A tokenizer with ``<pad>`` (also the decoder's start), ``</s>`` and ``<unk>``.

    Examples:
        >>> tokenizer = make_word_tokenizer(["Goal: take a coin", "Goal: take\\na map"])
        >>> tokenizer.tokenize("Goal: take\\na cat")
        ['Goal:', ' take', '\\na', ' ', 'c', 'a', 't']
    """
    if size < 0:
        raise ValueError(f"size ({size}) must be a number of words, 0 for characters alone")
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    # By name where counts are equal, so that the same texts in another order make the same tokens.
    words = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    return _from_pieces(words)


def _from_pieces(
    pieces: Iterable[str], normalizer: normalizers.Normalizer | None = None
) -> PreTrainedTokenizerFast:
    special = ["<pad>", "</s>", "<unk>"]
    pieces = dict.fromkeys(pieces)
    characters = ["\n", *(chr(code) for code in range(32, 127))]
    # A known piece costs 1, a character more than any piece, so that pieces win wherever they fit.
    vocabulary = [(piece, 0.0) for piece in special]
    vocabulary += [(piece, -1.0) for piece in pieces]
    vocabulary += [(piece, -10.0) for piece in characters if piece not in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special.index("<unk>")))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
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
