"""What tests of models share."""

import pytest

from torchrl_glam.models import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer("tiny")
