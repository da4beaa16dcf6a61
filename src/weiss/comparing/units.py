"""Units of work: each stores its result in its own folder and finds it there again.

A unit can be called any number of times. A finished unit is not repeated, an interrupted one
resumes, and one that starts again from nothing gives the same result. A unit can be pickled, so
that any process on any machine can do it.
"""

import gc
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weiss._base.files import read_json, replacing
from weiss._base.interrupts import StoppedError
from weiss._base.tensor_files import DamagedFileError
from weiss.evaluation.retrieval import concatenate_embeddings
from weiss.runs import Recipe, embed_runs, without_head
from weiss.runs.evaluate import device_to_embed_on
from weiss.runs.evaluator import NotFiniteError, retrieval_of_kept
from weiss.runs.folder import MODEL, RESULT, STATE, TEST_EMBEDDINGS, Run
from weiss.runs.recipe import OF_A_MACHINE
from weiss.runs.summaries import SCORES
from weiss.training import measure_untrained, train
from weiss.training.untrained import is_of_network

Result = dict[str, Any]
Results = Mapping[str, Result]
"""The results of the finished units, by their keys."""
FAILURE = "failure.json"
"""Why a trial failed: this counts as its result."""
NO_RESULT = "no_result.json"
"""Why a unit failed: it is tried again."""
ALONE: dict[str, Any] = {"quiet": True, "pictures": False, "baseline": False}
"""How a run of a comparison trains: the network before training has a row of its own."""


MakeRecipe = Callable[[], Recipe]
"""Makes and checks a recipe, which takes milliseconds: only who does a unit needs it."""


@dataclass(frozen=True)
class Unit:
    """A piece of work that is done once.

    Attributes:
        key: its name, and its path below the folder of the study: ``mf_cwms/seed-3``.
        work: does it in a folder and returns the result.
        found: returns the result stored in a folder, None if there is none or if the unit has not
            removed everything that it does not keep.
        is_light: whether it takes about a second, on the CPU.
    """

    key: str
    work: Callable[[Path], Result]
    found: Callable[[Path], Result | None]
    is_light: bool = False


def results_on_disk(ready: Callable[[Results], Sequence[Unit]], folder: Path) -> dict[str, Result]:
    """Return all results in the folder of a study; ``ready`` is `Plan.ready`."""
    done: dict[str, Result] = {}
    while True:
        found = {unit.key: unit.found(folder / unit.key) for unit in ready(done)}
        new = {key: result for key, result in found.items() if result is not None}
        if not new:
            return done
        done |= new


def failures_on_disk(wanted: Sequence[Unit], folder: Path) -> dict[str, str]:
    """Return why units have no result, where a note in their folder gives the reason."""
    notes = {unit.key: _json(folder / unit.key / NO_RESULT) for unit in wanted}
    return {key: str(note.get("failed")) for key, note in notes.items() if note is not None}


def note_failure(folder: Path, why: str | None) -> None:
    """Write a note why a unit has no result; with None remove it."""
    if why is not None:
        _write(folder / NO_RESULT, {"failed": why})
    else:
        (folder / NO_RESULT).unlink(missing_ok=True)


def training(key: str, make_recipe: MakeRecipe, *, keep_embeddings: bool = False) -> Unit:
    """Return the unit that trains a recipe; its folder keeps the model, no state, no pictures.

    With ``keep_embeddings`` it also keeps those of the test part, for an `ensemble`.
    """
    work = partial(_train, make_recipe, keep_embeddings)
    return Unit(key, work, partial(_found, _result_of_run, (STATE,)))


def _train(make_recipe: MakeRecipe, keep_embeddings: bool, folder: Path) -> Result:
    run = Run(folder)
    if run.whole_result() is None:
        how = {**ALONE, "resume": run.exists(), "keep_embeddings": keep_embeddings}
        train(make_recipe(), folder, **how)
    _remove(folder, (STATE,))
    return run.result()


def trial(key: str, make_recipe: MakeRecipe) -> Unit:
    """Return the unit that trains for a score alone: no model is kept, no picture is drawn.

    A failed training is a result as well, ``{"failed": why}``: a loss that is not finite, settings
    that the loss refuses, and any other error twice in a row: after the first the training is tried
    again.
    """
    left_over = (STATE, MODEL)
    return Unit(key, partial(_try, make_recipe, left_over), partial(_found, _score, left_over))


def _try(make_recipe: MakeRecipe, left_over: Sequence[str], folder: Path) -> Result:
    result = _score(folder)
    if result is None:
        try:
            recipe = make_recipe()
        except ValueError as error:
            result = _failed(error, folder)
        else:
            result = _try_training(recipe, folder)
    _remove(folder, left_over)
    return result


def _score(folder: Path) -> Result | None:
    return _json(folder / FAILURE) or _result_of_run(folder)


def untrained(key: str, make_recipe: MakeRecipe, *, keep_embeddings: bool = False) -> Unit:
    """Return the unit that measures the network before its training, without its head.

    A result of the network behind another head, as older versions measured it, does not count.
    ``keep_embeddings`` is as for `training`.
    """
    work = partial(_measure_untrained, make_recipe, keep_embeddings)
    return Unit(key, work, partial(_untrained_result, make_recipe))


def _measure_untrained(make_recipe: MakeRecipe, keep_embeddings: bool, folder: Path) -> Result:
    return measure_untrained(without_head(make_recipe()), folder, keep_embeddings=keep_embeddings)


