"""The format of summary.json, which benches and studies write and reports read.

Scores are fractions, but for the best epoch and costs. A score that is absent has no entry; one of
a single run has no interval.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weiss.evaluation.metrics import TITLES
from weiss.evaluation.statistics import t_interval

SUMMARY = "summary.json"
FORMAT = 1
"""The version that is written and understood."""
BENCHES = ("traditional", "reality-check")
STUDIES = ("dimension", "batch-size", "beta-delta", "regularisation", "fields")
MEASURES = ("classes", "breakdown")
"""Studies of the losses themselves."""
KINDS = (*BENCHES, *STUDIES, *MEASURES)
UNTRAINED = "untrained"
"""The loss of a row without training."""
SCORES = tuple(TITLES)
"""The metrics that summaries and tables hold."""
EPOCH = "epoch"
"""The score of a row that is no fraction: the best epoch, counted from 1."""
FEW_PAIRS = 5
"""A test of fewer pairs is not reliable, whatever its p-value."""


def summarised(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return values, mean and 95 % t-interval; None without any, no interval of a single one.

    Args:
        values: one per repetition; those that are None are absent.
    """
    there = [float(value) for value in values if value is not None]
    if not there:
        return None
    if len(there) == 1:
        return {"values": there, "mean": there[0], "low": None, "high": None}
    interval = t_interval(np.array(there))
    ends = {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return {"values": there, **ends}


def by_repetition(row: Mapping[str, Any], metric: str) -> dict[int, float]:
    """Return the values of a row's score by the number of the repetition; none if it has none."""
    values = (row.get("scores", {}).get(metric) or {}).get("values", [])
    numbers = row.get("repetitions", [])
    # If a value is absent, the numbers of the others are unknown.
    return dict(zip(numbers, values, strict=True)) if len(values) == len(numbers) else {}
