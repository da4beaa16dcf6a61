"""Ctrl-C and SIGTERM as a request that a loop can grant when it is ready."""

import signal
from types import FrameType, TracebackType
from typing import Any


class StoppedError(RuntimeError):
    """Somebody asked the run to stop; its state is saved."""

    exit_code = 130
    """What a program ends with that was told to stop, by the shell's custom."""


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a wish that the loop can grant when it is ready.

    The second Ctrl-C is not waited for.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Listen, where that is possible: signals reach the main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._heard)
            except ValueError:
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave signals to those who had them before."""
        for number, handler in self._before.items():
            # None: it was not set from Python, and cannot be given back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
