"""Checkpoints: what is saved of a run, and how it is restored."""
