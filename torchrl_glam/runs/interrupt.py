"""Ending a run between two of its rounds, so that what it has computed can be saved whole."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

Batch = TypeVar("Batch")

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has not all of them
_ANSWER = b"\nStopping after this round, with a checkpoint. Once more: stopping at once, without.\n"


class StopSignal:
    """Turns Ctrl-C, SIGTERM and SIGHUP into a flag that a training loop reads where it can stop.

    The first signal is answered at once, on the standard error. A second one interrupts at once,
    but for SIGHUP: a terminal that closes may send several. Where SIGHUP is ignored, as ``nohup``
    has it, it stays so. The earlier handlers are put back at the end.

    Examples:
        >>> with StopSignal() as stop:
        ...     stop.requested
        False
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, object] = {}

    def __enter__(self) -> StopSignal:
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        self.requested = True
        for stream in (2, 1):
            try:
                # Not by print: this may run in the middle of one.
                os.write(stream, _ANSWER if stream == 2 else b"")
            except OSError:  # the terminal is gone, and must not end the run before it has saved
                _silence(stream)


def _silence(stream: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


class Rescue:
    """Saves a checkpoint when a training loop ends by an error, if the run's state is whole then.

    It is not while steps are collected: those of an unfinished batch would be missing from the
    replay buffer after a resume. Nor is it worth saving after a ``FloatingPointError``, from which
    no run goes on. Before the first batch there is nothing to save.

    Args:
        save: saves a checkpoint and returns its folder.
        errors: those after which it can be saved. Default: all of them.

    Examples:
        >>> def save():
        ...     print("saved")
        >>> with Rescue(save) as rescue:
        ...     for batch in rescue.batches([1, 2]):
        ...         rescue.whole = True  # once it is stored
        ...         raise RuntimeError("out of memory")
        Traceback (most recent call last):
            ...
        RuntimeError: out of memory
    """

    def __init__(self, save: Callable[[], Path], errors: type[Exception] = Exception) -> None:
        self._save, self._errors = save, errors
        self.whole = False

    def __enter__(self) -> Rescue:
        return self

    def batches(self, collector: Iterable[Batch]) -> Iterator[Batch]:
        """Yields what a collector gives; ``whole`` is False until it is set after storing it."""
        batches = iter(collector)
        while True:
            self.whole = False
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def save(self) -> Path:
        """Saves a checkpoint, and is not tried again if that fails."""
        self.whole = False
        path = self._save()
        self.whole = True
        return path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.whole or not isinstance(error, self._errors):
            return
        if isinstance(error, FloatingPointError):
            return
        try:
            print(f"The run ends by an error; saved as {self.save()}", file=sys.stderr)
        except Exception as second:
            print(f"The run ends by an error, and could not be saved: {second}", file=sys.stderr)
