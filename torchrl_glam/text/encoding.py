"""Text as tensors: UTF-8 bytes, zero padded on the right.

Text travels through environments, collectors and transforms as ``uint8`` tensors whose last
dimension is the length in bytes. Strings in a TensorDict are slow to stack and are lost by
transforms that gather, such as n-step returns.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Strings = str | Sequence["Strings"]
End = Literal["head", "tail"]


def encode_text(strings: Strings, length: int | None = None) -> Tensor:
    """Encodes a string, or (nested) lists of strings, as a text tensor.

    Args:
        strings: the text; nested sequences must be rectangular.
        length: size of the last dimension, in bytes. Default: the longest string's, at least 1.

    Returns:
        ``uint8 [*B, length]``, where B is the shape of the nested lists.

    Raises:
        ValueError: if lists are not nested evenly, ``length`` is below 1, or a string is longer or
            holds a zero byte, which is padding.

    Examples:
        >>> encode_text(["Grasp", "Go"])
        tensor([[ 71, 114,  97, 115, 112],
                [ 71, 111,   0,   0,   0]], dtype=torch.uint8)
    """
    nested = np.array(strings, dtype=object)
    flat = nested.ravel().tolist()
    for text in flat:
        if not isinstance(text, str):
            raise ValueError(f"strings must be nested evenly, got {text!r} in place of a string.")
    rows = [text.encode() for text in flat]
    longest = max((len(row) for row in rows), default=0)
    length = max(longest, 1) if length is None else length
    if max(longest, 1) > length:
        text = max(flat, key=lambda text: len(text.encode()), default="")
        raise ValueError(
            f"length ({length}) is too small for {text!r}, which takes {longest} bytes: "
            "pass a larger length, or None to use the longest string's."
        )
    if any(0 in row for row in rows):
        raise ValueError("strings must not hold the character '\\0': zero bytes are padding.")
    padded = np.array(rows, f"S{length}").view(np.uint8).reshape(*nested.shape, length)
    return torch.from_numpy(padded).clone()


def decode_text(text: Tensor) -> Any:
    """Decodes a text tensor into strings; the inverse of :func:`encode_text`.

    Args:
        text: ``uint8 [*B, length]``.

    Returns:
        A string if B is empty, else nested lists of strings of shape B.

    Raises:
        TypeError: if ``text`` is not a ``uint8`` tensor.
        ValueError: if it is not UTF-8.

    Examples:
        >>> decode_text(encode_text([["Grasp", "Release"], ["Go to red lion", ""]]))
        [['Grasp', 'Release'], ['Go to red lion', '']]
    """
    strings = [decode_bytes(raw, "text") for raw in bytes_of(text, "text")]
    return np.array(strings, dtype=object).reshape(text.shape[:-1]).tolist()


def bytes_of(text: Any, name: str) -> list[bytes]:
    """The bytes of each string of a text tensor, without its padding; errors call it ``name``."""
    if not isinstance(text, Tensor) or text.dtype != torch.uint8:
        kind = text.dtype if isinstance(text, Tensor) else type(text).__name__
        raise TypeError(
            f"{name} must be a uint8 tensor of UTF-8 bytes, got {kind}: encode_text makes one"
        )
    if not text.shape[-1]:
        return [b""] * text.shape[:-1].numel()
    raw = np.ascontiguousarray(text.cpu().reshape(-1, text.shape[-1]).numpy())
    return raw.view(f"S{text.shape[-1]}").ravel().tolist()  # without the zeros at the end


def decode_bytes(raw: bytes, name: str) -> str:
    """Decodes the bytes of one string without its padding; an error calls it ``name``."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 at byte {error.start} of {raw!r}: text must be UTF-8 without cut "
            "characters, as encode_text writes it"
        ) from None


def cut_text(text: str, fits: Callable[[str], bool], keep: End) -> str:
    """The longest head or tail of a text that fits, in whole words, or characters if no word fits.

    It has no white space where it was cut, and is empty if no character fits. Where some part does
    not fit although a longer one does, as with tokens of several words, it may not be the longest.
    """
    head = keep == "head"
    words = [gap.start() if head else gap.end() for gap in re.finditer(r"\s+", text)]

    def part(end: int) -> str:
        return text[:end] if head else text[end:]

    for ends in (words, range(len(text) + 1)):
        ends = ends if head else ends[::-1]  # from the shortest part to the longest
        fitting = bisect_left(ends, True, key=lambda end: not fits(part(end)))
        if fitting and part(ends[fitting - 1]).strip():
            return part(ends[fitting - 1])
    return ""


def join_segments(values: Tensor, mask: Tensor, length: int, pad: int = 0) -> Tensor:
    """Concatenates segments, dropping their padding. Shapes depend on no data.

    Args:
        values: S segments of at most W elements, bytes or token ids, ``[*B, S, W]``.
        mask: True at the elements to keep, ``[*B, S, W]``.
        length: size of the last dimension of the result; what goes beyond it is cut off.
        pad: value after the last element. Default: 0.

    Returns:
        ``[*B, length]``, of the type of ``values``.

    Examples:
        >>> values = torch.tensor([[5, 6, 0], [7, 0, 0], [8, 9, 0]])
        >>> join_segments(values, values != 0, length=6)
        tensor([5, 6, 7, 8, 9, 0])
    """
    values, mask = values.flatten(-2), mask.flatten(-2)
    # The rest go to a spare last place, which is cut off.
    place = mask.cumsum(-1).sub_(1).masked_fill_(~mask, length).clamp_(max=length)
    joined = values.new_full((*values.shape[:-1], length + 1), pad)
    return joined.scatter_(-1, place, values)[..., :length]
