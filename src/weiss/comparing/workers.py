"""Working through a plan: one worker, several processes, or several machines.

A worker asks the plan which units are ready, claims the first one that no other worker holds, does
it, stores the result, and asks again. Workers share nothing but the ledger and the folder.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from weiss._base.interrupts import StoppedError, StopRequest
from weiss._base.parent import command_with_parent
from weiss._base.processes import share_of_cores
from weiss._base.progress import Remaining
from weiss.comparing.folder import grown_plan, join
from weiss.comparing.ledger import BEAT_SECONDS, Claim, Heartbeat, Ledger, StorageError
from weiss.comparing.plan import Plan, check_count
from weiss.comparing.summary import write_summary
from weiss.comparing.units import Result, Unit, note_failure, results_on_disk
from weiss.data import reuse_decoded_images
from weiss.evaluation.metrics import TITLES
from weiss.runs.folder import BusyFolderError

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
BUSY_SECONDS = 60.0
"""How long a unit is left alone when another worker turns out to hold its folder."""
STORAGE_SECONDS, STORAGE_WAIT = 900.0, 2.0
"""How long to wait for a storage that does not answer, and the time between two attempts."""
Say = Callable[[str], None]
Answer = TypeVar("Answer")


def work(
    plan: Plan,
    out: Path,
    ledger: Ledger,
    *,
    say: Say = lambda _: None,
    among_others: bool = False,
) -> None:
    """Do units until every one is done or has failed; images are decoded once for all of them.

    Args:
        plan: the comparison.
        out: its folder.
        ledger: which worker does which unit. If its storage does not answer, the worker waits.
        say: called with each line of progress.
        among_others: other processes on this machine do the same work; one of them decodes images
            for all (see `weiss.data.reuse_decoded_images`).

    Raises:
        StoppedError: Ctrl-C or SIGTERM; the current unit has saved its state.
    """
    wait = FIRST_WAIT
    remaining: Remaining | None = None
    busy: dict[str, float] = {}  # units that other workers hold: when to try them again
    with StopRequest() as stop, reuse_decoded_images(shared=among_others):
        storage = _RetryingStorage(ledger, stop, say)
        while True:
            if stop.wanted:
                raise StoppedError("between two units. Start the command again to continue.")
            done = storage(ledger.results)
            remaining = remaining or Remaining(plan.num_units, len(done))
            ready = plan.ready(done)
            keys = [unit.key for unit in ready]
            now = time.monotonic()
            claim = storage(partial(ledger.claim, [k for k in keys if busy.get(k, now) <= now]))
            if claim is not None:
                unit = next(unit for unit in ready if unit.key == claim.unit)
                if _do(unit, claim, out, ledger, storage, remaining):
                    wait = FIRST_WAIT
                else:
                    busy[unit.key] = time.monotonic() + BUSY_SECONDS
                continue
            if storage(partial(_is_over, ledger, keys, len(done))):
                return
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)


def _is_over(ledger: Ledger, keys: Sequence[str], num_done: int) -> bool:
    """Return whether no unit is left: all ready ones failed, and no result was added meanwhile."""
    return ledger.all_failed(keys) and len(ledger.results()) == num_done


class _RetryingStorage:
    """Repeats a call while the storage does not answer, so that work survives its restart."""

    def __init__(self, ledger: Ledger, stop: StopRequest, say: Say) -> None:
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
        """Wait until the storage answers or the time is over."""
        while not self.stop.wanted and time.monotonic() <= end:
            time.sleep(STORAGE_WAIT)
            with suppress(StorageError):
                self.ledger.registered()
                # After an outage all heartbeats are old: wait for new ones.
                time.sleep(2 * BEAT_SECONDS)
                return


def _do(
    unit: Unit,
    claim: Claim,
    out: Path,
    ledger: Ledger,
    storage: _RetryingStorage,
    remaining: Remaining,
) -> bool:
    """Do a unit; return False if another worker turns out to hold it."""
    started = time.monotonic()
    # The signal stops the training in this thread.
    heartbeat = Heartbeat(lambda: ledger.beat(claim), lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with heartbeat:
            note_failure(out / unit.key, None)
            result = unit.work(out / unit.key)
    except StoppedError:
        if heartbeat.is_lost:
            storage.say(f"{unit.key}: taken over by another worker")
            return False
        storage(lambda: ledger.give_back(claim))
        raise StoppedError(f"{unit.key} saved its state; another worker can continue it.") from None
    except BusyFolderError:
        # Its worker seemed dead, but still holds the lock of the folder.
        storage.say(f"{unit.key}: another worker, silent for a while, still holds its folder")
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
        if heartbeat.is_lost:
            storage.stop.wanted = False  # the signal came from the heartbeat, not from a user
    if storage(lambda: ledger.finish(claim, result)):
        num_done = len(storage(ledger.results))
        took = f"{time.monotonic() - started:.1f} s{remaining.in_words(num_done)}"
        number = f"[{num_done}/{remaining.total}]"
        storage.say(f"{number} {unit.key}{_result_text(result)} ({took})")
    return True


def _result_text(result: Result) -> str:
    """Return the end of a line of progress: the score, the settings or the failure."""
    if "failed" in result:
        return f": failed and scores 0: {result['failed']}"
    if "settings" in result:
        return ": " + ", ".join(f"{name} {value:.4g}" for name, value in result["settings"].items())
    scores: Result = result.get("concatenated") or result.get("test") or result
    score = scores.get("map_at_r")
    return "" if score is None else f": {TITLES['map_at_r']} {100 * score:.2f}"


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
    """Start a comparison, or continue it, until every unit is done or has failed.

    Args:
        plan: the comparison.
        out: its folder. If it holds the same comparison, that one continues: finished units are
            not repeated.
        workers: how many processes share the work; with 1 it is done in this process.
        storage: where workers find each other: a file, ``sqlite:///FILE`` or
            ``postgresql://USER:PASSWORD@HOST/DATABASE``; by default a file in the folder. The same
            command on another machine, with the same folder and storage, joins in.
        study: the name of the comparison in the storage; by default the folder's.
        command: the command line, recorded in the plan.
        quiet: print nothing.

    Returns:
        The summary, as ``summary.json`` holds it; see `weiss.comparing.summary.summarise`.
    """
    out = Path(out)
    check_count("--workers", workers)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # they would share each other's batches
        raise ValueError(
            "a comparison must be started as one process; this one is one of several. Start it "
            "without torchrun, with --workers."
        )
    plan.check()
    ledger, description = join(plan, out, storage=storage, study=study, command=command)
    plan = type(plan)(plan.recipe, description["options"])
    ledger.forgive()
    if ledger.is_quiet():
        # Units whose folders were removed are done again.
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
            "finished units are kept, and interrupted runs have saved their state. Start the same "
            "command again to continue."
        ) from stopped
    return write_summary(grown_plan(plan, ledger), out)


def _in_processes(orders: dict[str, Any], workers: int, say: Say) -> None:
    """Start workers and wait for them; the others take the unit of one that dies."""
    command = command_with_parent("weiss", "join-in")
    processes: list[subprocess.Popen[str]] = []
    # "cuda:1" names one device, so workers do not take turns.
    takes_turns = torch.cuda.device_count() > 1 and ":" not in orders["recipe"]["train"]["device"]
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    visible = visible or [str(index) for index in range(torch.cuda.device_count())]
    with StopRequest() as stop:
        try:
            for number in range(workers):
                environment = {**os.environ, **share_of_cores(workers)}
                if takes_turns:
                    environment["CUDA_VISIBLE_DEVICES"] = visible[number % len(visible)]
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                processes.append(process)
                assert process.stdin is not None
                # Not on the command line, where other users could read the storage's password.
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
            say(f"worker {number} {how}; the other workers, if any, took over its unit")
    if 0 not in codes:
        raise RuntimeError(
            f"at least one of {workers} workers must finish; none did (exit codes "
            f"{', '.join(map(str, codes))}). Read their messages above, and start the command "
            "again: finished units are kept."
        )
