"""What captions of scores say: the unit, the interval, on what, beside what."""

from collections.abc import Mapping
from typing import Any

from weiss.reporting.published import difference_in_words, source
from weiss.reporting.reading import Comparison

Row = Mapping[str, Any]


def num_values(row: Row, name: str) -> int:
    """Return how many values a score of a row rests on."""
    return len((row.get("scores", {}).get(name) or {}).get("values", ()))


def how_measured(comparison: Comparison, *, has_paper: bool) -> str:
    """Return what all captions of scores say: unit, interval, on what, beside what."""
    most = max((num_values(row, comparison.main_metric) for row in comparison.trained), default=0)
    what = "repeats" if comparison.kind == "reality-check" else "runs"
    words = "Per cent; "
    if most > 1:
        words += (
            f"mean ± half the width of the 95 % t-interval of the mean over up to {most} {what}"
        )
        words += "; without ± there is one value only."
    else:
        words += "one run each, so no interval can be given."
    measured = comparison.summary.get("measured_on")
    chosen = comparison.summary.get("selected_on", measured)
    if measured == "test" and comparison.kind != "reality-check" and comparison.is_given:
        words += " Measured on the test set"
        words += (
            ", which also chose the epoch, as in the paper."
            if chosen == "test"
            else (f"; the epoch was chosen on {chosen}.")
        )
    elif measured and measured != "nothing" and comparison.kind != "reality-check":
        words += f" Measured on: {measured}."
    words += _about_epochs(comparison)
    if has_paper:
        words += f" Paper: {source()}.{difference_in_words(comparison.summary)}"
    return words


def _about_epochs(comparison: Comparison) -> str:
    """Say so if every run was at its best in the end: longer training might change the order."""
    asked = ((comparison.summary.get("recipe") or {}).get("train") or {}).get("epochs")
    was_last = [
        value == row.get("changes", {}).get("train.epochs", asked)
        for row in comparison.trained
        for value in (row.get("scores", {}).get("epoch") or {}).get("values", ())
    ]
    if asked is None or not was_last or not all(was_last):
        return ""
    return " The best epoch was the last in every run: none had stopped improving."
