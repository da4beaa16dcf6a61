"""The paper's numbers, to show beside the measured ones; in per cent.

They are those of the paper's tables, stored in `published.json`: BN-Inception on four data sets.
`published` returns None for what the paper does not have.
"""

import json
from functools import cache
from importlib import resources
from typing import Any

from weiss.backbones.trained_part import ALL
from weiss.reporting.reading import HELD_OUT, Row, Score, Summary

NETWORK = "bn_inception"
"""The short name of the paper's network."""
NETWORK_TITLE = "BN-Inception"
EMBEDDING_SIZES = {"traditional": 512, "batch-size": 512, "regularisation": 512}
EMBEDDING_SIZES["reality-check"] = 128
BENCHES = {"traditional": "traditional", "reality-check": "mlrc"}
STUDIES = {"batch-size": "batch_size", "regularisation": "regularisation"}
"""The names in the file, by the kind of the comparison; the paper only draws other studies."""
PARTS = {"separated": "separated_128", "concatenated": "concatenated_512"}


def source() -> str:
    """Return the source of the numbers, for a caption."""
    return str(_file()["source"])


def published(
    summary: Summary, row: Row, metric: str = "map_at_r", *, at: Any = None
) -> Score | None:
    """Return the paper's mean over ten runs for the loss of a row, in per cent, or epochs.

    None if the paper has no such number, the settings of the row were changed, or its scores are
    not those of the test set.

    Args:
        summary: of the comparison.
        row: of the summary.
        metric: ``"map_at_r"`` or ``"epoch"``; of the reality check ``"separated.map_at_r"``,
            ``"concatenated.precision_at_1"`` and so on.
        at: the value of the axis, in a study.

    Example:
        >>> published({"kind": "traditional", "data": "cub"}, {"loss": "mf_cwms"}).mean
        25.3
    """
    kind, data = str(summary.get("kind")), str(summary.get("data"))
    names = {short: name for name, short in _file()["short_names"].items()}
    loss = names.get(row["loss"], "")
    if row.get("changes") or summary.get("measured_on") == HELD_OUT:
        return None
    if kind in BENCHES:
        part, dot, name = metric.partition(".")
        keys = [BENCHES[kind], data, loss, f"{PARTS.get(part, part)}.{name}" if dot else metric]
    elif kind in STUDIES and metric == "map_at_r" and isinstance(at, int | float):
        # 100.0 and 100 are the same value; the file's keys are "100".
        keys = [STUDIES[kind], loss, data, f"{at:g}"]
    else:
        return None
    found: Any = _file()
    for key in keys:
        found = found.get(key, {})
    if not found:
        return None
    mean, half = found["mean"], found["ci95"]
    return Score((), mean, mean - half, mean + half)


def difference_in_words(summary: Summary) -> str:
    """Return how the paper's network, what trains of it, regulariser and choice of epoch differ."""
    backbone, size = summary.get("backbone"), summary.get("embedding_size")
    kind = str(summary.get("kind"))
    expected = EMBEDDING_SIZES.get(kind)
    on_test = summary.get("selected_on", "test") == "test" or kind == "reality-check"
    words = "" if on_test else " In the paper the test set chose the epoch."
    if kind == "regularisation" and any(map(_is_scaled_as_printed, summary.get("rows") or ())):
        words += (
            " The paper's numbers of MFCWMS were made with its released program, whose regulariser "
            "is the printed one divided by beta squared (--set loss.reg_scale=released); here it "
            "is as printed, so that the same weight is beta squared times stronger."
        )
    part = (summary.get("recipe") or {}).get("backbone", {}).get("train", ALL)
    if part != ALL:
        words += f" In the paper the whole network trains, here not (backbone.train = {part!r})."
    if backbone != NETWORK:
        return (
            f"{words} The paper's network is {NETWORK_TITLE}, the one here is {backbone}: they "
            "are not the same network, so the numbers cannot be compared directly."
        )
    if expected is not None and size != expected:
        return f"{words} The paper's network has {expected} dimensions, the one here {size}."
    return words


def _is_scaled_as_printed(row: Row) -> bool:
    """Return whether a row's regulariser is MFCWMS's without the division by beta squared."""
    settings = row.get("settings") or {}
    return row.get("loss") == "mf_cwms" and settings.get("reg_scale", "paper") == "paper"


@cache
def _file() -> dict[str, Any]:
    text = resources.files("weiss.reporting").joinpath("published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
