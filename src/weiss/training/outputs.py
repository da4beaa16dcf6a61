"""What a run says and leaves behind: lines while it trains, its result, its card, its pictures."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from weiss.backbones import Embedder
from weiss.evaluation.metrics import TITLES
from weiss.losses import LOSSES
from weiss.runs import Recipe
from weiss.runs.card import card
from weiss.runs.experiment import Experiment
from weiss.runs.folder import Run
from weiss.training.resuming import Position


def opening(experiment: Experiment, model: Embedder, folder: Path) -> str:
    """Return the lines with which a run begins."""
    recipe = experiment.recipe
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    title = LOSSES[recipe.loss.name].title
    measured = {
        ("test",): "the test set (the best epoch is chosen on it, as in the paper)",
        ("valid",): "held-out training classes",
        (): "nothing: the data have no test part of two classes or more",
    }[tuple(experiment.measured)]
    return (
        f"{title} on {recipe.data.name}: {experiment.pipeline.describe()}\n"
        f"{recipe.backbone.name}, {parameters:.1f} million parameters, to "
        f"{recipe.backbone.embedding_size} dimensions; {len(experiment.train_rows):,} images of "
        f"{experiment.num_classes:,} classes train, {experiment.steps} batches of "
        f"{recipe.train.batch_size} an epoch\n"
        f"measured on {measured}; writing to {folder}"
    )


def epoch_line(line: dict[str, Any], epochs: int, *, is_best: bool) -> str:
    """Return one epoch in one line."""
    width = len(str(epochs))
    words = [f"epoch {line['epoch']:{width}d}/{epochs}", f"loss {line['loss']:8.4f}"]
    for name, title in TITLES.items():
        if name in line.get("evaluation", {}):
            words.append(f"{title} {100 * line['evaluation'][name]:5.2f}")
    if "skipped" in line:
        words.append(f"skipped {100 * line['skipped']:.1f} %")
    words.append(f"{line['seconds']:.1f} s ({line['images_per_second']:,.0f} images/s)")
    if line["phase"] == "warm-up":
        words.append("warm-up")
    return "  ".join([*words, *(["best so far"] if is_best else [])])


def closing(result: dict[str, Any], folder: Path) -> str:
    """Return the lines with which a run ends."""
    scores = ", ".join(
        f"{title} {100 * result[name]:.2f}" for name, title in TITLES.items() if name in result
    )
    lines = []
    if scores:
        lines.append(f"best epoch {result['epoch']}: {scores} on {result['measured_on']}")
    if "test" in result:
        test = ", ".join(f"{t} {100 * result['test'][n]:.2f}" for n, t in TITLES.items())
        lines.append(f"its network on the test set: {test}")
    lines.append(f"{result['seconds']:.0f} s in all. Look at {folder}")
    return "\n".join(lines)


def tracked(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch under flat names, as trackers want them."""
    return {k: v for k, v in flat(line).items() if isinstance(v, (int, float))}


def flat(nested: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return a nested dict under dotted names; a list becomes its entries, counted from 0."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, list):
            value = {str(number): entry for number, entry in enumerate(value)}
        if isinstance(value, dict):
            found |= flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def result(
    recipe: Recipe, at: Position, best: dict[str, Any], experiment: Experiment
) -> dict[str, Any]:
    """Return what result.json holds."""
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
        **circumstances(recipe, experiment),
        "images_per_second": speeds[len(speeds) // 2],
    }
    if experiment.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(experiment.device)
        found["peak_gpu_memory_gb"] = round(peak / 1e9, 2)
    return found


def circumstances(recipe: Recipe, experiment: Experiment) -> dict[str, Any]:
    """Return what a result is about: seed, data, network, and what it was measured on."""
    measured = (experiment.measured or ["nothing"])[0]
    return {
        "seed": recipe.seed,
        "data": recipe.data.name,
        "backbone": recipe.backbone.name,
        "embedding_size": recipe.backbone.embedding_size,
        "num_classes": experiment.num_classes,
        "measured_on": "held-out training classes" if measured == "valid" else measured,
    }


def write(
    run: Run,
    recipe: Recipe,
    found: dict[str, Any],
    history: Sequence[dict[str, Any]],
    *,
    pictures: bool = True,
) -> None:
    """Write pictures, card and, last, the result: where it is, the run is complete."""
    if pictures:
        _draw(run, recipe, found, history)
    run.write_card(card(recipe, found))
    run.write_result(found)


def _draw(
    run: Run, recipe: Recipe, found: dict[str, Any], history: Sequence[dict[str, Any]]
) -> None:
    from weiss import figures

    title = f"{LOSSES[recipe.loss.name].title} on {recipe.data.name}, seed {recipe.seed}"
    try:
        figures.learning_curves(
            history,
            run.plots / "learning_curves.png",
            best_epoch=found["epoch"] if "map_at_r" in found else None,
            warmup_epochs=recipe.train.warmup_epochs,
            title=title,
        )
        if any(line.get("order") for line in history):
            figures.order_parameters(history, run.plots / "order_parameters.png", title=title)
    except ImportError:
        warnings.warn(
            "matplotlib is not installed: the run has no pictures. They can be drawn later from "
            "its metrics.jsonl.",
            stacklevel=3,
        )
