"""Whether a run may be resumed: what must match its folder, its recipe and its data, and what not.

Which state it is resumed from, too; `state` restores it.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from weiss._base.processes import Processes
from weiss.data.content import digest_of_source
from weiss.losses import loss_settings
from weiss.runs import Recipe, Run, differences, recipe_from_dict
from weiss.runs.checkpoints import State
from weiss.runs.experiment import Experiment
from weiss.runs.folder import RECIPE
from weiss.runs.recipe import OF_A_MACHINE, with_new_keys
from weiss.runs.recipe_sections import Loss
from weiss.training.state import Position

MAY_CHANGE = (
    *OF_A_MACHINE,
    "data.name",
    "train.epochs",
    "train.patience",
    "train.checkpoint_seconds",
    "train.shard_classes",
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


def changes_since(run: Run, recipe: Recipe, state: State | None) -> list[str]:
    """Return what a recipe changes in the recipe.toml of the run that it resumes.

    Raises:
        ValueError: it differs from the recipe of the steps so far in a key that they depend on.
            The state has that recipe; recipe.toml may have been edited since.
    """
    changed = differences(_with_all_arguments(run.recipe()), recipe)
    began = None if state is None else state.facts.get("recipe")
    since = changed if began is None else differences(_with_all_arguments(began), recipe)
    refused = [line for line in since if not line.startswith(MAY_CHANGE)]
    if recipe.schedule.name == "cosine":
        # Its rates depend on the number of epochs from the first step on.
        refused += [line for line in since if line.startswith("train.epochs:")]
    if refused:
        listed = "\n  ".join(refused)
        raise ValueError(
            f"a run must be resumed with its own recipe; the steps of {run.folder} so far were "
            f"made with other values (then -> now):\n  {listed}\nLeave the recipe out and restore "
            f"these values in {run.folder / RECIPE}, or start a new run with the new ones: "
            f"weiss train {run.folder / RECIPE} --out ANOTHER_FOLDER"
        )
    return changed


def _with_all_arguments(values: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a run; arguments of the loss that it lacks, being newer, are added."""
    recipe = recipe_from_dict(with_new_keys(values, of_a_run=True), "the recipe of the run")
    name = recipe.loss.name
    loss = Loss(name=name, **loss_settings(name, recipe.loss.arguments))
    return recipe.model_copy(update={"loss": loss})


def data_facts(experiment: Experiment) -> dict[str, Any]:
    """Return facts by which data are recognised: names; and labels, splits and every byte.

    All processes must call it; the main one reads the images.
    """
    table, processes = experiment.table, experiment.processes
    words = "\n".join([*table.class_names, *map(str, table.splits)])
    names = "".join(f"\n{table.source.name(row)}" for row in range(len(table)))
    labels = np.ascontiguousarray(table.labels).tobytes()
    named = hashlib.blake2b((words + names).encode(errors="replace") + labels, digest_size=8)
    content = np.zeros(16, dtype=np.uint8)
    if processes.is_main:
        whole = hashlib.blake2b(words.encode(errors="replace") + labels, digest_size=16)
        whole.update(digest_of_source(table.source).encode())
        content = np.frombuffer(whole.digest(), dtype=np.uint8).copy()
    shared = torch.from_numpy(content).to(experiment.device)
    processes.agree([shared])
    return {
        "images": len(experiment.train_rows),
        "classes": experiment.num_classes,
        "digest": named.hexdigest(),
        "content": bytes(shared.tolist()).hex(),
    }


def refuse_other_data(state: State, now: dict[str, Any], run: Run) -> None:
    """Refuse to resume a run with other data than before; the same in another place are accepted.

    A state of an older version lacks facts; a warning names them.
    """
    before = state.facts["data"]
    there = {
        "its recipe": "recipe" in state.facts,
        "the content of its images": "content" in before,
    }
    if lacking := [name for name, is_there in there.items() if not is_there]:
        warnings.warn(
            f"an older version wrote the state of {run.folder}; it does not know "
            f"{' and '.join(lacking)}, so that changes since then go unnoticed.",
            stacklevel=2,
        )
    keys = ("images", "classes", "content" if "content" in before else "digest")
    if any(before[key] != now[key] for key in keys):
        were, are = (
            f"{facts['images']:,} images of {facts['classes']:,} classes ({facts[keys[-1]][:16]})"
            for facts in (before, now)
        )
        same = before["digest"] == now["digest"]
        hint = " Their names and classes are the same, their content is not." if same else ""
        raise ValueError(
            f"the data must be those the run in {run.folder} began with; they were {were} and are "
            f"{are}.{hint} Restore them, or start a run in another folder."
        )


def refuse_fewer_epochs(at: Position, recipe: Recipe) -> None:
    """Refuse fewer epochs than are done."""
    if recipe.train.epochs < at.epoch:
        raise ValueError(
            f"train.epochs must be at least the {at.epoch} that the run has done; got "
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


def best_line(history: Sequence[dict[str, Any]], metric: str) -> dict[str, Any] | None:
    """Return the line of the epoch with the best evaluation, the first of several; None without."""
    measured = [line for line in history if "evaluation" in line]
    return max(measured, key=lambda line: float(line["evaluation"][metric]), default=None)


def kept_network(run: Run, at: Position, metric: str) -> tuple[dict[str, Any] | None, str]:
    """Return the facts of the network in the folder, None without any, and what is wrong with it.

    No words if it is the best network of the epochs so far, or none has been evaluated.
    """
    try:
        facts = run.model_facts()
    except ValueError as error:
        return None, f"cannot be used: {error}"
    known = best_line(at.history, metric)
    if not facts:
        return None, "" if known is None else "is missing."
    reached = (facts.get("metrics") or {}).get(metric)
    needed = [facts.get(key) for key in ("epoch", "metrics", "seconds")]
    if None in needed or (known is not None and reached is None):
        return None, f"cannot be used: it lacks its epoch, its seconds or its {metric}."
    if known is None or reached >= known["evaluation"][metric]:
        return facts, ""
    return facts, "is not the best network so far."


def position_at_the_end(run: Run, metric: str) -> Position | None:
    """Return where a run without a state ended, by its metrics and its model; None if unknown.

    A comparison removes the states of finished runs. The model has a checksum: the metrics must
    agree with it.
    """
    try:
        history, facts = run.metrics(), run.model_facts()
        best, epochs = best_line(history, metric), [line["epoch"] for line in history]
        if not facts or best is None or epochs != list(range(1, len(epochs) + 1)):
            return None
        if (facts["epoch"], facts["metrics"]) != (best["epoch"], best["evaluation"]):
            return None
        seconds = sum(line["seconds"] for line in history)
        return Position(len(history), 0, history[-1]["steps"], seconds, history=history)
    except (ValueError, KeyError):
        return None
