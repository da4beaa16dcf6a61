"""Ctrl-C and SIGTERM as a request to stop that a loop checks between its steps."""

import signal
from types import FrameType
from typing import Any


class StoppedError(RuntimeError):
    """The run was asked to stop; its state is saved."""

    exit_code = 130
    """The exit code of an interrupted program, as shells use it."""


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a flag, ``wanted``, that a loop checks.

    The second signal raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Install the handlers, which is possible in the main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._request)
            except ValueError:
                break
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers from before."""
        for number, handler in self._before.items():
            # None: it was not set from Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