def _untrained_result(make_recipe: MakeRecipe, folder: Path) -> Result | None:
    result = _result_of_run(folder)
    if result is None or not is_of_network(result, without_head(make_recipe())):
        return None
    return result


def ensemble(key: str, folds: Sequence[str], recipe: Recipe) -> Unit:
    """Return the unit that measures the networks of all folds, separated and concatenated.

    The folds are run folders beside the unit's own, with the embeddings that they keep. Those of
    older versions kept none: they are embedded again by their networks, where the recipe says that
    the data are.
    """
    return computed(key, partial(_measure_together, tuple(folds), recipe))


def _measure_together(folds: Sequence[str], recipe: Recipe, folder: Path) -> Result:
    runs = [Run(folder.parent / name, trust=True) for name in folds]
    tested = [run.result()["test"] for run in runs]
    kept = _embeddings_of(runs, recipe)
    together = concatenate_embeddings([each["embeddings"] for each in kept])
    device = device_to_embed_on(recipe.train.device)
    recall_at = tuple(recipe.evaluate.recall_at)
    whole = retrieval_of_kept(kept[0], together.to(device), recall_at=recall_at).summary()
    # Folds of an older version may lack a score of this one.
    measured = [name for name in SCORES if all(name in each for each in tested)]
    return {
        "separated": {name: float(np.mean([t[name] for t in tested])) for name in measured},
        "concatenated": {name: float(whole[name]) for name in measured},
        "seconds": sum(run.result()["seconds"] for run in runs),
    }


def _embeddings_of(runs: Sequence[Run], recipe: Recipe) -> list[dict[str, torch.Tensor]]:
    """Return what each run keeps of its test part; what it does not, its network embeds."""
    kept = {run.folder: _kept_by(run) for run in runs}
    missing = [run for run in runs if kept[run.folder] is None]
    for run in missing:
        if not (run.folder / MODEL).is_file():
            raise ValueError(
                f"{run.folder} must hold {TEST_EMBEDDINGS}, or else {MODEL}, for its ensemble; it "
                "has neither. Copy one there, or delete the folder: then it is trained again."
            )
    if missing:
        embedded = embed_runs(
            missing, split="test", device=recipe.train.device, overrides=data_overrides(recipe)
        )
        for run, again in zip(missing, embedded, strict=True):
            kept[run.folder] = {name: value.cpu() for name, value in again.kept().items()}
    found = [tensors for tensors in kept.values() if tensors is not None]
    for run, tensors in zip(runs, found, strict=True):
        if not torch.equal(tensors["labels"], found[0]["labels"]):
            raise ValueError(
                f"all folds of a repeat must embed the same test items; {run.folder} has others "
                f"than {runs[0].folder}. Were they made with other data? Delete the folder that "
                "has the wrong ones: then it is trained again."
            )
    return found


def _kept_by(run: Run) -> dict[str, torch.Tensor] | None:
    try:
        return run.test_embeddings()
    except DamagedFileError as error:
        warnings.warn(f"{error} Its network embeds again.", stacklevel=2)
        return None


def data_overrides(recipe: Recipe) -> dict[str, Any]:
    """Return as overrides where this machine stores the data: runs may come from another one."""
    keys = [key for key in OF_A_MACHINE if key.startswith("data.")]
    return {key: getattr(recipe.data, key.removeprefix("data.")) for key in keys}


def computed(key: str, compute: Callable[[Path], Result], *, is_light: bool = False) -> Unit:
    """Return a unit that computes its result, given its folder, and stores it as result.json."""
    return Unit(key, partial(_compute, compute), _computed, is_light)


def _compute(compute: Callable[[Path], Result], folder: Path) -> Result:
    result = _computed(folder)
    if result is None:
        result = compute(folder)
        _write(folder / RESULT, result)
    return result


def _computed(folder: Path) -> Result | None:
    return _json(folder / RESULT)


def _try_training(recipe: Recipe, folder: Path, *, is_second: bool = False) -> Result:
    try:
        return train(recipe, folder, resume=Run(folder).exists(), **ALONE)
    except StoppedError:
        raise
    except (ArithmeticError, RuntimeError) as error:
        if lost_device(error):
            raise
        if is_second or isinstance(error, NotFiniteError):
            return _failed(error, folder)
    gc.collect()  # the second try may need the memory that the first one held
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return _try_training(recipe, folder, is_second=True)


def lost_device(error: Exception) -> bool:
    """Return whether this process cannot use its device any more: another process can."""
    return "CUDA error" in str(error) and not isinstance(error, torch.OutOfMemoryError)


def _failed(error: Exception, folder: Path) -> Result:
    failed = {"failed": f"{type(error).__name__}: {error}"}
    _write(folder / FAILURE, failed)
    return failed


def _result_of_run(folder: Path) -> Result | None:
    return Run(folder).whole_result()


def _found(
    read: Callable[[Path], Result | None], left_over: Sequence[str], folder: Path
) -> Result | None:
    """Return a result, unless its process was killed before it removed what is not kept."""
    return None if any((folder / name).exists() for name in left_over) else read(folder)


def _remove(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _json(path: Path) -> Result | None:
    """Return what a unit has stored; None if it has not, or with a warning if it is damaged."""
    try:
        return read_json(path) if path.is_file() else None
    except ValueError as error:
        warnings.warn(f"{error} The unit is done again.", stacklevel=2)
        return None


def _write(path: Path, values: Result) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
