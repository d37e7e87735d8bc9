"""An average of the weights over the updates: better and steadier than the last weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WeightAverage(AveragedModel):
    """Exponential average of the weights in training, to evaluate and export instead of them.

    Steps of a constant size leave weights jittering about what they have learned. This is torch's
    :class:`~torch.optim.swa_utils.AveragedModel` on the parameters that a loss holds, so frozen
    ones have no copy. Losses, targets and the collecting policy keep the weights themselves.

    Args:
        modules: hold the parameters, such as ``loss.trunk_params``.
        decay: share of the average that an update keeps, in ``[0, 1)``; after n updates at most
            ``(1 + n) / (10 + n)``, so that the first weights are soon forgotten. With 0 the average
            is the weights themselves, and nothing is copied.

    Raises:
        ValueError: if ``decay`` is out of range.

    Examples:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage([layer], decay=0.9)
        >>> for value in (1.0, 3.0):
        ...     _ = layer.weight.data.fill_(value)
        ...     average.update()
        >>> with average.applied():
        ...     print(f"{layer.weight.item():.3f}")
        2.636
    """

    def __init__(self, modules: Sequence[nn.Module], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(
                f"decay ({decay}) must be in [0, 1): the share of the average that an update keeps"
            )
        live = nn.ModuleList(modules if decay else ())
        super().__init__(live, multi_avg_fn=self._average)
        self.decay = decay
        self.__dict__["live"] = live  # not a submodule: it is saved with the loss

    def update(self) -> None:
        """Takes the weights of now into the average."""
        if self.decay:
            self.update_parameters(self.live)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The average in the place of the weights, which return at the end, after errors too."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _average(self, averages: list[Tensor], live: list[Tensor], updates: Tensor) -> None:
        count = updates.item()
        decay = min(self.decay, (1 + count) / (10 + count))
        get_ema_multi_avg_fn(decay)(averages, live, updates)

    @torch.no_grad()
    def _exchange(self) -> None:
        for average, live in zip(self.parameters(), self.live.parameters(), strict=True):
            kept = average.clone()
            average.copy_(live)
            live.copy_(kept)
