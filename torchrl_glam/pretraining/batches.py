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
    """B prompts with Q questions each.

    Attributes:
        prompt: ``[B, T]`` int64 tokens.
        prompt_mask: ``[B, T]`` int64, 1 at tokens.
        decoder_input: ``[B * Q, L]`` int64: the start token, then all but the last token.
        labels: ``[B * Q, L]`` int64: the tokens to predict, -100 elsewhere.
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
        readings: B prompts with the same number of questions; ValueError if they have no text or
            another number.

    Examples:
        >>> from torchrl_glam.models import load_tokenizer
        >>> answer = [(" Go to red cow", False), (" nothing", True)]
        >>> reading = Reading("Goal: Grasp red cow", [answer])
        >>> batch = encode_readings(load_tokenizer("tiny"), [reading])
        >>> batch.labels.ne(IGNORED).sum(1).tolist()
        [1]
    """
    answers = [pieces for reading in readings for pieces in reading.answers]
    texts = [text for pieces in answers for text, _ in pieces]
    if len(numbers := {len(reading.answers) for reading in readings}) != 1 or not texts:
        raise ValueError(
            f"readings have {sorted(numbers)} answers: all must have the same number, and text"
        )
    prompts = tokenizer(
        [reading.prompt for reading in readings],
        padding=True,
        pad_to_multiple_of=_MULTIPLE,
        return_tensors="pt",
    )
    encoded = iter(tokenizer(texts, add_special_tokens=False).input_ids)
    rows = []
    for pieces in answers:
        ids, targets = [tokenizer.pad_token_id], []
        for _, counted in pieces:
            piece = next(encoded)
            ids += piece
            targets += piece if counted else [IGNORED] * len(piece)
        rows.append({"input_ids": ids[:-1], "labels": targets})
    asked = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=_MULTIPLE)(rows)
    return ReadingBatch(prompts.input_ids, prompts.attention_mask, asked.input_ids, asked.labels)


def reading_loss(model: PreTrainedModel, batch: ReadingBatch) -> Tensor:
    """Cross-entropy of the answers in nats a token; each prompt is encoded once.

    Args:
        model: an encoder-decoder of T5's kind with tied embeddings.
        batch: what it reads; ValueError if it has no token to predict.
    """
    questions = len(batch.labels) // len(batch.prompt)
    encoded = model.get_encoder()(
        input_ids=batch.prompt, attention_mask=batch.prompt_mask
    ).last_hidden_state
    hidden = model.get_decoder()(
        input_ids=batch.decoder_input,
        encoder_hidden_states=encoded.repeat_interleave(questions, 0),
        encoder_attention_mask=batch.prompt_mask.repeat_interleave(questions, 0),
        use_cache=False,
    ).last_hidden_state
    labels = batch.labels.flatten()
    asked = (labels != IGNORED).nonzero().squeeze(1)
    if not len(asked):
        raise ValueError("batch has no token to predict: a mean over none is undefined")
    rows = torch.nn.functional.pad(asked, (0, -len(asked) % 128))  # again few shapes
    logits = model.lm_head(hidden.flatten(0, 1)[rows] * model.config.d_model**-0.5)
    return torch.nn.functional.cross_entropy(logits[: len(asked)].float(), labels[asked])
