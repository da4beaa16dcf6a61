"""Whether a worker lives: a process that others can look up, and a pulse where they cannot."""

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

BEAT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""Who has not been heard of for so long is taken for dead."""


@dataclass(frozen=True)
class Worker:
    """A process, as others can tell whether it lives.

    Attributes:
        place: the machine, and the part of it, in which its number means this process.
        process: its number.
        since: when it began, for numbers are used again; in ticks since the machine did, where the
            system tells, for its clock may be set.
    """

    place: str
    process: int
    since: float

    @classmethod
    def this(cls) -> "Worker":
        """Return this process."""
        return cls(_place(), os.getpid(), _began(os.getpid()))

    def is_gone(self) -> bool:
        """Say whether it has certainly ended: only where its number can be looked up."""
        if self.place != _place():
            return False
        try:
            is_same = abs(_began(self.process) - self.since) < 1
            return not is_same or _is_dead(psutil.Process(self.process))
        except psutil.NoSuchProcess:
            return True

    def text(self) -> str:
        """Return it as a row keeps it."""
        return json.dumps([self.place, self.process, self.since])


def _is_dead(process: psutil.Process) -> bool:
    """Say whether nothing of a process runs any more, though nobody has waited for it yet.

    The first thread of a killed process may be done while others are still being ended, for a tenth
    of a second where memory is large; until then its locks are held.
    """
    return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)


def _place() -> str:
    """Name the machine, this start of it, and the namespace of its process numbers.

    Machines that were copied share a name, and containers of one machine all but the namespace.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _began(process: int) -> float:
    """Return when a process began, or raise psutil.NoSuchProcess."""
    try:
        # The name, in brackets, may hold anything; what follows it are numbers.
        numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return float(numbers[19])
    except (FileNotFoundError, ProcessLookupError) as error:
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(process) from error
        return float(psutil.Process(process).create_time())  # not Linux


class Heartbeat:
    """Says every few seconds that a worker lives, while it works on a unit.

    Args:
        tell: says so where others see it; returns whether the unit is still in these hands.
        lost: called once, from another thread, when the unit turns out to be in other hands.
    """

    def __init__(self, tell: Callable[[], bool], lost: Callable[[], None]) -> None:
        self._tell, self._lost = tell, lost
        self.is_lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "Heartbeat":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                holds = self._tell()
            except OSError:
                continue  # a database that cannot be reached for a moment; silence lasts longer
            if not holds and not self._over.is_set():
                self.is_lost = True
                self._lost()
                return
