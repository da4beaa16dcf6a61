"""Which rows of a comparison differ, and how sure that is."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from weiss.evaluation.statistics import holm, paired_t_test, wilcoxon_test
from weiss.runs.summaries import FEW_PAIRS, by_repetition


def compared(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Test rows against each other, paired by repetition, with Holm's correction.

    Two rows are tested if they differ in one thing alone: in the loss and its own settings, in how
    one loss is trained, or in the place on the axes.

    Args:
        rows: of a summary; those that have no score are left out.
        metrics: the scores to test by; each is a family of its own for the correction. Pairs of
            rows with too few repetitions to decide anything are corrected apart: a baseline with
            two runs should not cost the others their significance.

    Returns:
        An entry for each metric and pair that have two repetitions in common or more.
    """
    found = []
    for metric in metrics:
        family = []
        for first, second in combinations([row for row in rows if metric in row["scores"]], 2):
            if not _differ_in_one_thing(first, second):
                continue
            one, other = by_repetition(first, metric), by_repetition(second, metric)
            common = sorted(set(one) & set(other))
            if len(common) < 2:
                continue
            pairs = [np.array([side[n] for n in common]) for side in (one, other)]
            test = paired_t_test(*pairs)
            family.append(
                {
                    "metric": metric,
                    "first": first["name"],
                    "second": second["name"],
                    "difference": test.difference,
                    "low": test.low,
                    "high": test.high,
                    "p_value": test.p_value,
                    "wilcoxon": wilcoxon_test(*pairs),
                    "num_pairs": len(common),
                }
            )
        for decides in (True, False):
            part = [entry for entry in family if (entry["num_pairs"] >= FEW_PAIRS) == decides]
            for entry, corrected in zip(part, holm([e["p_value"] for e in part]), strict=True):
                entry["corrected"] = corrected
        found += family
    return found


def _differ_in_one_thing(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    changes = [row.get("changes", {}) for row in (first, second)]
    if first["at"] != second["at"]:
        return bool(first["loss"] == second["loss"] and changes[0] == changes[1])
    of_loss, of_training = (
        [{k: v for k, v in own.items() if k.startswith("loss.") == is_of_loss} for own in changes]
        for is_of_loss in (True, False)
    )
    is_same_loss = first["loss"] == second["loss"] and of_loss[0] == of_loss[1]
    return is_same_loss or of_training[0] == of_training[1]
