"""How much is done and how long the rest takes: a bar on a terminal, and in words."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

T = TypeVar("T")


def duration(seconds: float) -> str:
    """Return a time, as short as an estimate deserves.

    Example:
        >>> [duration(seconds) for seconds in (7.62, 42.3, 750, 12_000, 200_000)]
        ['8 s', '42 s', '12 min', '3 h 20 min', '2 d 7 h']
    """
    seconds = max(seconds, 0.0)
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


class Remaining:
    """Estimates how long the rest of many pieces of work takes, by those done since its beginning.

    Args:
        total: how many pieces there are.
        done: how many were done before.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self._before, self._begun = total, done, time.monotonic()

    def in_words(self, done: int) -> str:
        """Return ``", about 12 min left"``; empty before the first piece and after the last."""
        since = done - self._before
        if since < 1 or done >= self.total:
            return ""
        each = (time.monotonic() - self._begun) / since
        return f", about {duration(each * (self.total - done))} left"


class Bar(AbstractContextManager["Bar"]):
    """A bar on the terminal: what is done, how fast, how long it will still take.

    It is not shown if standard error is no terminal.

    Args:
        total: the sum of the sizes of all steps.
        what: the words before the bar.
        unit: what is counted; with one, the bar shows how many a second.
        done: what was done before, after a restart.
        delay: seconds until it appears.
    """

    def __init__(
        self, total: int, what: str, *, unit: str = "", done: int = 0, delay: float = 2.0
    ) -> None:
        self.total, self.what, self.unit = total, what, unit
        self._begun, self._delay = time.monotonic(), delay
        self._before = self._done = done
        self._end: float | None = None
        self._bar: Any = None
        self._task: Any = None

    def __exit__(self, *_: object) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self, worth: int, what: str | None = None) -> None:
        """Count a step, and perhaps change the words."""
        self._done += worth
        self.what = self.what if what is None else what
        elapsed = time.monotonic() - self._begun
        if self._bar is None and sys.stderr.isatty() and elapsed > self._delay:
            self._show()
        if self._bar is not None:
            speed = (self._done - self._before) / max(elapsed, 1e-9)
            shown = f"{speed:,.0f} {self.unit}/s" if self.unit else ""
            left = self._left(elapsed)
            self._bar.update(
                self._task, completed=self._done, description=self.what, speed=shown, left=left
            )

    def expect(self, seconds: float) -> None:
        """Show that this much time remains, and count down from it."""
        self._end = time.monotonic() + seconds

    def say(self, line: str) -> None:
        """Print a line to standard output, above the bar if there is one."""
        if self._bar is not None and sys.stdout.isatty():
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def _left(self, elapsed: float) -> str:
        if self._end is not None:
            return f"{duration(self._end - time.monotonic())} left"
        rest = (self.total - self._done) / max(self._done - self._before, 1)
        return f"{duration(elapsed * rest)} left"

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
            # Otherwise rich redirects what is printed to a file or a pipe to the terminal.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._bar.start()
        self._task = self._bar.add_task(self.what, total=self.total, speed="", left="")


def track(
    steps: Iterable[tuple[int, T]], total: int, what: str, *, delay: float = 2.0
) -> Iterator[T]:
    """Yield the items of `steps`, pairs of its worth and an item, and show a `Bar`."""
    with Bar(total, what, delay=delay) as bar:
        for worth, item in steps:
            yield item
            bar.advance(worth)
