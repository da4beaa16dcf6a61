"""Whether a run may be resumed: what must match its folder, its recipe and its data, and what not.

Which state it is resumed from, too; `state` restores it.
"""

import hashlib
import warnings
from typing import Any

import numpy as np
import torch

from weiss._base.processes import Processes
from weiss.runs import Recipe, Run, differences, recipe_from_dict
from weiss.runs.checkpoints import State
from weiss.runs.experiment import Experiment
from weiss.runs.folder import MODEL, RECIPE
from weiss.training.state import Position

MAY_CHANGE = (
    "train.epochs",
    "train.patience",
    "train.checkpoint_seconds",
    "train.device",
    "train.graphs",
    "train.shard_classes",
    "data.name",
    "data.root",
    "data.keep",
    "data.num_workers",
    "data.cache",
    "track.",
)
"""The keys of a recipe that may change when a run is resumed: those on which no step so far
depends. (The last epoch is always evaluated, so a run with epochs added has one evaluation more.)
"""


def refuse_another_run(run: Run, resume: bool) -> None:
    """Refuse a folder that holds a run, unless that one is to be resumed."""
    if run.exists() and not resume:
        raise ValueError(
            f"--out must name a folder without a run; {run.folder} holds one. Resume it: "
            f"{how_to_resume(run)}. Or choose another folder."
        )
    if run.checkpoints.files() and not run.exists():
        raise ValueError(
            f"--out must name a folder without a run; {run.folder} holds states of a run whose "
            f"{RECIPE} is missing. Restore that file, or choose another folder."
        )


def how_to_resume(run: Run) -> str:
    """Return the command that resumes a run."""
    return f"weiss train --resume --out {run.folder}"


def changes_since(run: Run, recipe: Recipe) -> list[str]:
    """Return what a recipe changes in the run that it resumes.

    Raises:
        ValueError: it changes a key on which the steps so far depend.
    """
    changed = differences(recipe_from_dict(run.recipe()), recipe)
    allowed: tuple[str, ...] = MAY_CHANGE
    if recipe.schedule.name == "cosine":
        # Its rates depend on the number of epochs from the first step on.
        allowed = tuple(key for key in MAY_CHANGE if key != "train.epochs")
    refused = [line for line in changed if not line.startswith(allowed)]
    if refused:
        listed = "\n  ".join(refused)
        raise ValueError(
            f"a run must be resumed with its own recipe; that of {run.folder} differs in\n  "
            f"{listed}\nLeave the recipe out to use the run's own, or start a run in another "
            "folder."
        )
    return changed


def data_facts(experiment: Experiment) -> dict[str, Any]:
    """Return facts by which data are recognised: names, classes and splits, not every pixel."""
    table = experiment.table
    words = [*table.class_names, *map(str, table.splits)]
    words += [table.source.name(row) for row in range(len(table))]
    digest = hashlib.blake2b("\n".join(words).encode(errors="replace"), digest_size=8)
    digest.update(np.ascontiguousarray(table.labels).data)
    return {
        "images": len(experiment.train_rows),
        "classes": experiment.num_classes,
        "digest": digest.hexdigest(),
    }


def refuse_other_data(state: State, experiment: Experiment, run: Run) -> None:
    """Refuse to resume a run with other data than before."""
    before, now = state.facts["data"], data_facts(experiment)
    if before != now:
        were, are = (
            f"{facts['images']:,} images of {facts['classes']:,} classes ({facts['digest']})"
            for facts in (before, now)
        )
        raise ValueError(
            f"the data must be those the run in {run.folder} began with; they were {were} and are "
            f"{are}. Restore them, or start a run in another folder."
        )


def refuse_fewer_epochs(state: State, recipe: Recipe) -> None:
    """Refuse fewer epochs than are done."""
    done = int(state.facts["position"]["epoch"])
    if recipe.train.epochs < done:
        raise ValueError(
            f"train.epochs must be at least the {done} that the run has done; got "
            f"{recipe.train.epochs}. Epochs cannot be undone."
        )


def newest_state(run: Run, processes: Processes, device: torch.device) -> State | None:
    """Return the state to resume from: the main process chooses, the others follow."""
    state = run.checkpoints.newest() if processes.is_main else None
    steps = -1 if state is None else int(state.facts["position"]["steps"])
    chosen = processes.agree_on(steps, device)
    return state if processes.is_main or chosen < 0 else run.checkpoints.read(chosen)


def last_good_state(run: Run) -> str:
    """Return a sentence that names the state from which a run that failed can be resumed."""
    files = run.checkpoints.files()
    if not files:
        return "No state had been saved yet."
    return (
        f"The last good state, after step {int(files[-1].stem)} of the run, is kept in "
        f"{files[-1].parent}."
    )


def warn_of_a_lost_network(at: Position, best: dict[str, Any] | None, metric: str) -> None:
    """Warn if a run has measured a better network than its folder holds."""
    measured = [line for line in at.history if "evaluation" in line]
    if not measured:
        return
    known = max(measured, key=lambda line: float(line["evaluation"][metric]))
    if best is None or best["metrics"][metric] < known["evaluation"][metric]:
        warnings.warn(
            f"the best network so far, of epoch {known['epoch']}, is no longer in {MODEL}; the "
            "best of the network there and of the epochs to come replaces it.",
            stacklevel=2,
        )
