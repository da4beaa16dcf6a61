"""The lines that a run prints."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from weiss._base.progress import duration
from weiss.backbones import Embedder
from weiss.evaluation.metrics import TITLES
from weiss.losses import LOSSES
from weiss.runs import Recipe, Train
from weiss.runs.experiment import Experiment
from weiss.runs.gain import gain_in_words, start_word, what_to_try

RECENT = 10
"""Epochs that an estimate looks at: some with and some without an evaluation."""
WORTH_SAYING = 60.0
"""Seconds: a shorter rest is not printed."""


def opening(experiment: Experiment, model: Embedder, folder: Path, least: float) -> str:
    """Return the lines at the beginning of a run; ``least`` is what its loss cannot fall below."""
    recipe = experiment.recipe
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    measured = {
        "test": "the test set (the best epoch is chosen on it, as in the paper)",
        "valid": "held-out training classes",
        None: "nothing: the data have no test part of two classes or more",
    }[experiment.measured]
    shown = f"; losses are shown above their least value, {least:.4f}" if least else ""
    return (
        f"{LOSSES[recipe.loss.name].title} on {recipe.data.name}: "
        f"{experiment.pipeline.describe()}\n"
        f"{recipe.backbone.name}, {parameters:.1f} million parameters, to "
        f"{recipe.backbone.embedding_size} dimensions; {len(experiment.train_rows):,} images of "
        f"{experiment.num_classes:,} classes train, {experiment.steps} batches of "
        f"{recipe.train.batch_size} an epoch\n"
        f"measured on {measured}; writing to {folder}{shown}"
    )


def start_line(recipe: Recipe, metrics: dict[str, Any], seconds: float) -> str:
    """Return epoch 0 in one line: the network before training, without its head."""
    epochs = recipe.train.epochs
    named = (f"{title} {100 * metrics[name]:5.2f}" for name, title in TITLES.items())
    return "  ".join(
        [
            f"epoch {0:{len(str(epochs))}d}/{epochs}",
            f"{start_word(recipe)}, without a head",
            *named,
            f"{seconds:.1f} s",
        ]
    )


def features_line(recipe: Recipe, experiment: Experiment, count: int, seconds: float) -> str:
    """Return a line about the features that a run trains on; ``count`` were not kept before."""
    views, train = recipe.augment.views, len(experiment.train_rows)
    number = len(experiment.table) + views * train
    shown = f" and {views} random crops of each of {train:,}" if views else ""
    return (
        f"trains on features of the frozen trunk, of {len(experiment.table):,} images{shown}: "
        f"{number - count:,} were kept, {count:,} computed in {seconds:.0f} s"
    )


def seconds_left(history: Sequence[dict[str, Any]], settings: Train) -> float:
    """Estimate the rest of a run from the epochs that it has done, evaluations included.

    Warm-up epochs are counted by warm-up epochs, the others by the others, as soon as there are
    any: their times differ. Of each kind the last ones count, since a run may have been resumed
    elsewhere. Early stopping may end it before.
    """
    done, warm = len(history), settings.warmup_epochs
    first = [float(line["seconds"]) for line in history[:warm][-RECENT:]]
    later = [float(line["seconds"]) for line in history[warm:][-RECENT:]]
    if not first + later:
        return 0.0
    in_warmup, after = max(warm - done, 0), settings.epochs - max(warm, done)
    return in_warmup * mean(first or later) + after * mean(later or first)


def epoch_line(
    line: dict[str, Any], epochs: int, least: float, *, is_best: bool, left: float = 0.0
) -> str:
    """Return one epoch in one line, with its loss above the least value.

    ``left`` are the seconds that the rest is expected to take.
    """
    width = len(str(epochs))
    words = [f"epoch {line['epoch']:{width}d}/{epochs}", f"loss {line['loss'] - least:8.4f}"]
    for name, title in TITLES.items():
        if name in line.get("evaluation", {}):
            words.append(f"{title} {100 * line['evaluation'][name]:5.2f}")
    if "skipped" in line:
        words.append(f"skipped {100 * line['skipped']:.1f} %")
    words.append(f"{line['seconds']:.1f} s ({line['images_per_second']:,.0f} images/s)")
    if line["phase"] == "warm-up":
        words.append("warm-up")
    if left >= WORTH_SAYING:
        words.append(f"{duration(left)} left")
    return "  ".join([*words, *(["best so far"] if is_best else [])])


def closing(result: dict[str, Any], recipe: Recipe, folder: Path) -> str:
    """Return the lines at the end of a run."""
    lines = []
    if scores := _scores(result):
        lines.append(f"best epoch {result['epoch']}: {scores} on {result['measured_on']}")
    if "test" in result:
        lines.append(f"its network on the test set: {_scores(result['test'])}")
    lines += _prefix_lines(result)
    lines += filter(None, (gain_in_words(result), what_to_try(result, recipe)))
    lines.insert(0, f"{result['seconds']:.0f} s in all. Look at {folder}")
    return "\n".join(lines)


def _prefix_lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the scores of each prefix of the embedding; on the test set where it was measured."""
    tested = result.get("test_dimensions")
    where = "the test set" if tested else result["measured_on"]
    for size, found in (tested or result.get("dimensions", {})).items():
        yield f"  at {size} dimensions: {_scores(found)} on {where}"


def _scores(found: dict[str, Any]) -> str:
    named = ((title, found[name]) for name, title in TITLES.items() if name in found)
    return ", ".join(f"{title} {100 * score:.2f}" for title, score in named)
