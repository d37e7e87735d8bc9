"""What makes the embedded language model ``tiny``: its tokenizer and its reading exercises."""

from torchrl_glam.pretraining.batches import ReadingBatch, encode_readings, reading_loss
from torchrl_glam.pretraining.exercises import EXERCISES, Exercises, Reading
from torchrl_glam.pretraining.imitation import imitate
from torchrl_glam.pretraining.tokenizer import make_tokenizer

__all__ = [
    "EXERCISES",
    "Exercises",
    "Reading",
    "ReadingBatch",
    "encode_readings",
    "imitate",
    "make_tokenizer",
    "reading_loss",
]
