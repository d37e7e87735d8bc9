"""Pretraining of small language models: tokenizers, and reading exercises."""

from torchrl_glam.pretraining.batches import Reading, ReadingBatch, encode_readings, reading_loss
from torchrl_glam.pretraining.game_exercises import GAME_EXERCISES, GameExercises
from torchrl_glam.pretraining.imitation import imitate
from torchrl_glam.pretraining.play import Move, record_play
from torchrl_glam.pretraining.playground import PLAYGROUND_EXERCISES, PlaygroundExercises
from torchrl_glam.pretraining.tokenizer import make_tokenizer, make_word_tokenizer

__all__ = [
    "GAME_EXERCISES",
    "GameExercises",
    "Move",
    "PLAYGROUND_EXERCISES",
    "PlaygroundExercises",
    "Reading",
    "ReadingBatch",
    "encode_readings",
    "imitate",
    "make_tokenizer",
    "make_word_tokenizer",
    "reading_loss",
    "record_play",
]
