"""A check, when a trunk is made, that it reads the model as the model reads itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_glam.models.trie import build_trie

if TYPE_CHECKING:
    from torchrl_glam.models.trunk import CandidateTrunk


class InexactTrunkError(ValueError):
    """A trunk does not compute what its model computes."""


@torch.no_grad()
def check_exactness(
    trunk: CandidateTrunk, plain_logits: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Compares the logits after two candidates that share a prefix with the plain computation.

    The prompt is padded, so that masks and positions matter. Dropout is off meanwhile.

    Args:
        trunk: the trunk to check.
        plain_logits: from prompt tokens ``[1, T]`` and candidate tokens ``[1, W]`` to the logits
            ``[1, V]`` after the last token, by the model's own forward.

    Raises:
        InexactTrunkError: if they differ by more than rounding, or the model takes no such input.
    """
    base, pad = trunk.base_model, trunk.prompt.pad_id
    embedding = base.get_input_embeddings().weight
    usable = [i for i in range(8) if i != pad][: base.config.vocab_size]
    ids = torch.tensor([usable[i % len(usable)] for i in range(7)], device=embedding.device)
    prompt, candidates = ids[None, :3], ids[[3, 4, 5, 3, 4, 6]].view(1, 2, 3)
    padded = torch.cat([prompt, prompt.new_full((1, 2), pad)], 1)
    mask = torch.arange(5, device=ids.device).unsqueeze(0) < 3
    everything = torch.ones(1, 2, dtype=torch.bool, device=ids.device)
    modes = [(module, module.training) for module in trunk.model.modules()]
    trunk.model.eval()
    try:
        trie = build_trie(candidates, everything, trunk._start_id(), pad, packed=trunk.packed)
        hidden = trunk._read(padded, mask, trie)
        logits = trunk._logits(hidden[0, trie.end[0]]).float()
        expected = torch.cat([plain_logits(prompt, row[None]) for row in candidates[0]]).float()
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError) as error:
        raise InexactTrunkError(
            f"model ({base.__class__.__name__}) cannot be read by {trunk.__class__.__name__}, "
            f"which gives it a mask and positions of its own: {error}"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    error = float((logits - expected).norm() / expected.norm().clamp_min(1e-12))
    exact = embedding.dtype == torch.float32 and not getattr(base, "is_quantized", False)
    if error > (1e-3 if exact else 0.1):
        raise InexactTrunkError(
            f"model ({base.__class__.__name__}) cannot be read by {trunk.__class__.__name__}: "
            f"logits differ from the model's own by {error:.2g} of their norm. It does something "
            "to masks, positions or logits that this trunk does not know; choose another one"
        )
