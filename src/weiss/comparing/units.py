"""Units of work: each leaves its result in a folder of its own, and finds it there again.

A unit can be asked for any number of times. What is done is not done again, what had begun goes
on, and what is done from the start comes out the same.
"""

import gc
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weiss._base.files import replacing
from weiss._base.interrupts import StoppedError
from weiss.evaluation.retrieval import concatenate_embeddings
from weiss.runs import Recipe, embed_runs
from weiss.runs.evaluator import NotFiniteError
from weiss.runs.folder import MODEL, RESULT, STATE, Run
from weiss.runs.summaries import SCORES
from weiss.training import measure_untrained, train

Result = dict[str, Any]
Results = Mapping[str, Result]
"""What the units that are done have found, by their keys."""
FAILURE = "failure.json"
"""Why a trial failed, which is its result."""
NO_RESULT = "no_result.json"
"""Why a unit came to no result, until it is tried again."""


@dataclass(frozen=True)
class Unit:
    """Something to be done once.

    Attributes:
        key: its name, and its place below the folder of the study: ``mf_cwms/seed-3``.
        work: does it in a folder and returns the result.
        found: returns the result that lies in a folder, None if there is none.
    """

    key: str
    work: Callable[[Path], Result]
    found: Callable[[Path], Result | None]


def results_on_disk(ready: Callable[[Results], Sequence[Unit]], folder: Path) -> dict[str, Result]:
    """Return the results that lie in a folder, whoever left them there.

    Args:
        ready: what can be done next, as a plan says, given what is done.
        folder: of the study.
    """
    done: dict[str, Result] = {}
    while True:
        found = {unit.key: unit.found(folder / unit.key) for unit in ready(done)}
        new = {key: result for key, result in found.items() if result is not None}
        if not new:
            return done
        done |= new


def failures_on_disk(wanted: Sequence[Unit], folder: Path) -> dict[str, str]:
    """Return why some units have come to no result, of those that say so."""
    notes = {unit.key: _json(folder / unit.key / NO_RESULT) for unit in wanted}
    return {key: note["failed"] for key, note in notes.items() if note is not None}


def note_failure(folder: Path, why: str | None) -> None:
    """Leave a note why a unit came to no result, or with None take it away."""
    if why is not None:
        _write(folder / NO_RESULT, {"failed": why})
    else:
        (folder / NO_RESULT).unlink(missing_ok=True)


def training(key: str, recipe: Recipe) -> Unit:
    """Return the unit that trains a recipe; its folder keeps the model, no state, no pictures."""

    def work(folder: Path) -> Result:
        run = Run(folder)
        if not run.is_finished():
            train(recipe, folder, resume=run.exists(), quiet=True, pictures=False)
        shutil.rmtree(folder / STATE, ignore_errors=True)
        return run.result()

    return Unit(key, work, _result_of_run)


def trial(key: str, recipe: Callable[[], Recipe]) -> Unit:
    """Return the unit that trains for a score alone: no model stays, no picture is drawn.

    A training that fails is a result as well, ``{"failed": why}``: a loss that is not finite,
    settings that the loss refuses, and whatever else happens twice in a row. What does not happen
    again was the machine's fault and not that of the settings.

    Args:
        key: of the unit.
        recipe: makes the recipe; a ValueError of it is such a failure.
    """

    def work(folder: Path) -> Result:
        result = found(folder)
        if result is None:
            result = _tried(recipe, folder)
        shutil.rmtree(folder / STATE, ignore_errors=True)
        (folder / MODEL).unlink(missing_ok=True)
        return result

    def found(folder: Path) -> Result | None:
        return _json(folder / FAILURE) or _result_of_run(folder)

    return Unit(key, work, found)


def untrained(key: str, recipe: Recipe) -> Unit:
    """Return the unit that measures the network which a recipe starts from."""
    return Unit(key, lambda folder: measure_untrained(recipe, folder), _result_of_run)


def ensemble(key: str, folds: Sequence[str], recipe: Recipe) -> Unit:
    """Return the unit that measures the networks of all folds, apart and side by side.

    Args:
        key: of the unit.
        folds: names of the folds' run folders beside the unit's own.
        recipe: says where to compute, and where this machine keeps the data.
    """

    def work(folder: Path) -> Result:
        runs = [Run(folder.parent / name) for name in folds]
        tested = [run.result()["test"] for run in runs]
        embedded = embed_runs(
            runs, split="test", device=recipe.train.device, overrides=of_this_machine(recipe)
        )
        together = concatenate_embeddings([each.embeddings for each in embedded])
        whole = embedded[0].retrieval(together).summary()
        return {
            "separated": {name: float(np.mean([t[name] for t in tested])) for name in SCORES},
            "concatenated": {name: float(whole[name]) for name in SCORES},
            "seconds": sum(run.result()["seconds"] for run in runs),
        }

    return remembered(key, work)


def of_this_machine(recipe: Recipe) -> dict[str, Any]:
    """Return as overrides where a machine keeps its data: runs may come from another one."""
    keys = ("root", "keep", "num_workers", "cache")
    return {f"data.{key}": getattr(recipe.data, key) for key in keys}


def remembered(key: str, compute: Callable[[Path], Result]) -> Unit:
    """Return a unit whose result is a file of its own, ``KEY/result.json``.

    Args:
        key: of the unit.
        compute: returns the result, given the unit's folder.
    """

    def work(folder: Path) -> Result:
        result = found(folder)
        if result is None:
            result = compute(folder)
            _write(folder / RESULT, result)
        return result

    def found(folder: Path) -> Result | None:
        return _json(folder / RESULT)

    return Unit(key, work, found)


def _tried(make_recipe: Callable[[], Recipe], folder: Path) -> Result:
    try:
        recipe = make_recipe()
    except ValueError as error:
        return _failed(error, folder)
    said = ""
    while True:
        try:
            return train(recipe, folder, resume=Run(folder).exists(), quiet=True, pictures=False)
        except StoppedError:
            raise
        except NotFiniteError as error:
            return _failed(error, folder)
        except (ArithmeticError, RuntimeError) as error:
            if "CUDA error" in str(error) and not isinstance(error, torch.OutOfMemoryError):
                raise  # the device is lost to this process
            if type(error).__name__ == said:
                return _failed(error, folder)
            said = type(error).__name__
        gc.collect()  # what the first try held may be what the second lacks
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _failed(error: Exception, folder: Path) -> Result:
    failed = {"failed": f"{type(error).__name__}: {error}"}
    _write(folder / FAILURE, failed)
    return failed


def _result_of_run(folder: Path) -> Result | None:
    run = Run(folder)
    return run.result() if run.exists() and run.is_finished() else None


def _json(path: Path) -> Result | None:
    if not path.is_file():
        return None
    found: Result = json.loads(path.read_text(encoding="utf-8"))
    return found


def _write(path: Path, values: Result) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
