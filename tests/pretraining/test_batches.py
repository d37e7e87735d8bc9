"""Readings as tensors, and their loss against the model's own, one question at a time."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from torchrl_glam.pretraining import Reading, encode_readings, make_tokenizer, reading_loss

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
]


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def test_only_answers_are_labels_and_each_is_predicted_from_what_stands_before(tokenizer):
    batch = encode_readings(tokenizer, READINGS)
    decoded = [
        [tokenizer.convert_ids_to_tokens(row[row >= 0].tolist()) for row in batch.labels],
        [tokenizer.convert_ids_to_tokens(row.tolist()) for row in batch.decoder_input],
    ]
    assert decoded[0] == [
        [" here", " red cow"],
        [" Grasp", " red cow"],
        [" Grasp", " nothing"],
        [" nothing", " grown", " grown", " nothing"],
    ]
    assert decoded[1][0][:5] == ["<pad>", " Go to", " red cow", " here", "<pad>"]
    assert batch.decoder_input.shape[1] % 4 == 0 == batch.prompt.shape[1] % 4


def test_loss_is_that_of_each_question_read_alone(tokenizer):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        tie_word_embeddings=True,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    total, count = 0.0, 0
    for prompt, answers in READINGS:
        source = tokenizer(prompt, return_tensors="pt")
        for pieces in answers:
            ids = [tokenizer(text, add_special_tokens=False).input_ids for text, _ in pieces]
            kept = [i for part, (_, keep) in zip(ids, pieces, strict=True) for i in part if keep]
            labels = [
                i if keep else -100
                for part, (_, keep) in zip(ids, pieces, strict=True)
                for i in part
            ]
            start = torch.tensor([[0, *(i for part in ids for i in part)][:-1]])
            with torch.no_grad():
                logits = model(**source, decoder_input_ids=start).logits[0]
            chosen = logits.log_softmax(-1)[range(len(labels)), [max(i, 0) for i in labels]]
            total -= sum(x.item() for x, i in zip(chosen, labels, strict=True) if i >= 0)
            count += len(kept)
    loss = reading_loss(model, encode_readings(tokenizer, READINGS))
    assert loss.item() == pytest.approx(total / count, rel=1e-4)
