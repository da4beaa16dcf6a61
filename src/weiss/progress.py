"""A progress bar that appears when something takes long, and never where nobody looks."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(
    steps: Iterable[tuple[int, T]], total: int, what: str, *, patience: float = 2.0
) -> Iterator[T]:
    """Pass items on, and show a bar on the terminal once they have taken longer than `patience`.

    Args:
        steps: pairs of how much an item is worth and the item.
        total: what all items are worth together.
        what: the words before the bar.
        patience: seconds until the bar appears; quiet if standard error is no terminal.

    Yields:
        The items.
    """
    start, done, bar, task = time.monotonic(), 0, None, None
    try:
        for worth, item in steps:
            yield item
            done += worth
            if bar is None and sys.stderr.isatty() and time.monotonic() - start > patience:
                from rich.console import Console
                from rich.progress import Progress

                bar = Progress(console=Console(stderr=True), transient=True)
                bar.start()
                task = bar.add_task(what, total=total)
            if bar is not None and task is not None:
                bar.update(task, completed=done)
    finally:
        if bar is not None:
            bar.stop()
