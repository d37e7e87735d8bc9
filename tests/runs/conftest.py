"""What tests of runs share."""

from types import SimpleNamespace

import pytest

from torchrl_glam.models import load_language_model, make_trunk


@pytest.fixture(scope="module")
def language():
    """The embedded model, its tokenizer and its trunk."""
    model, tokenizer = load_language_model("tiny")
    trunk = make_trunk(model, tokenizer).eval()
    return SimpleNamespace(model=model, tokenizer=tokenizer, trunk=trunk)
