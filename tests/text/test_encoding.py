"""Text tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_glam.text import decode_text, encode_text, join_segments

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(words, min_size=n, max_size=n))))
def test_round_trip(strings):
    text = encode_text(strings)
    assert text.dtype == torch.uint8
    assert decode_text(text) == strings


def test_shapes():
    assert encode_text("Grasp").tolist() == [71, 114, 97, 115, 112]
    assert decode_text(encode_text("Grasp")) == "Grasp"
    assert encode_text([["a", "b"], ["c", "d"], ["e", ""]], length=5).shape == (3, 2, 5)
    assert encode_text("").tolist() == [0]
    assert encode_text([], length=3).shape == (0, 3)


def test_errors():
    with pytest.raises(ValueError, match=r"length \(3\) is too small for 'Grasp', .* 5 bytes"):
        encode_text(["Go", "Grasp"], length=3)
    with pytest.raises(ValueError, match="zero bytes are padding"):
        encode_text("a\0b")
    with pytest.raises(ValueError, match="nested evenly"):
        encode_text([["a"], ["b", "c"]])
    with pytest.raises(TypeError, match="uint8 tensor of UTF-8 bytes, got torch.int64"):
        decode_text(torch.zeros(3).long())
    with pytest.raises(TypeError, match="got str"):
        decode_text("Grasp")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=3, max_size=3)),
    st.integers(0, 14),
)
def test_join_segments(rows, length):
    values = torch.zeros((len(rows), 3, 4), dtype=torch.int16)
    mask = torch.zeros(values.shape, dtype=torch.bool)
    for r, row in enumerate(rows):
        for s, segment in enumerate(row):  # padding may stand in the middle
            places = torch.randperm(4)[: len(segment)].sort().values
            values[r, s, places] = torch.tensor(segment, dtype=torch.int16)
            mask[r, s, places] = True
    joined = join_segments(values, mask, length, pad=99)
    assert joined.dtype == values.dtype
    for row, found in zip(rows, joined.tolist(), strict=True):
        whole = sum(row, [])[:length]
        assert found == whole + [99] * (length - len(whole))
