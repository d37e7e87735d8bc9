"""The unit of pretraining, a prompt with questions and answers; and batches of them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

IGNORED = -100
_MULTIPLE = 4  # of lengths, as libraries prepare a kernel for each shape that they see


class Reading(NamedTuple):
    """A prompt, and decoder texts about it.

    Attributes:
        prompt: what the encoder reads.
        answers: for each question its pieces of text, and whether each is to be predicted.
    """

    prompt: str
    answers: list[list[tuple[str, bool]]]


class ReadingBatch(NamedTuple):
    """B prompts, each with its questions one after another in a row of L tokens.

    Attributes:
        prompt: ``[B, T]`` int64 tokens.
        prompt_mask: ``[B, T]`` int64, 1 at tokens.
        decoder_input: ``[B, L]`` int64: of each question the start token, then all but its last.
        labels: ``[B, L]`` int64: the tokens to predict, -100 elsewhere.
    """

    prompt: Tensor
    prompt_mask: Tensor
    decoder_input: Tensor
    labels: Tensor


def drawable(
    name: str, given: Mapping[str, float] | None, known: Mapping[str, float]
) -> dict[str, float]:
    """The exercises of positive weight; refuses unknown ones, and weights that say no shares."""
    given = known if given is None else given
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{name} has unknown exercises {unknown}: known are {list(known)}")
    if not all(0 <= weight < math.inf for weight in given.values()) or not any(given.values()):
        raise ValueError(f"{name} ({given}) must be numbers of at least 0, not all 0")
    return {exercise: weight for exercise, weight in given.items() if weight}


def encode_readings(
    tokenizer: PreTrainedTokenizerBase, readings: Sequence[Reading]
) -> ReadingBatch:
    """Tokenises readings, in lengths that are multiples of 4.

    Args:
        tokenizer: one whose tokens begin at white space, so that pieces of text can be tokenised
            apart; its padding token starts the decoder.
        readings: B prompts with questions; ValueError if there are none, or they have no text.

    Examples:
        >>> from torchrl_glam.models import load_tokenizer
        >>> answer = [(" Go to red cow", False), (" nothing", True)]
        >>> reading = Reading("Goal: Grasp red cow", [answer])
        >>> batch = encode_readings(load_tokenizer("tiny"), [reading])
        >>> batch.labels.ne(IGNORED).sum(1).tolist()
        [1]
    """
    texts = [text for reading in readings for pieces in reading.answers for text, _ in pieces]
    if not texts:
        raise ValueError("readings have no text: give one question with an answer or more")
    prompts = tokenizer(
        [reading.prompt for reading in readings],
        padding=True,
        pad_to_multiple_of=_MULTIPLE,
        return_tensors="pt",
    )
    encoded = iter(tokenizer(texts, add_special_tokens=False).input_ids)
    rows = []
    for reading in readings:
        ids, labels = [], []
        for pieces in reading.answers:
            ids.append(tokenizer.pad_token_id)
            for _, counted in pieces:
                piece = next(encoded)
                ids += piece
                labels += piece if counted else [IGNORED] * len(piece)
            ids.pop()
        rows.append({"input_ids": ids, "labels": labels})
    asked = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=_MULTIPLE)(rows)
    return ReadingBatch(prompts.input_ids, prompts.attention_mask, asked.input_ids, asked.labels)


def reading_loss(model: PreTrainedModel, batch: ReadingBatch) -> Tensor:
    """Cross-entropy of the answers in nats a token; each prompt is read once.

    Args:
        model: an encoder-decoder of T5's kind with tied embeddings.
        batch: what it reads; ValueError if it has no token to predict.

    Examples:
        >>> from torchrl_glam.models import load_language_model
        >>> model, tokenizer = load_language_model("tiny")
        >>> reading = Reading("Goal: Grasp red cow", [[(" Go to", False), (" red cow", True)]])
        >>> reading_loss(model, encode_readings(tokenizer, [reading])).item() > 0
        True
    """
    labels = batch.labels.flatten()
    asked = (labels != IGNORED).nonzero().squeeze(1)
    if not len(asked):
        raise ValueError("batch has no token to predict: a mean over none is undefined")
    encoded = model.get_encoder()(input_ids=batch.prompt, attention_mask=batch.prompt_mask)[0]
    # A question sees itself alone, and T5 distances alone: it is read as in a row of its own.
    question = (batch.decoder_input == model.config.decoder_start_token_id).cumsum(1)
    same = (question.unsqueeze(1) == question.unsqueeze(2)).tril().unsqueeze(1)
    hidden = model.get_decoder()(
        input_ids=batch.decoder_input,
        attention_mask=torch.finfo(encoded.dtype).min * (~same).to(encoded.dtype),
        encoder_hidden_states=encoded,
        encoder_attention_mask=batch.prompt_mask,
        use_cache=False,
    )[0]
    rows = torch.nn.functional.pad(asked, (0, -len(asked) % 128))  # again few shapes
    logits = model.lm_head(hidden.flatten(0, 1)[rows] * model.config.d_model**-0.5)
    return torch.nn.functional.cross_entropy(logits[: len(asked)].float(), labels[asked])
