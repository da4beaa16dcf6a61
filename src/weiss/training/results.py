"""The result of a run, and the plots that it draws at its end."""

import warnings
from typing import Any

import torch

from weiss.losses import LOSSES
from weiss.runs import Recipe, Run
from weiss.runs.experiment import Experiment
from weiss.runs.folder import METRICS
from weiss.runs.gain import start_word
from weiss.training.state import Position


def result_of(experiment: Experiment, at: Position, best: dict[str, Any]) -> dict[str, Any]:
    """Return the content of result.json."""
    recipe = experiment.recipe
    after = [line for line in at.history if line["phase"] == "training"] or at.history
    speeds = sorted(line["images_per_second"] for line in after)
    found = {
        **best["metrics"],
        "epoch": best["epoch"],
        "loss": recipe.loss.name,
        "seconds": at.seconds,
        "seconds_to_best": best["seconds"],
        "epochs": at.epoch,
        "steps": at.steps,
        "stopped_early": at.epoch < recipe.train.epochs,
        **circumstances(experiment),
        "images_per_second": speeds[len(speeds) // 2],
    }
    if best["metrics"] and recipe.backbone.dimensions:
        found["dimensions"] = at.history[best["epoch"] - 1]["dimensions"]
    if best["metrics"] and "before" in at.history[0]:
        found |= {"start": start_word(recipe), "before": at.history[0]["before"]}
        line = at.history[best["epoch"] - 1]
        found |= {"gain": line["gain"]} if "gain" in line else {}
    if experiment.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(experiment.device)
        found["peak_gpu_memory_gb"] = round(peak / 1e9, 2)
    return found


def circumstances(experiment: Experiment) -> dict[str, Any]:
    """Return what a result is about: seed, data, network, and what it was measured on."""
    recipe = experiment.recipe
    names = {"valid": "held-out training classes", None: "nothing"}
    return {
        "seed": recipe.seed,
        "data": recipe.data.name,
        "backbone": recipe.backbone.name,
        "head": recipe.backbone.head,
        "embedding_size": recipe.backbone.embedding_size,
        "num_classes": experiment.num_classes,
        "measured_on": names.get(experiment.measured, experiment.measured),
    }


def draw(run: Run, recipe: Recipe, result: dict[str, Any], history: list[dict[str, Any]]) -> None:
    """Draw learning curves and order parameters; warn where matplotlib is absent."""
    from weiss import figures

    title = f"{LOSSES[recipe.loss.name].title} on {recipe.data.name}, seed {recipe.seed}"
    try:
        figures.learning_curves(
            history,
            run.plots / "learning_curves.png",
            best_epoch=result["epoch"] if "map_at_r" in result else None,
            title=title,
        )
        if any(line.get("order") for line in history):
            figures.order_parameters(history, run.plots / "order_parameters.png", title=title)
    except ImportError:
        warnings.warn(
            f"matplotlib is not installed: the run has no pictures. They can be drawn later from "
            f"its {METRICS}.",
            stacklevel=3,
        )
