"""Who does the units of a plan: the contract of an executor, and what every worker does.

    start(unit) -> a worker: `attempt` in the unit's folder -> wait() -> Outcome

A worker is any process that sees the folder of the comparison. It holds a lock in the folder of its
unit, writes the result there, and only then reports it. So the folders are the truth: whoever dies
at any moment loses only what is not saved yet, and a unit that two commands want is done by one.
"""

import time
from abc import abstractmethod
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from weiss._base.files import alone
from weiss._base.interrupts import StoppedError
from weiss.comparing.units import Result, Unit, lost_device, note_failure
from weiss.runs.folder import BusyFolderError

LOCK = "unit"
TRIES = 4
"""How often a unit is begun when its worker dies each time; then it has failed."""


@dataclass(frozen=True)
class Outcome:
    """What became of a unit that was started: a result, a failure, or neither, if it is held.

    Attributes:
        key: of the unit.
        result: what it found.
        failed: why it has no result.
        is_held: another command is working on it.
        seconds: how long it took.
    """

    key: str
    result: Result | None = None
    failed: str | None = None
    is_held: bool = False
    seconds: float = 0.0


class Executor(AbstractContextManager["Executor"]):
    """Does units somewhere. On exit it stops those that run, which save their state."""

    @property
    @abstractmethod
    def room(self) -> int:
        """How many more units it takes now; not below 1 if it does nothing at the moment."""

    @abstractmethod
    def start(self, unit: Unit) -> None:
        """Do a unit; `wait` returns its outcome. If its worker dies, another one continues it."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Outcome]:
        """Wait for outcomes, about so long if there are none."""


def attempt(unit: Unit, out: Path) -> Outcome:
    """Do a unit in its folder below ``out``, unless another command is working on it.

    What it raises is not the unit's fault but that of the process or the machine: no memory, a disk
    that fails, a lost device, SIGTERM. Another process may try again.
    """
    folder, started = out / unit.key, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(folder / LOCK, wait=False))
        except BlockingIOError:
            return Outcome(unit.key, is_held=True)
        try:
            note_failure(folder, None)
            result = unit.work(folder)
        except BusyFolderError:  # another program trains there
            return Outcome(unit.key, is_held=True)
        except StoppedError:
            raise
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            if lost_device(error):
                raise
            return failure(unit.key, out, f"{type(error).__name__}: {error}")
        return Outcome(unit.key, result, seconds=time.monotonic() - started)


def failure(key: str, out: Path, why: str) -> Outcome:
    """Write into a unit's folder why it has no result, and return that."""
    note_failure(out / key, why)
    return Outcome(key, failed=why)


def is_held(key: str, out: Path) -> bool:
    """Return whether a process holds the lock of a unit."""
    try:
        with alone(out / key / LOCK, wait=False):
            return False
    except BlockingIOError:
        return True
