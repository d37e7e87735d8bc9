"""Tokenizers of words, readings as tensors, and their loss, one question at a time."""

import pytest
import torch
from architectures import make_architecture
from hypothesis import given
from hypothesis import strategies as st

from torchrl_glam.pretraining import Reading, encode_readings, make_word_tokenizer, reading_loss
from torchrl_glam.text import PromptTemplate, check_composition

READINGS = [
    Reading(
        "Goal: Grasp red cow\nYou see: red cow, blue lion\nAction:",
        [
            [(" Go to red cow", False), (" here red cow", True)],
            [("\nQuestion: first asked", False), (" Grasp red cow", True)],
        ],
    ),
    Reading(
        "Goal: Grow any pig then grasp blue tea\nYou see: blue tea\nAction:",
        [
            [(" Grasp", True), (" nothing", True)],
            [
                *(("\nQuestion: state", False), (" blue tea", False), (" nothing grown", True)),
                *((" blue tea", False), (" grown nothing", True)),
            ],
        ],
    ),
    Reading("Goal: Grasp red cow\nAction:", [[(" Grasp red cow", True)]]),
]


def test_only_answers_are_labels_and_each_is_predicted_from_what_stands_before(tokenizer):
    batch = encode_readings(tokenizer, READINGS)
    labels = [tokenizer.convert_ids_to_tokens(row[row >= 0].tolist()) for row in batch.labels]
    assert labels == [
        [" here", " red cow", " Grasp", " red cow"],
        [" Grasp", " nothing", " nothing", " grown", " grown", " nothing"],
        [" Grasp", " red cow"],
    ]
    before = tokenizer.convert_ids_to_tokens(batch.decoder_input[0].tolist())
    assert before[:5] == ["<pad>", " Go to", " red cow", " here", "<pad>"]
    assert batch.decoder_input.shape[1] % 4 == 0 == batch.prompt.shape[1] % 4


def test_loss_is_that_of_each_question_read_alone(tokenizer):
    model, total, count = make_architecture("t5", tokenizer).double(), 0.0, 0
    for prompt, answers in READINGS:
        source = tokenizer(prompt, return_tensors="pt")
        for pieces in answers:
            ids = [tokenizer(text, add_special_tokens=False).input_ids for text, _ in pieces]
            kept = [keep for part, (_, keep) in zip(ids, pieces, strict=True) for _ in part]
            tokens = sum(ids, [])
            with torch.no_grad():
                start = torch.tensor([[tokenizer.pad_token_id, *tokens[:-1]]])
                logits = model(**source, decoder_input_ids=start).logits[0]
            chosen = logits.log_softmax(-1)[range(len(tokens)), tokens]
            total -= chosen[torch.tensor(kept)].sum().item()
            count += sum(kept)
    loss = reading_loss(model, encode_readings(tokenizer, READINGS))
    assert loss.item() == pytest.approx(total / count, rel=1e-6)


def test_what_cannot_be_read_is_refused(tokenizer):
    model, prompt = make_architecture("t5", tokenizer), "Goal: Grasp red cow"
    for readings in ([], [Reading(prompt, [])]):
        with pytest.raises(ValueError, match="readings have no text"):
            encode_readings(tokenizer, readings)
    nothing = encode_readings(tokenizer, [Reading(prompt, [[("", True)], [(" Grasp", False)]])])
    with pytest.raises(ValueError, match="batch has no token to predict"):
        reading_loss(model, nothing)


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
    # The prompt's pieces have the tokens of the whole.
    texts = [("take the coin", "You're in a shop."), ("", ""), ("find \n it", "dark, cold")]
    check_composition(tokenizer, PromptTemplate(), texts)


def test_the_most_frequent_words_are_kept_whatever_the_order():
    few = make_word_tokenizer(["a a b b b c"], size=2)
    assert few.tokenize(" a b c") == [" a", " b", " ", "c"]
    with pytest.raises(ValueError, match=r"size \(-1\) must be a number of words"):
        make_word_tokenizer(["a a b"], size=-1)
    turned = make_word_tokenizer(reversed(TEXTS))
    assert turned.get_vocab() == make_word_tokenizer(TEXTS).get_vocab()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_any_ascii_text_comes_back(text):
    tokenizer = make_word_tokenizer(TEXTS)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
