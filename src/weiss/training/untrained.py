"""Measure a network before training: the baseline of every training."""

import time
from pathlib import Path
from typing import Any

import torch

from weiss.runs import Kept, Recipe, Run, to_toml
from weiss.runs.provenance import made_with
from weiss.runs.summaries import UNTRAINED
from weiss.training.preparation import make_accelerator, prepare
from weiss.training.results import circumstances


def measure_untrained(recipe: Recipe, out: str | Path) -> dict[str, Any]:
    """Measure the network that a recipe starts from, random or pretrained, as a run of no epochs.

    Args:
        recipe: the experiment; its settings of training play no part.
        out: the folder of the run. A finished run is not changed.

    Returns:
        The result, as ``result.json`` holds it; its loss is ``"untrained"`` and its epoch 0.
    """
    run = Run(out)
    if (result_before := run.whole_result()) is not None:
        return result_before
    run.make_folder()
    accelerator, processes = make_accelerator(recipe, run.folder)
    with run.locked():
        begun = time.monotonic()
        made = prepare(recipe, torch.device(accelerator.device), processes)
        experiment, model = made.experiment, made.model
        described = {**made.recipe.as_dict(), "made_with": made_with(made.device, processes.size)}
        run.write_recipe(to_toml(described))

        def measured(split: str) -> dict[str, float | int]:
            precision = made.stepper.precision
            return experiment.evaluator.evaluate(model, split, precision=precision).summary()

        metrics = measured(experiment.measured) if experiment.measured else {}
        facts = {"epoch": 0, "metrics": metrics, "class_names": list(experiment.class_names)}
        run.write_model(Kept.now(model, made.loss, {**facts, "seconds": 0.0}))
        counts = {"epoch": 0, "loss": UNTRAINED, "epochs": 0, "steps": 0}
        result: dict[str, Any] = {**metrics, **counts, **circumstances(experiment)}
        if recipe.tests_at_the_end and experiment.can_be_measured("test"):
            result["test"] = measured("test")
        run.write_result({**result, "seconds": time.monotonic() - begun})
    return run.result()
