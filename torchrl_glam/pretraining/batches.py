"""The unit of pretraining, a prompt with questions and answers; and batches of them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

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


def encode_readings(
    tokenizer: PreTrainedTokenizerBase, readings: Sequence[Reading]
) -> ReadingBatch:
    """Tokenises readings, in lengths that are multiples of 4.

    Args:
        tokenizer: one whose tokens begin at white space, so that pieces of text can be tokenised
            apart; its padding token starts the decoder.
        readings: B prompts with the same number of questions.

    Examples:
        >>> from torchrl_glam.models import load_tokenizer
        >>> answer = [(" Go to red cow", False), (" nothing", True)]
        >>> reading = Reading("Goal: Grasp red cow", [answer])
        >>> batch = encode_readings(load_tokenizer("tiny"), [reading])
        >>> batch.labels.ne(IGNORED).sum(1).tolist()
        [1]
    """
    prompts = tokenizer(
        [reading.prompt for reading in readings],
        padding=True,
        pad_to_multiple_of=_MULTIPLE,
        return_tensors="pt",
    )
    if len(numbers := {len(reading.answers) for reading in readings}) > 1:
        raise ValueError(f"readings have {sorted(numbers)} answers: all must have as many")
    answers = [pieces for reading in readings for pieces in reading.answers]
    texts = [text for pieces in answers for text, _ in pieces]
    encoded = iter(tokenizer(texts, add_special_tokens=False).input_ids)
    tokens, labels = [], []
    for pieces in answers:
        ids, targets = [tokenizer.pad_token_id], []
        for _, counted in pieces:
            piece = next(encoded)
            ids += piece
            targets += piece if counted else [IGNORED] * len(piece)
        tokens.append(torch.tensor(ids[:-1]))
        labels.append(torch.tensor(targets))
    short = (0, -max(map(len, tokens)) % _MULTIPLE)
    tokens, labels = (
        torch.nn.functional.pad(pad_sequence(rows, True, fill), short, value=fill)
        for rows, fill in ((tokens, tokenizer.pad_token_id), (labels, IGNORED))
    )
    return ReadingBatch(prompts.input_ids, prompts.attention_mask, tokens, labels)


def reading_loss(model: PreTrainedModel, batch: ReadingBatch) -> Tensor:
    """Cross-entropy of the answers in nats a token; each prompt is encoded once.

    Args:
        model: an encoder-decoder of T5's kind with tied embeddings.
        batch: what it reads.
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
    rows = torch.nn.functional.pad(asked, (0, -len(asked) % 128))  # again few shapes
    logits = model.lm_head(hidden.flatten(0, 1)[rows] * model.config.d_model**-0.5)
    return torch.nn.functional.cross_entropy(logits[: len(asked)].float(), labels[asked])
