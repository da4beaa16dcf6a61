"""The paper's numbers, to show beside the measured ones; in per cent.

They are those of the paper's tables, stored in `published.json`: BN-Inception on four data sets.
Functions return None for what the paper does not have.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

NETWORK = "bn_inception"
"""The short name of the paper's network."""
NETWORK_TITLE = "BN-Inception"
EMBEDDING_SIZES = {"traditional": 512, "batch-size": 512, "regularisation": 512}
EMBEDDING_SIZES["reality-check"] = 128
TABLES = {"batch-size": "batch_size", "regularisation": "regularisation"}
"""The names in the file of studies over one axis, by their kind."""
PARTS = {"separated": "separated_128", "concatenated": "concatenated_512"}


@dataclass(frozen=True)
class Published:
    """A mean over ten runs, in per cent (or epochs), and half the width of its 95 % interval."""

    mean: float
    half_width: float


def source() -> str:
    """Return the source of the numbers, for a caption."""
    return str(_file()["source"])


def published(kind: str, data: str, loss: str, metric: str) -> Published | None:
    """Return the paper's number for a loss under one of its two protocols.

    Args:
        kind: ``"traditional"`` or ``"reality-check"``.
        data: short name of the data set.
        loss: short name of the loss.
        metric: ``"map_at_r"`` or ``"epoch"``; of the reality check ``"separated.map_at_r"``,
            ``"concatenated.precision_at_1"`` and so on.

    Returns:
        The number, or None if the paper has none.

    Example:
        >>> published("traditional", "cub", "mf_cwms", "map_at_r")
        Published(mean=25.3, half_width=0.3)
        >>> published("traditional", "cub", "mf_cwms", "precision_at_1") is None
        True
    """
    table = {"traditional": "traditional", "reality-check": "mlrc"}.get(kind, "")
    part, dot, name = metric.partition(".")
    key = f"{PARTS.get(part, part)}.{name}" if dot else metric
    return _found(table, data, _paper_name(loss), key)


def published_at(kind: str, data: str, loss: str, value: float) -> Published | None:
    """Return the paper's MAP@R for one value of a study's axis.

    Args:
        kind: ``"batch-size"`` or ``"regularisation"``; the paper only draws other studies.
        data: short name of the data set.
        loss: short name of the loss.
        value: of the axis.

    Example:
        >>> published_at("regularisation", "cub", "mf_contrastive", 0.1)
        Published(mean=25.3, half_width=0.3)
    """
    # 100.0 and 100 are the same value; the file's keys are "100".
    return _found(TABLES.get(kind, ""), _paper_name(loss), data, f"{value:g}")


def published_for_picture(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paper's MAP@R for the losses of a comparison, as `draw_picture` takes it.

    Args:
        summary: of the comparison.

    Returns:
        By the title of each loss a `Published`; of a study ``{value: Published}`` for the values
        that were run; of a reality check ``{"separated": Published, "concatenated": Published}``.
        Losses that the paper does not have are not in it.
    """
    kind, data = str(summary.get("kind")), str(summary.get("data"))
    found: dict[str, Any] = {}
    for row in summary.get("rows", ()):
        loss, title = row["loss"], row["title"]
        if row.get("changes"):
            continue  # the paper has other settings
        if kind in TABLES:
            for value in row.get("at", {}).values():
                number = published_at(kind, data, loss, value)
                if number is not None:
                    found.setdefault(title, {})[value] = number
        elif kind == "reality-check":
            for part in PARTS:
                number = published(kind, data, loss, f"{part}.map_at_r")
                if number is not None:
                    found.setdefault(title, {})[part] = number
        else:
            number = published(kind, data, loss, "map_at_r")
            if number is not None:
                found[title] = number
    return found


def difference_in_words(summary: Mapping[str, Any]) -> str:
    """Return how the paper's network, and its choice of the epoch, differ from a comparison's."""
    backbone, size = summary.get("backbone"), summary.get("embedding_size")
    kind = str(summary.get("kind"))
    expected = EMBEDDING_SIZES.get(kind)
    on_test = summary.get("selected_on", "test") == "test" or kind == "reality-check"
    chosen = "" if on_test else " In the paper the test set chose the epoch."
    if backbone != NETWORK:
        return (
            f"{chosen} The paper's network is {NETWORK_TITLE}, the one here is {backbone}: they "
            "are not the same network, so the numbers cannot be compared directly."
        )
    if expected is not None and size != expected:
        return f"{chosen} The paper's network has {expected} dimensions, the one here {size}."
    return chosen


def _paper_name(loss: str) -> str:
    """Return the name that the paper's tables give a loss; empty for a loss they do not have."""
    names: dict[str, str] = {short: name for name, short in _file()["short_names"].items()}
    return names.get(loss, "")


def _found(*keys: str) -> Published | None:
    inside: Any = _file()
    for key in keys:
        inside = inside.get(key) if isinstance(inside, dict) else None
    return Published(inside["mean"], inside["ci95"]) if isinstance(inside, dict) else None


@cache
def _file() -> dict[str, Any]:
    text = resources.files("weiss.reporting").joinpath("published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
