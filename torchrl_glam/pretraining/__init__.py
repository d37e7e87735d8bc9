"""What makes the embedded language model ``tiny``: its tokenizer and its reading exercises."""

from torchrl_glam.pretraining.exercises import EXERCISES, Exercises
from torchrl_glam.pretraining.tokenizer import make_tokenizer

__all__ = ["EXERCISES", "Exercises", "make_tokenizer"]
