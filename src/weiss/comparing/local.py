"""The executor for one machine: this process, or several worker processes.

A worker process (`weiss.comparing.worker`) gets units through a pipe and answers with outcomes. It
ends with this process, however this one ends. One that dies is replaced, and its unit is begun
again, from its last saved state, `TRIES` times in all.
"""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from weiss._base.parent import command_with_parent
from weiss._base.processes import share_of_cores
from weiss.comparing.executor import TRIES, Executor, Outcome, attempt, failure
from weiss.comparing.units import Unit


class InThisProcess(Executor):
    """One unit at a time, in this process."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._next: Unit | None = None

    def __exit__(self, *_: object) -> None:
        """Nothing runs outside `wait`."""

    @property
    def room(self) -> int:
        """1, or 0 after `start`."""
        return int(self._next is None)

    def start(self, unit: Unit) -> None:
        """Keep it for `wait`."""
        self._next = unit

    def wait(self, seconds: float) -> list[Outcome]:
        """Do the unit."""
        if self._next is None:
            time.sleep(seconds)
            return []
        unit, self._next = self._next, None
        return [attempt(unit, self._out)]


@dataclass
class _Worker:
    """A worker process, and its unit; ``is_up`` after its first message, when it has started."""

    number: int
    process: "subprocess.Popen[bytes]"
    pipe: "Connection[Any, Any]"
    unit: Unit | None = None
    is_up: bool = False


class WorkerProcesses(Executor):
    """Worker processes that share the cores, and the GPUs in turn if there are several.

    Args:
        number: how many at most; each starts when there is a unit for it.
        out: the folder of the comparison.
        device: of the recipe; "cuda:1" names one GPU, so that workers do not take turns.
        say: called with a line when a worker dies.
    """

    def __init__(self, number: int, out: Path, *, device: str, say: Callable[[str], None]) -> None:
        self._number, self._out, self._say = number, out, say
        self._workers: dict[int, _Worker] = {}
        self._begun: Counter[str] = Counter()  # how often each unit was begun
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        count = torch.cuda.device_count()
        takes_turns = count > 1 and ":" not in device
        self._gpus = (visible or [str(index) for index in range(count)]) if takes_turns else []

    def __exit__(self, *_: object) -> None:
        """Stop all workers; a training saves its state first."""
        for worker in self._workers.values():
            worker.pipe.close()  # ends one that waits for a unit
            if worker.unit is not None:
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.wait()

    @property
    def room(self) -> int:
        """Workers without a unit, and those that have not started yet."""
        return self._number - sum(worker.unit is not None for worker in self._workers.values())

    def start(self, unit: Unit) -> None:
        """Send it to a worker that has none; start one if there is none."""
        worker = next((each for each in self._workers.values() if each.unit is None), None)
        if worker is None:
            free = next(n for n in range(self._number) if n not in self._workers)
            worker = self._workers[free] = self._started(free)
        worker.unit = unit
        self._begun[unit.key] += 1
        with suppress(OSError):  # it has died, which `wait` notices
            worker.pipe.send(unit)

    def wait(self, seconds: float) -> list[Outcome]:
        """Collect what workers report, and replace those that have died."""
        by_pipe = {worker.pipe: worker for worker in self._workers.values()}
        if not by_pipe:
            time.sleep(seconds)
        outcomes = []
        for pipe in wait(list(by_pipe), seconds):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                said = worker.pipe.recv()
            except (EOFError, OSError):
                outcomes += self._after_its_death(worker)
                continue
            if worker.is_up:
                worker.unit = None
                outcomes.append(said)
            worker.is_up = True
        return outcomes

    def _started(self, number: int) -> _Worker:
        ours, theirs = Pipe()
        environment = {**os.environ, **share_of_cores(self._number)}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]
        process = subprocess.Popen(
            command_with_parent("weiss.comparing.worker", str(theirs.fileno()), str(self._out)),
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others
        )
        theirs.close()
        return _Worker(number, process, ours)

    def _after_its_death(self, worker: _Worker) -> list[Outcome]:
        """Remove a worker, and begin its unit again or give it up."""
        del self._workers[worker.number]
        worker.pipe.close()
        code = worker.process.wait()
        how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
        if not worker.is_up:
            raise RuntimeError(
                f"a worker process must start; worker {worker.number} {how}. Read its message "
                "above, and start the command again: finished units are kept."
            )
        unit = worker.unit
        if unit is None:
            return []
        if self._begun[unit.key] < TRIES:
            self._say(f"worker {worker.number} {how}; {unit.key} is begun again by another")
            self.start(unit)
            return []
        why = f"its worker {how}, as {TRIES - 1} others before"
        return [failure(unit.key, self._out, why)]
