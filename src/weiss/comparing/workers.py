"""Working through a plan: one worker, several beside each other, or several machines.

A worker asks the plan what can be done, claims the first unit that nobody holds, does it, enters
the result, and asks again. Workers meet in the ledger only.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from weiss._base.interrupts import StoppedError, StopRequest
from weiss._base.processes import share_of_cores
from weiss.comparing.folder import grown_plan, join, write_summary
from weiss.comparing.ledger import Claim, Ledger, StorageError
from weiss.comparing.liveness import BEAT_SECONDS, Heartbeat
from weiss.comparing.plan import Plan, check_count
from weiss.comparing.units import Result, Unit, note_failure, results_on_disk
from weiss.data import stores_kept
from weiss.runs.folder import BusyFolderError

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
BUSY_SECONDS = 60.0
STORAGE_SECONDS, STORAGE_WAIT = 900.0, 2.0
"""How long a storage that does not answer is waited for, and the time between two questions."""
Said = Callable[[str], None]
Answer = TypeVar("Answer")


def work(
    plan: Plan,
    out: Path,
    ledger: Ledger,
    *,
    say: Said = lambda _: None,
    is_wanted: Callable[[], bool] = lambda: True,
    among_others: bool = False,
) -> None:
    """Do what can be done until all is done, or failed; images are decoded for all of it together.

    Args:
        plan: the comparison.
        out: its folder.
        ledger: where workers meet. One that does not answer for a while is waited for.
        say: takes a line for people now and then.
        is_wanted: asked before each unit; False ends the work as Ctrl-C does.
        among_others: other processes on this machine do the same work; one of them decodes images
            for all (see `weiss.data.stores_kept`).

    Raises:
        StoppedError: Ctrl-C or SIGTERM; the unit in hand has saved its state and is given back.
    """
    wait = FIRST_WAIT
    busy: dict[str, float] = {}  # units that others turned out to be at: until when to leave them
    with StopRequest() as stop, stores_kept(shared=among_others):
        storage = _Patience(ledger, stop, say)
        while True:
            if stop.wanted or not is_wanted():
                raise StoppedError("before the next unit began.")
            done = storage(ledger.results)
            ready = plan.ready(done)
            keys = [unit.key for unit in ready]
            now = time.monotonic()
            claim = storage(partial(ledger.claim, [k for k in keys if busy.get(k, now) <= now]))
            if claim is not None:
                unit = next(unit for unit in ready if unit.key == claim.unit)
                if _do(unit, claim, out, ledger, storage, plan.num_units):
                    wait = FIRST_WAIT
                else:
                    busy[unit.key] = time.monotonic() + BUSY_SECONDS
                continue
            if storage(partial(_is_over, ledger, keys, len(done))):
                return
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)


def _is_over(ledger: Ledger, keys: Sequence[str], num_done: int) -> bool:
    """Say whether nothing can come any more: what is ready has failed, and no more was done."""
    return ledger.all_failed(keys) and len(ledger.results()) == num_done


class _Patience:
    """Asks a storage again when it did not answer: weeks of work should survive its restart.

    Args:
        ledger: in the storage.
        stop: ends the waiting.
        say: takes a line for people.
    """

    def __init__(self, ledger: Ledger, stop: StopRequest, say: Said) -> None:
        self.ledger, self.stop, self.say = ledger, stop, say

    def __call__(self, ask: Callable[[], Answer]) -> Answer:
        end = time.monotonic() + STORAGE_SECONDS
        waited = False
        while True:
            try:
                return ask()
            except StorageError as error:
                if self.stop.wanted or time.monotonic() > end:
                    raise
                if not waited:
                    self.say(f"waiting for the storage: {error}")
            waited = True
            self._wait(end)

    def _wait(self, end: float) -> None:
        """Wait until the storage answers, but not beyond an end."""
        while not self.stop.wanted and time.monotonic() <= end:
            time.sleep(STORAGE_WAIT)
            with suppress(StorageError):
                self.ledger.registered()
                # After a silence everybody looks dead: let those who live say so first.
                time.sleep(2 * BEAT_SECONDS)
                return


def _do(
    unit: Unit, claim: Claim, out: Path, ledger: Ledger, storage: _Patience, num_units: int
) -> bool:
    """Do a unit; return False if somebody else turned out to be at it."""
    begun = time.monotonic()
    # From the thread of the pulse to this one, which is in the midst of training.
    pulse = Heartbeat(lambda: ledger.beat(claim), lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with pulse:
            note_failure(out / unit.key, None)
            result = unit.work(out / unit.key)
    except StoppedError:
        if pulse.is_lost:
            storage.say(f"{unit.key}: taken over by another worker")
            return False
        storage(lambda: ledger.give_back(claim))
        raise StoppedError(f"{unit.key} has saved its state and is given back.") from None
    except BusyFolderError:
        # Its worker was thought dead, but still has the folder.
        storage.say(f"{unit.key}: another worker, silent for long, still holds its folder")
        storage(lambda: ledger.give_back(claim))
        return False
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        note_failure(out / unit.key, why)
        storage(lambda: ledger.fail(claim, why))
        storage.say(f"{unit.key}: failed: {error}")
        return True
    except BaseException:
        with suppress(OSError):
            ledger.give_back(claim)
        raise
    finally:
        if pulse.is_lost:
            storage.stop.wanted = False  # that was the pulse, not somebody who wants an end
    if storage(lambda: ledger.finish(claim, result)):
        number = f"[{len(storage(ledger.results))}/{num_units}]"
        storage.say(f"{number} {unit.key}{_in_words(result)} ({time.monotonic() - begun:.1f} s)")
    return True


def _in_words(result: Result) -> str:
    if "failed" in result:
        return f": scores 0, for it failed: {result['failed']}"
    if "settings" in result:
        return ": " + ", ".join(f"{name} {value:.4g}" for name, value in result["settings"].items())
    scores = result.get("concatenated", result.get("test", result))
    if isinstance(scores, dict) and "map_at_r" in scores:
        return f": MAP@R {100 * scores['map_at_r']:.2f}"
    return ""


def carry_out(
    plan: Plan,
    out: str | Path,
    *,
    workers: int = 1,
    storage: str | None = None,
    study: str | None = None,
    command: str = "",
    quiet: bool = False,
) -> dict[str, Any]:
    """Begin a comparison, or go on with it, and bring it to its end.

    Args:
        plan: the comparison.
        out: its folder. One that holds the same comparison is gone on with: nothing that is done
            is done again.
        workers: how many processes share the work; with 1 it is done in this one.
        storage: where workers find each other: a file, ``sqlite:///FILE`` or
            ``postgresql://USER:PASSWORD@HOST/DATABASE``; by default a file in the folder. The same
            command on another machine, with the same folder and storage, joins in.
        study: the name of the comparison in the storage; by default the folder's.
        command: what was typed, to be kept for the record.
        quiet: print nothing.

    Returns:
        The summary, as ``summary.json`` holds it; see `weiss.comparing.folder.summarise`.
    """
    out = Path(out)
    check_count("--workers", workers)
    plan.check()
    ledger, description = join(plan, out, storage=storage, study=study, command=command)
    plan = type(plan)(plan.recipe, description["options"])
    ledger.forgive()
    if ledger.is_quiet():
        # What the ledger knows and the folder has lost is done again.
        for key in set(ledger.results()) - set(results_on_disk(plan.ready, out)):
            ledger.forget(key)

    def say(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    try:
        if workers == 1:
            work(plan, out, ledger, say=say)
        else:
            orders = {**description, "out": str(out), "storage": storage, "study": study}
            _in_processes({**orders, "quiet": quiet}, workers, say)
    except StoppedError as stopped:
        write_summary(grown_plan(plan, ledger), out)
        raise StoppedError(
            "what is done stays done, and what had begun has saved its state. Go on by the same "
            "command."
        ) from stopped
    return write_summary(grown_plan(plan, ledger), out)


def _in_processes(orders: dict[str, Any], workers: int, say: Said) -> None:
    """Start workers and wait for them; one that dies leaves its work to the others."""
    command = [sys.executable, "-m", "weiss", "join-in"]
    processes: list[subprocess.Popen[str]] = []
    # With a number in its name a device is meant, and not one of those that are visible then.
    takes_turns = torch.cuda.device_count() > 1 and ":" not in orders["recipe"]["train"]["device"]
    with StopRequest() as stop:
        try:
            for number in range(workers):
                environment = {**os.environ, **share_of_cores(workers)}
                if takes_turns:
                    environment["CUDA_VISIBLE_DEVICES"] = _device(number)
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                processes.append(process)
                assert process.stdin is not None
                # Not on the command line, where everybody could read the storage's password.
                process.stdin.write(json.dumps(orders))
                process.stdin.close()
            while not stop.wanted and any(process.poll() is None for process in processes):
                time.sleep(0.2)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            for process in processes:
                process.wait()
    if stop.wanted:
        raise StoppedError("told to stop.")
    codes = [process.returncode for process in processes]
    for number, code in enumerate(codes):
        if code != 0:
            how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
            say(f"worker {number} {how}; its unit went to the others, if any were left")
    if 0 not in codes:
        raise RuntimeError(
            f"at least one of {workers} workers must come to the end; none did (codes "
            f"{', '.join(map(str, codes))}). See what they said above, and start again: what is "
            "done stays done."
        )


def _device(number: int) -> str:
    """Return the GPU of a worker: they take turns among those that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name]
    names = names or [str(index) for index in range(torch.cuda.device_count())]
    return names[number % len(names)]
