"""Measure a network before training: the baseline of every training."""

import time
from pathlib import Path
from typing import Any

import torch

from weiss.backbones.embedder import LINEAR
from weiss.runs import Recipe, Run
from weiss.runs.evaluator import Embedded
from weiss.runs.pretrained import write_untrained
from weiss.runs.provenance import made_with
from weiss.training.preparation import make_accelerator, prepare
from weiss.training.results import circumstances


def measure_untrained(
    recipe: Recipe, out: str | Path, *, keep_embeddings: bool = False
) -> dict[str, Any]:
    """Measure the network that a recipe starts from, random or pretrained, as a run of no epochs.

    Args:
        recipe: the experiment; its settings of training play no part.
        out: the folder of the run. A finished run of the same network is not changed.
        keep_embeddings: as for `weiss.training.train`.

    Returns:
        The result, as ``result.json`` holds it; its loss is ``"untrained"`` and its epoch 0.
    """
    run = Run(out)
    result_before = run.whole_result()
    if result_before is not None and is_of_network(result_before, recipe):
        return result_before
    run.make_folder()
    accelerator, processes = make_accelerator(recipe, run.folder)
    with run.locked():
        run.reopen()  # it may hold that of another network
        begun = time.monotonic()
        made = prepare(recipe, torch.device(accelerator.device), processes)
        experiment, model = made.experiment, made.model

        def measured(split: str) -> tuple[dict[str, float | int], Embedded]:
            found, _, embedded = experiment.evaluator.evaluate_prefixes(
                model, split, (), precision=made.stepper.precision
            )
            return found.summary(), embedded

        result: dict[str, Any] = measured(experiment.measured)[0] if experiment.measured else {}
        result |= circumstances(experiment)
        if recipe.tests_at_the_end and experiment.can_be_measured("test"):
            result["test"], embedded = measured("test")
            if keep_embeddings:
                run.write_test_embeddings(embedded.kept())
        result["seconds"] = time.monotonic() - begun
        machine = made_with(made.device, processes.size)
        write_untrained(run, made.recipe, model, result, machine)
    return run.result()


def is_of_network(result: dict[str, Any], recipe: Recipe) -> bool:
    """Return whether a result is that of a recipe's network, with or without its head.

    Before 0.2 comparisons measured the network behind a random head, and results did not say so.
    """
    return bool(result.get("head", LINEAR) == recipe.backbone.head)
