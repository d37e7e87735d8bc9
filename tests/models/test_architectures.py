"""How each of many architectures is read, against the plain computation; and the table of it.

python tests/models/test_architectures.py    # writes torchrl_glam/models/architectures.md
"""

import sys
from itertools import product
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # when run by itself

from architectures import ARCHITECTURES, SCALES, make_architecture  # noqa: E402
from families import OBSERVATIONS, assert_plain, make_states  # noqa: E402

from torchrl_glam.models import DecoderOnlyTrunk, load_tokenizer, make_trunk  # noqa: E402

TABLE = ROOT / "torchrl_glam/models/architectures.md"
# The first is longer than every window and rotary switch of these models, the last shorter.
LONG = ["You see: " + ", ".join(["red lion", "blue cat", "green rose"] * 10), *OBSERVATIONS[1:]]
SHORT = ["You see: red lion", "You see: red food", "You see: blue door"]
REFUSED = {
    "state-space, recurrent": "refused: layers that read tokens in one line",
    "experts with room for some": "refused: experts shared by the tokens of a batch",
    "cannot be read by": "refused: a token trie is not exact",
}
HEADER = """# Architectures

How `make_trunk` reads tiny models of these architectures, fresh and with enlarged weights, in
float32 and in bfloat16. Scores equal the model's own forward, one candidate at a time, to 1e-4.

- *trie*: one pass a state, candidates merged by prefix;
- *refused*: by a message with this reason. Texts beyond a limit are refused as well.

Written by `python tests/models/test_architectures.py`; a test keeps it true.

| architecture | read as | texts beyond |
|---|---|---|
"""


def make(name, tokenizer, **options):
    """The trunk, or the error that refuses the model."""
    try:
        return make_trunk(make_architecture(name, tokenizer, **options), tokenizer)
    except ValueError as error:
        return error


def describe(found):
    if isinstance(found, ValueError):
        return next(how for words, how in REFUSED.items() if words in str(found)), ""
    limits = {"positions": "its positions", "any length": "", "rotary": "its rotary switch"}
    return "trie", next(limit for word, limit in limits.items() if word in found.limit.why)


def row(name, columns):
    return f"| {name} | {columns[0]} | {columns[1]} |"


@torch.no_grad()
def assert_exact(trunk, tokenizer, observations):
    states = trunk(make_states(tokenizer, observations=observations))
    assert states["action_embedding"].shape[-1] == trunk.embedding_dim
    assert_plain(trunk, tokenizer, states, observations=observations)


# One of each way of reading, and of each limit; the others are slow together.
QUICK = ("gpt2", "gpt_neo", "llama", "mistral", "gemma2", "phi3-longrope", "umt5", "bart", "mamba")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_every_architecture_is_exact_or_refused(name, tokenizer):
    """Past its window and its rotary switch, in batches of prompts of unequal length."""
    kinds = product((1.0, SCALES[name]), (torch.float32, torch.bfloat16))
    found = [make(name, tokenizer, scale=scale, dtype=dtype) for scale, dtype in kinds]
    columns = {describe(trunk) for trunk in found}
    assert len(columns) == 1, "how a model is read hangs on its weights or their type"
    columns = columns.pop()
    assert row(name, columns) in TABLE.read_text(encoding="utf-8").splitlines()
    if columns[0].startswith("refused"):
        return
    bounded = columns[1] not in ("", "its positions") or "dynamic" in name
    for trunk in found:
        trunk.model.float()  # weights that were rounded, read without rounding
        assert_exact(trunk, tokenizer, SHORT if bounded else LONG)
    if bounded:
        with pytest.raises(ValueError, match=r"have \d+ tokens, and the model (has|reads)"):
            found[-1](make_states(tokenizer, observations=LONG))


@pytest.mark.parametrize(("window", "why"), [(2048, "(sliding_window)"), (1000, "positions")])
def test_a_window_too_long_to_be_compared_is_the_longest_text(window, why, tokenizer):
    sizes = {"sliding_window": window, "max_position_embeddings": 4096}
    limit = make("mistral", tokenizer, **sizes).limit
    assert limit.tokens == (2048 if window == 2048 else 4096) and why in limit.why


def test_a_window_that_no_mask_makes_is_the_longest_text(tokenizer, monkeypatch):
    """As of a model whose windows are not Mistral's."""
    monkeypatch.setattr(DecoderOnlyTrunk, "_near", lambda self, kind, *_: torch.tensor(True))
    trunk = make("mistral", tokenizer, scale=4.0)
    assert trunk.limit.tokens == 32 and "sliding_window" in trunk.limit.why
    with pytest.raises(ValueError, match=r"have \d+ tokens, and the model has layers that see 32"):
        trunk(make_states(tokenizer, observations=LONG))
    with torch.no_grad():
        assert_exact(trunk, tokenizer, SHORT)


@torch.no_grad()
def test_weights_of_half_precision_score_nearly_as_exact_ones(tokenizer):
    states = make_states(tokenizer, observations=LONG)
    for name in ("gpt2", "llama", "flan-t5", "bart"):
        half, exact = (make(name, tokenizer, dtype=torch.bfloat16) for _ in range(2))
        exact.model.float()
        scores = [trunk(states.clone())["log_likelihood"] for trunk in (half, exact)]
        torch.testing.assert_close(*scores, atol=0.3, rtol=0.02)


def test_the_table_lists_every_architecture_once():
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert names == ["architecture", *ARCHITECTURES]
    assert TABLE.read_text(encoding="utf-8").startswith(HEADER)
    assert len(ARCHITECTURES) >= 45


def write_table():
    tokenizer = load_tokenizer("tiny")
    rows = [row(name, describe(make(name, tokenizer))) for name in ARCHITECTURES]
    TABLE.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_table()
