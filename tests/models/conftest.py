"""What tests of models share."""

import pytest
from flan_t5 import make_flan_t5


@pytest.fixture(scope="session")
def flan_t5(tmp_path_factory):
    """The folder of a tiny model of Flan-T5's architecture, and its tokenizer."""
    return make_flan_t5(tmp_path_factory.mktemp("models") / "flan-t5")
