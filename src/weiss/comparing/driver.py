"""Carrying out a plan: ask it which units are ready, hand them to an executor, and ask again.

The driver keeps no record of its own. Results are in the folders of units, and so are the reasons
of failures; which units failed or run in this command is known to this process alone. A command
that is started again, or a second one at the same time, continues from the folders.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weiss._base.interrupts import StoppedError, StopRequest
from weiss._base.progress import Remaining
from weiss.comparing.executor import Executor, Outcome, is_held
from weiss.comparing.folder import grown_plan, join, read_plan
from weiss.comparing.local import InThisProcess, WorkerProcesses
from weiss.comparing.plan import Plan, check_count
from weiss.comparing.ray_cluster import RayCluster, check_cluster
from weiss.comparing.summary import write_summary
from weiss.comparing.units import Result, results_on_disk
from weiss.data import reuse_decoded_images
from weiss.evaluation.metrics import TITLES
from weiss.runs.experiment import refuse_folder_among_images

WAIT_SECONDS, LOOK_SECONDS = 0.2, 1.0
"""How long to wait for outcomes before Ctrl-C is noticed, and between two looks at other
commands' units."""
Say = Callable[[str], None]


def carry_out(
    plan: Plan,
    out: str | Path,
    *,
    workers: int = 1,
    cluster: str | None = None,
    needs: Mapping[str, float] | None = None,
    command: str = "",
    quiet: bool = False,
) -> dict[str, Any]:
    """Start a comparison, or continue it, until every unit is done or has failed.

    Args:
        plan: the comparison.
        out: its folder. If it holds the same comparison, that one continues: finished units are
            not repeated. Two commands at the same time share the work.
        workers: how many processes on this machine; with 1 it is done in this process.
        cluster: do the units on a Ray cluster instead: ``"auto"``, the one that this machine
            belongs to, or ``"ray://HOST:PORT"``. All its machines must see ``out``.
        needs: with a cluster, what a unit needs where the recipe does not tell: ``gpus``, ``cpus``,
            ``memory`` in GB; see `weiss.comparing.ray_cluster.resources`.
        command: the command line, recorded in the plan.
        quiet: print nothing.

    Returns:
        The summary, as ``summary.json`` holds it; see `weiss.comparing.summary.summarise`.
    """
    out = Path(out)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # they would share each other's batches
        raise ValueError(
            "a comparison must be started as one process; this one is one of several. Start it "
            "without torchrun, with --workers."
        )
    check_request(plan, out, workers, cluster, needs or {})

    def say(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    if cluster is not None:
        executor: Executor = RayCluster(cluster, plan.recipe, out, needs=needs or {}, say=say)
    elif workers == 1:
        executor = InThisProcess(out)
    else:
        executor = WorkerProcesses(workers, out, device=plan.recipe.train.device, say=say)
    try:
        with StopRequest() as stop, reuse_decoded_images(), executor:
            wanted: Plan | None = join(plan, out, command)
            while wanted is not None:
                plan = wanted
                drive(plan, out, executor, say=say, stop=stop)
                # Meanwhile another command may have added losses, seeds or repeats.
                grown = grown_plan(plan, out)
                wanted = grown if grown.num_units > plan.num_units else None
    except StoppedError as stopped:
        write_summary(grown_plan(plan, out), out)
        raise StoppedError(
            "finished units are kept, and interrupted runs have saved their state. Start the same "
            "command again to continue."
        ) from stopped
    return write_summary(grown_plan(plan, out), out)


def check_request(
    plan: Plan, out: Path, workers: int, cluster: str | None, needs: Mapping[str, float]
) -> None:
    """Refuse what `carry_out` cannot do; nothing is written or started."""
    check_count("--workers", workers)
    if cluster is None and needs:
        raise ValueError("--needs must come with --cluster: processes here share the machine.")
    if cluster is not None:
        if workers != 1:
            raise ValueError(
                "--workers must be left out with --cluster, where Ray decides how many units run; "
                f"got {workers}."
            )
        check_cluster(cluster, plan.recipe, needs)
    if read_plan(out) is None:
        refuse_folder_among_images(out, plan.recipe)
    plan.check()


def drive(
    plan: Plan, out: Path, executor: Executor, *, say: Say, stop: StopRequest | None = None
) -> None:
    """Let an executor do units until every one is done or has failed.

    Args:
        plan: the comparison.
        out: its folder.
        executor: does the units.
        say: called with each line of progress.
        stop: when it is wanted, the driver stops.

    Raises:
        StoppedError: Ctrl-C or SIGTERM.
    """
    done = results_on_disk(plan.ready, out)
    remaining, ready = Remaining(plan.num_units, len(done)), plan.ready(done)
    running: set[str] = set()
    failed: set[str] = set()
    held: set[str] = set()  # other commands work on these
    told: set[str] = set()  # that they do
    look_at = 0.0
    while True:
        if stop is not None and stop.wanted:
            raise StoppedError("told to stop.")
        room = executor.room
        for unit in ready if room > 0 else ():
            if unit.key not in running and unit.key not in failed and unit.key not in held:
                executor.start(unit)
                running.add(unit.key)
                if (room := room - 1) < 1:
                    break
        if not running and not held:
            return
        outcomes = executor.wait(WAIT_SECONDS)
        for outcome in outcomes:
            running.discard(outcome.key)
            if outcome.is_held:
                held.add(outcome.key)
                if outcome.key in told:
                    continue
                told.add(outcome.key)
            elif outcome.result is None:
                failed.add(outcome.key)
            else:
                done[outcome.key] = outcome.result
            say(_line(outcome, len(done), remaining))
        if held and time.monotonic() > look_at:
            held = {key for key in held if is_held(key, out)}
            look_at = time.monotonic() + LOOK_SECONDS
        if any(outcome.result is not None for outcome in outcomes):
            ready = plan.ready(done)


def _line(outcome: Outcome, num_done: int, remaining: Remaining) -> str:
    """Return a line of progress: the score, the settings or the failure of a unit."""
    if outcome.is_held:
        return f"{outcome.key}: another command is working on it"
    result = outcome.result
    if result is None:
        return f"{outcome.key}: failed: {outcome.failed}"
    took = f"{outcome.seconds:.1f} s{remaining.in_words(num_done)}"
    return f"[{num_done}/{remaining.total}] {outcome.key}{_result_text(result)} ({took})"


def _result_text(result: Result) -> str:
    if "failed" in result:
        return f": failed and scores 0: {result['failed']}"
    if "settings" in result:
        return ": " + ", ".join(f"{name} {value:.4g}" for name, value in result["settings"].items())
    scores: Result = result.get("concatenated") or result.get("test") or result
    score = scores.get("map_at_r")
    return "" if score is None else f": {TITLES['map_at_r']} {100 * score:.2f}"
