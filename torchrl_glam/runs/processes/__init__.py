"""Processes of a run: those that torchrun starts, and collectors on Ray."""
