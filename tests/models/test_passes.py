"""Passes by tokens: hand-computed ones, and padding."""

import pytest
import torch
from families import make_model, make_transitions

from torchrl_glam.models import make_trunk, split_by_tokens
from torchrl_glam.models.trunks.passes import token_passes


def test_passes_by_hand():
    """Sorted: prompts 10, 10, 11, 20, 21, 90 with nodes 5, 4, 5, 5, 6, 3; at most 48 tokens.

    Three rows of 11 + 5 are 48; two of 21 + 6 would be 54, so 20 and 21 stand alone; 90 + 3 is too
    long and stands alone too.
    """
    prompts, nodes = torch.tensor([21, 10, 90, 11, 10, 20]), torch.tensor([6, 5, 3, 5, 4, 5])
    passes = [rows.tolist() for rows in token_passes(prompts, nodes, 48)]
    assert passes == [[1, 4, 3], [5], [0], [2]]
    assert [rows.tolist() for rows in token_passes(prompts, nodes, 10_000)] == [[1, 4, 3, 5, 0, 2]]


def test_parts_hold_every_row_once_and_fit(tokenizer):
    trunk, batch = make_trunk(make_model("t5", tokenizer), tokenizer), make_transitions()
    batch["row"] = torch.arange(len(batch))
    parts = split_by_tokens(batch, trunk, 90)
    assert sorted(torch.cat([part["row"] for part in parts]).tolist()) == list(range(len(batch)))
    assert len(parts) > 2
    for part in parts:
        for states in (part, part["next"]):
            prompts, nodes = trunk.count_tokens(states)
            assert len(part) * (prompts.max() + nodes.max()) <= 90 or len(part) == 1
    assert split_by_tokens(batch, trunk, None)[0] is batch


def test_bad_arguments_are_refused(tokenizer):
    trunk, batch = make_trunk(make_model("t5", tokenizer), tokenizer), make_transitions()
    with pytest.raises(ValueError, match=r"max_tokens \(0\) must be at least 1"):
        split_by_tokens(batch, trunk, 0)
    with pytest.raises(ValueError, match=r"batch has the shape \(3, 3\)"):
        split_by_tokens(batch.view(3, 3), trunk, 100)
