"""Tests of the losses and their optimisation."""
