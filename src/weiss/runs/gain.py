"""What training brought: MAP@R of the network before it and after it, on the same queries.

The network before training has no head: its embedding is the pooled features of the trunk
(`weiss.backbones.embedder.WithoutHead`). Queries of one class share their relevant items and are
not independent, so that the interval of the difference is one over classes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss.evaluation.metrics import TITLES
from weiss.evaluation.retrieval import Retrieval
from weiss.evaluation.statistics import group_interval
from weiss.runs.recipe import Recipe

METRIC = "map_at_r"
FEW_CLASSES = 5
"""With fewer classes an interval over classes says nothing."""


def start_word(recipe: Recipe) -> str:
    """Return what a network is before training: ``"pretrained"``, or ``"untrained"`` if random."""
    return "pretrained" if recipe.backbone.is_pretrained else "untrained"


def by_class(found: Retrieval) -> dict[str, list[Any]]:
    """Return the classes of the queries, and for each the sum of MAP@R and the number of queries.

    Empty for items with several classes each, which cannot be drawn class by class.
    """
    if found.query_labels.ndim != 1:
        return {}
    classes, place = np.unique(found.query_labels, return_inverse=True)
    sums = np.bincount(place, weights=found.per_query[METRIC])
    return {
        "classes": classes.tolist(),
        "sums": sums.tolist(),
        "counts": np.bincount(place).tolist(),
    }


def gain_between(
    before: Mapping[str, list[Any]], after: Mapping[str, list[Any]], trained: Array
) -> dict[str, float] | None:
    """Return the difference of MAP@R and its 95 % interval over classes.

    Args:
        before: `by_class` of the network before training.
        after: `by_class` of the trained network.
        trained: the labels of the classes that it trained on.

    Returns:
        ``mean``, ``low``, ``high``, the number of ``classes`` and how many are ``unseen``; without
        the ends for fewer than five classes. None if the queries are not the same, or not known.
    """
    if not before or not after or before["counts"] != after["counts"]:
        return None
    difference, counts = (
        np.array(after["sums"]) - np.array(before["sums"]),
        np.array(before["counts"]),
    )
    num_unseen = int((~np.isin(np.array(before["classes"]), trained)).sum())
    found = {"mean": float(difference.sum() / counts.sum())}
    if len(counts) >= FEW_CLASSES:
        ends = group_interval(difference, counts)
        found |= {"low": ends.low, "high": ends.high}
    return {**found, "classes": len(counts), "unseen": num_unseen}


def gain_in_words(result: Mapping[str, Any]) -> str:
    """Return in one sentence what training brought; empty for a result that does not know.

    Example:
        >>> gain = {"mean": 0.218, "low": 0.15, "high": 0.28, "classes": 8, "unseen": 8}
        >>> before = {"start": "pretrained", "before": {"map_at_r": 0.695}}
        >>> gain_in_words({**before, "map_at_r": 0.913, "gain": gain})[:66]
        'pretrained 69.5 -> trained 91.3 MAP@R on 8 classes it never saw (+'
    """
    before, after, gain = result.get("before") or {}, result.get(METRIC), result.get("gain")
    if METRIC not in before or after is None:
        return ""
    words = (
        f"{result.get('start', 'before')} {100 * before[METRIC]:.1f} -> trained "
        f"{100 * after:.1f} {TITLES[METRIC]}"
    )
    if not gain:
        return f"{words}."
    words += f" on {_classes(int(gain['classes']), int(gain['unseen']))}"
    mean, low, high = gain["mean"], gain.get("low"), gain.get("high")
    if low is None or high is None:
        words += f" ({100 * mean:+.1f}; too few classes for an interval)"
    else:
        ends = f"{100 * low:+.1f} to {100 * high:+.1f}"
        chance = ", which may be chance" if low <= 0 <= high else ""
        words += f" ({100 * mean:+.1f}; 95 % interval over these classes {ends}{chance})"
    is_worse = mean < 0 and high is not None and high < 0
    return f"{words}{': training made it worse' if is_worse else ''}."


def what_to_try(result: Mapping[str, Any], recipe: Recipe) -> str:
    """Return what to do after a training that brought nothing; empty after any other."""
    if (result.get("gain") or {}).get("mean", 0.0) >= 0:
        return ""
    backbone, lr = recipe.backbone, recipe.optim.lr
    if not backbone.is_pretrained:
        return (
            f"Try another learning rate (--set optim.lr={lr / 10:g} or {lr * 10:g}), more epochs, "
            "another loss, or a pretrained network."
        )
    options = f" --weights {backbone.weights}" if backbone.weights else ""
    options += f" --pooling {backbone.pooling}" if backbone.pooling else ""
    alone = ", training the head alone (--frozen)" if backbone.train in ("all", "lora") else ""
    return (
        "The network before training can be used as it is: weiss index IMAGES --out INDEX "
        f"--backbone {backbone.name}{options}. Or try a lower learning rate (--set "
        f"optim.lr={lr / 10:g}){alone}, or more classes to train on."
    )


def _classes(number: int, unseen: int) -> str:
    counted = "1 class" if number == 1 else f"{number:,} classes"
    if unseen == number:
        return f"{counted} it never saw"
    if not unseen:
        return f"other images of {counted} it trained on"
    return f"{counted}, {unseen:,} of which it never saw"
