"""Updates that go on where a device's memory ends: once more, in passes of half the size."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase

from torchrl_glam.models import Trunk, split_by_tokens
from torchrl_glam.objectives import GatheringOptimizer

logger = logging.getLogger(__name__)


class HalvingPasses:
    """Makes updates in passes, and halves these, once in a run, when memory runs out.

    Where memory runs out, the gradients gathered so far are forgotten, and the update is made again
    with ``max_tokens`` halved, with a warning. The gradient of the whole batch is the same. Any
    other error is told to the other processes of the run.

    Args:
        trunk, optimizer: read the batches, and gather their gradients.
        max_tokens: most tokens of a pass, see :func:`~torchrl_glam.models.split_by_tokens`; None:
            everything in one. The attribute of that name is what holds now.
    """

    def __init__(self, trunk: Trunk, optimizer: GatheringOptimizer, max_tokens: int | None) -> None:
        self.max_tokens = max_tokens
        self._trunk, self._optimizer, self._halved = trunk, optimizer, False

    def update(
        self,
        loss: Callable[[TensorDictBase], TensorDictBase],
        batch: TensorDictBase,
        size: int,
        **options: Any,
    ) -> tuple[TensorDictBase, dict[str, float]]:
        """One step of the optimizer; see :meth:`torchrl_glam.runs.run.Run.step`.

        Raises:
            torch.OutOfMemoryError: if memory runs out and passes were halved before, or are of one
                token; or in the step itself, of which a part may be done.
        """
        while True:
            try:
                metrics = []
                for part in split_by_tokens(batch, self._trunk, self.max_tokens):
                    terms, share = loss(part), len(part) / size
                    self._optimizer.backward(terms, share, **options)
                    metrics.append(terms.detach() * share)
                break
            except torch.OutOfMemoryError as error:
                last = self._halve(batch, error)
                self._optimizer.discard(last)
                if last is not None:
                    raise last from error
            except Exception as error:
                self._optimizer.discard(error)
                raise
            terms = metrics = None
            # Not in the handler, where the error still holds what the update had made.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return torch.stack(metrics).sum(0), self._optimizer.step()

    def _halve(self, batch: TensorDictBase, error: Exception) -> Exception | None:
        """Halves the passes, or returns the error that ends the run."""
        tokens, reason = self.max_tokens, str(error).partition("\n")[0]
        if tokens is None:  # as they were, with padding
            prompts, nodes = self._trunk.count_tokens(batch)
            tokens = len(batch) * int(prompts.max() + nodes.max())
        if self._halved or tokens < 2:
            again = " again, after passes were halved once" if self._halved else ""
            return torch.OutOfMemoryError(
                f"memory ran out in an update{again} (max_tokens_per_pass: {self.max_tokens}; "
                f"{reason}): set max_tokens_per_pass={max(1, tokens // 2)} or less, "
                "gradient_checkpointing=true, load_in_4bit=true with lora_rank, or a smaller model"
            )
        self._halved, self.max_tokens = True, tokens // 2
        logger.warning(
            "Memory ran out in an update (%s). It is done again in passes of half the size, as all "
            "that follow: max_tokens_per_pass=%s",
            reason,
            self.max_tokens,
        )
