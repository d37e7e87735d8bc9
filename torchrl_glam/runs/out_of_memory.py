"""Updates that go on where a device's memory ends: once more, in passes of half the size."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from tensordict import TensorDictBase

from torchrl_glam.models import Trunk, split_by_tokens
from torchrl_glam.objectives import GatheringOptimizer, LostProcessError, UpdateFailedError

Given = ParamSpec("Given")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class HalvingPasses:
    """Splits batches into passes, and halves these, once in a run, when memory runs out.

    It decorates a function that makes an update and changes nothing but gradients before it has all
    of them. Where memory runs out, these are forgotten, and the function is called again with
    ``max_tokens`` halved, with a warning. The gradient of the whole batch is the same. Any other
    error is told to the other processes of the run.

    Args:
        trunk: the trunk that reads the batches.
        optimizer: gathers the gradients.
        max_tokens: most tokens of a pass, see :func:`~torchrl_glam.models.split_by_tokens`; None:
            everything in one. The attribute of that name is what holds now.
    """

    def __init__(self, trunk: Trunk, optimizer: GatheringOptimizer, max_tokens: int | None) -> None:
        self.max_tokens = max_tokens
        self._trunk, self._optimizer = trunk, optimizer
        self._halved = False
        self._batch: TensorDictBase | None = None

    def split(self, batch: TensorDictBase) -> list[TensorDictBase]:
        """The parts of a batch; see :func:`~torchrl_glam.models.split_by_tokens`."""
        self._batch = batch
        return split_by_tokens(batch, self._trunk, self.max_tokens)

    def __call__(self, update: Callable[Given, Result]) -> Callable[Given, Result]:
        """The update, tried again once.

        Raises:
            torch.OutOfMemoryError: on a call, if memory runs out and passes were halved before, or
                are of one token.
        """

        @functools.wraps(update)
        def halving(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            self._batch = None
            while True:
                try:
                    return update(*args, **kwargs)
                except (UpdateFailedError, LostProcessError):
                    raise
                except Exception as error:
                    self._optimizer.discard(error)
                    if not isinstance(error, torch.OutOfMemoryError):
                        raise
                    self._halve(error)
                # Not in the handler, where the error still holds what the update had made.
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

        return halving

    def _halve(self, error: torch.OutOfMemoryError) -> None:
        tokens, reason = self.max_tokens or 0, str(error).partition("\n")[0]
        if self.max_tokens is None and self._batch is not None:  # as they were, with padding
            prompts, nodes = self._trunk.count_tokens(self._batch)
            tokens = len(self._batch) * int(prompts.max() + nodes.max())
        if self._halved or tokens < 2:
            again = " again, after passes were halved once" if self._halved else ""
            raise torch.OutOfMemoryError(
                f"memory ran out in an update{again} (max_tokens_per_pass: {self.max_tokens}; "
                f"{reason}): set max_tokens_per_pass={max(1, tokens // 2)} or less, "
                "gradient_checkpointing=true, load_in_4bit=true with lora_rank, or a smaller model"
            ) from error
        self._halved, self.max_tokens = True, tokens // 2
        logger.warning(
            "Memory ran out in an update (%s). It is done again in passes of half the size, as all "
            "that follow: max_tokens_per_pass=%s",
            reason,
            self.max_tokens,
        )
