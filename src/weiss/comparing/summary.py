"""The summary of a comparison: its rows and tests, put together from what its folder holds."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base import checks
from weiss._base.files import read_json, replacing
from weiss.comparing.folder import PLAN, read_plan
from weiss.comparing.plan import Plan
from weiss.comparing.reality_check import RealityCheck
from weiss.comparing.run_table import Traditional
from weiss.comparing.studies import STUDIES
from weiss.comparing.units import failures_on_disk, results_on_disk
from weiss.evaluation.statistics import holm, paired_t_test, wilcoxon_test
from weiss.runs import recipe_from_dict, records
from weiss.runs.folder import Run
from weiss.runs.summaries import FEW_PAIRS, FORMAT, SUMMARY, UNTRAINED, by_repetition

PLANS: dict[str, type[Plan]] = {
    Traditional.kind: Traditional,
    RealityCheck.kind: RealityCheck,
    **STUDIES,
}


def plan_from(description: Mapping[str, Any]) -> Plan:
    """Return the plan of a description that `Plan.describe` returned."""
    kind = checks.one_of("kind", description["kind"], PLANS, "a comparison")
    recipe, options = recipe_from_dict(description["recipe"]), description["options"]
    try:
        return PLANS[kind](recipe, options)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the options of a comparison must be those of {kind!r}; got {options!r:.200}. "
            f"Restore its {PLAN}."
        ) from error


def current_summary(out: str | Path) -> dict[str, Any]:
    """Return the summary of the comparison in a folder as it is now; nothing is written.

    If runs were removed from the folder, so that its summary.json has more finished units than the
    folder, that summary is returned.
    """
    out = Path(out)
    held = read_plan(out)
    if held is None:
        raise ValueError(f"{out} must be the folder of a comparison; it holds no {PLAN}.")
    now = summarise(plan_from(held), out)
    path = out / SUMMARY
    try:
        before = records.checked(records.Summary, read_json(path), path) if path.is_file() else {}
    except ValueError as error:
        warnings.warn(f"{error} It is put together again from the folder.", stacklevel=2)
        before = {}
    return now if now["num_done"] >= (before.get("num_done") or 0) else before


def write_summary(plan: Plan, out: Path) -> dict[str, Any]:
    """Write summary.json and return what it holds."""
    found = summarise(plan, out)
    with replacing(out / SUMMARY) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def summarise(plan: Plan, out: Path) -> dict[str, Any]:
    """Return the summary of a comparison (see `weiss.runs.summaries`); nothing is written."""
    done = results_on_disk(plan.ready, out)
    open_units = plan.ready(done)
    rows = plan.rows(done, failures_on_disk(open_units, out))
    recipe = plan.recipe
    has_failed = any(row["failed"] for row in rows)
    held = read_plan(out) or {}
    return {
        "format": FORMAT,
        "kind": plan.kind,
        "title": plan.title,
        "question": plan.question,
        "data": recipe.data.name,
        "backbone": recipe.backbone.name,
        "embedding_size": recipe.backbone.embedding_size,
        "batch_size": recipe.train.batch_size,
        "measured_on": _measured_on(done.values()),
        "selected_on": "test" if recipe.evaluate.on == "test" else "held-out training classes",
        "is_complete": not open_units and not has_failed,
        "num_units": plan.num_units,
        "num_done": len(done),
        "axes": [dict(axis) for axis in plan.axes],
        "rows": rows,
        "tests": significance_tests([r for r in rows if r["loss"] != UNTRAINED], plan.tested),
        "protocol": plan.options,
        "recipe": recipe.as_dict(),
        "command": held.get("command", ""),
        "made_with": _made_with(rows, done, out),
    }


def _measured_on(results: Iterable[Mapping[str, Any]]) -> str:
    """Return what the scores were measured on: the test set if any result has test scores."""
    places = {"test" if "test" in r else str(r.get("measured_on", "")) for r in results} - {""}
    return "test" if "test" in places else (sorted(places) or ["nothing"])[0]


def _made_with(
    rows: Sequence[Mapping[str, Any]], done: Mapping[str, Mapping[str, Any]], out: Path
) -> dict[str, Any]:
    """Return versions and hardware of the first run, or of the first measurement."""
    keys = [*(key for row in rows for key in row["runs"]), *done]
    for run in (Run(out / key) for key in keys):
        with suppress(OSError, ValueError):  # no run, or a damaged recipe
            return dict(run.recipe().get("made_with", {}))
    return next((dict(r["made_with"]) for r in done.values() if "made_with" in r), {})


def significance_tests(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """Test rows against each other, paired by repetition, with Holm's correction.

    Two rows are tested if they have two common repetitions and differ in one thing alone: in the
    loss and its own settings, in how one loss is trained, or in the values of the axes. Each metric
    is a family of its own for the correction. Pairs of rows with too few repetitions to decide
    anything are corrected apart, so that a baseline with two runs does not cost the others their
    significance.
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
