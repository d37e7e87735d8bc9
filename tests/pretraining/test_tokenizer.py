"""Tokenizers whose words are single tokens."""

from hypothesis import given
from hypothesis import strategies as st

from torchrl_glam.pretraining import make_word_tokenizer
from torchrl_glam.text import PromptTemplate, check_composition

TEXTS = ["Goal: take the coin\nYou're in a T-shirt shop.\nAction:", " go north", " take coin"]


def test_words_are_tokens_and_others_are_spelled():
    tokenizer = make_word_tokenizer(TEXTS)
    assert tokenizer.tokenize("Goal: take the coin") == ["Goal:", " take", " the", " coin"]
    assert tokenizer.tokenize("\nYou're in a T-shirt shop.") == [
        *("\nYou're", " in", " a", " T-shirt", " shop", "."),
    ]
    assert tokenizer.tokenize(" go west") == [" go", " ", "w", "e", "s", "t"]
    assert tokenizer.convert_tokens_to_ids(["<pad>", "</s>", "<unk>"]) == [0, 1, 2]
    assert tokenizer(" go").input_ids[-1] == tokenizer.eos_token_id


def test_the_most_frequent_words_are_kept_whatever_the_order():
    few = make_word_tokenizer(["a a b b b c"], size=2)
    assert few.tokenize(" a b c") == [" a", " b", " ", "c"]
    turned = make_word_tokenizer(reversed(TEXTS))
    assert turned.get_vocab() == make_word_tokenizer(TEXTS).get_vocab()


def test_pieces_of_a_prompt_have_the_tokens_of_the_whole():
    template = PromptTemplate()
    texts = [("take the coin", "You're in a shop."), ("", ""), ("find \n it", "dark, cold")]
    check_composition(make_word_tokenizer(TEXTS), template, texts)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_any_ascii_text_comes_back(text):
    tokenizer = make_word_tokenizer(TEXTS)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
