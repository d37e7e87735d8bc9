"""Stopping a run between two steps, so that what it has computed can be saved whole."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopSignal:
    """Turns Ctrl-C and SIGTERM into a flag that a training loop reads where it can stop.

    A second signal interrupts at once. The earlier handlers are put back at the end.

    Examples:
        >>> with StopSignal() as stop:
        ...     stop.requested
        False
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
