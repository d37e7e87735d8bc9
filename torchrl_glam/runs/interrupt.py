"""Ending a run between two of its rounds, so that what it has computed can be saved whole."""

import os
import signal
from types import FrameType

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has not all of them
_ANSWER = b"\nStopping after this round, with a checkpoint. Once more: stopping at once, without.\n"


class StopSignal:
    """Turns Ctrl-C, SIGTERM and SIGHUP into a flag that a training loop reads where it can stop.

    The first signal is answered on the standard error. A second one interrupts at once, except
    SIGHUP: a terminal that closes may send several. Where SIGHUP is ignored, as under ``nohup``, it
    stays ignored. The earlier handlers are put back at the end.

    Examples:
        >>> with StopSignal() as stop:
        ...     stop.requested
        False
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, object] = {}

    def __enter__(self) -> "StopSignal":
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
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream)
