"""The network as it is before training: what any training must beat."""

import time
from pathlib import Path
from typing import Any

import torch

from weiss.runs import Recipe, to_toml
from weiss.runs.folder import Kept, Run
from weiss.runs.provenance import made_with
from weiss.runs.summaries import UNTRAINED
from weiss.training.outputs import circumstances
from weiss.training.preparation import make_accelerator, prepare, processes_of
from weiss.training.resuming import make_folder, written_by_one


def measure_untrained(recipe: Recipe, out: str | Path) -> dict[str, Any]:
    """Measure the network that a recipe starts from, random or pretrained, as a run of no epochs.

    Args:
        recipe: the experiment; what it says of training plays no part.
        out: the folder of the run. One that is finished stays as it is.

    Returns:
        The result, as ``result.json`` holds it; its loss is ``"untrained"`` and its epoch 0.
    """
    run = Run(out)
    if run.is_finished():
        return run.result()
    make_folder(run.folder)
    accelerator = make_accelerator(recipe, run.folder)
    processes = processes_of(accelerator)
    with written_by_one(run):
        begun = time.monotonic()
        made = prepare(recipe, torch.device(accelerator.device), processes)
        experiment, model = made.experiment, made.model
        described = {**made.recipe.as_dict(), "made_with": made_with(made.device, processes.size)}
        run.write_recipe(to_toml(described))
        options: dict[str, Any] = {"precision": made.stepper.precision}
        metrics: dict[str, Any] = {}
        if experiment.measured:
            found = experiment.evaluator.evaluate(model, experiment.measured[0], **options)
            metrics = found.summary()
        facts = {"epoch": 0, "metrics": metrics, "class_names": list(experiment.class_names)}
        run.write_model(Kept.now(model, made.loss, {**facts, "seconds": 0.0}))
        result = {
            **metrics,
            "epoch": 0,
            "loss": UNTRAINED,
            "epochs": 0,
            "steps": 0,
            **circumstances(recipe, experiment),
        }
        if recipe.tests_at_the_end and experiment.can_be_measured("test"):
            result["test"] = experiment.evaluator.evaluate(model, "test", **options).summary()
        run.write_result({**result, "seconds": time.monotonic() - begun})
    return run.result()
