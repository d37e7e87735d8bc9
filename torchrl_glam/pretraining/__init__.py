"""What makes small language models: tokenizers and reading exercises from random play."""

from torchrl_glam.pretraining.batches import ReadingBatch, encode_readings, reading_loss
from torchrl_glam.pretraining.exercises import EXERCISES, Exercises, Reading
from torchrl_glam.pretraining.game_exercises import GAME_EXERCISES, GameExercises
from torchrl_glam.pretraining.imitation import imitate
from torchrl_glam.pretraining.play import Move, record_play
from torchrl_glam.pretraining.playground import playground_readings
from torchrl_glam.pretraining.tokenizer import make_tokenizer, make_word_tokenizer

__all__ = [
    "EXERCISES",
    "Exercises",
    "GAME_EXERCISES",
    "GameExercises",
    "Move",
    "Reading",
    "ReadingBatch",
    "encode_readings",
    "imitate",
    "make_tokenizer",
    "make_word_tokenizer",
    "playground_readings",
    "reading_loss",
    "record_play",
]
