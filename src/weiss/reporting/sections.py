"""The parts of a report about one comparison: scores, pictures, search, significance, costs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weiss import figures
from weiss.evaluation.metrics import TITLES
from weiss.reporting.markdown import Document
from weiss.reporting.pictures import draw_picture
from weiss.reporting.published import published_for_picture
from weiss.reporting.reading import Comparison, axis_value, is_reference, mean_of
from weiss.reporting.tables import (
    MINUS,
    Cell,
    Column,
    Row,
    Table,
    comparison_tables,
    from_columns,
    score_cell,
    settings_text,
    significant,
)
from weiss.runs.folder import RESULT, Run
from weiss.runs.summaries import FEW_PAIRS

MOST_CURVES = 8
"""More averaged learning curves than these cannot be told apart."""
MOST_TESTS = 20
"""Of more tests than these only those by the main metric are shown."""
SIGNIFICANT = 0.05
COSTS = (
    "loss",
    "runs",
    "seconds, mean",
    "seconds, total",
    "epochs",
    "images per second",
    "peak GPU memory, GB",
    "seconds of the search",
)


def add_scores(document: Document, comparison: Comparison) -> None:
    """Add the question, how far it is answered, the tables of scores, and what is missing."""
    summary = comparison.summary
    if summary.get("question"):
        document.paragraph(str(summary["question"]))
    if not summary.get("is_complete", True):
        document.paragraph(
            f"Not complete: {summary.get('num_done')} of {summary.get('num_units')} units are "
            "done. What follows is what there is so far."
        )
    for table in comparison_tables(comparison):
        document.table(table)
    missing = {
        **{unit: why for row in comparison.rows for unit, why in row.get("failed", {}).items()},
        **{run: f"unfinished: {far}" for run, far in comparison.unfinished.items()},
    }
    if missing:
        document.table(
            from_columns(
                [Column("unit", list(missing)), Column("why", list(missing.values()))],
                "Units without a result; no score above contains them.",
            )
        )


def add_pictures(document: Document, comparison: Comparison, name: str) -> None:
    """Add the picture of a comparison, its learning curves and how its scores are spread."""
    summary = comparison.summary
    beside = published_for_picture(summary) or None
    num_values = sum(len(each) for each in _spread(comparison, "map_at_r").values())
    # A dot by itself shows nothing that a number does not.
    if comparison.is_given or num_values > 1:
        document.figure(
            f"{name}-picture", lambda path: draw_picture(summary, path, published=beside)
        )
    _add_curves(document, comparison, name)
    boxes = _spread(comparison, "precision_at_1")
    if comparison.kind == "traditional" and any(len(values) > 1 for values in boxes.values()):
        levels = _levels(comparison, "precision_at_1")

        def draw(path: Path) -> str:
            figures.box_plots(boxes, path, ylabel="P@1 (%)", levels=levels)
            return "P@1 of each run, in per cent."

        document.figure(f"{name}-precision-at-1", draw)


def _spread(comparison: Comparison, metric: str) -> dict[str, list[float]]:
    found = {
        comparison.label(row): (row.get("scores", {}).get(metric) or {}).get("values", [])
        for row in comparison.trained
    }
    return {label: [100 * value for value in values] for label, values in found.items() if values}


def _levels(comparison: Comparison, metric: str) -> dict[str, float]:
    return {
        row["title"]: 100 * mean
        for row in comparison.rows
        if is_reference(row) and (mean := mean_of(row, metric)) is not None
    }


def _add_curves(document: Document, comparison: Comparison, name: str) -> None:
    # What has not been evaluated yet keeps its place, and with it every curve its looks.
    curves = {
        label: [lines for lines in runs if any(map(_was_evaluated, lines))]
        for label, runs in comparison.metrics().items()
    }
    if not 0 < sum(map(bool, curves.values())) <= MOST_CURVES:
        return
    # The untrained network's score is one on the test set, which these curves may not be on.
    chosen = comparison.summary.get("selected_on", comparison.summary.get("measured_on"))
    is_test = comparison.kind == "traditional" and chosen == "test"
    levels = _levels(comparison, "map_at_r") if is_test else {}
    what = "the test set" if chosen == "test" else "held-out classes"

    def draw(path: Path) -> str:
        figures.averaged_curves(curves, path, levels=levels)
        band = any(len(lines) > 1 for lines in curves.values())
        about = "mean over the runs that reached the epoch, shaded from the lowest to the highest"
        words = f"MAP@R on {what} at each evaluation" + (f": {about}." if band else ".")
        return words + (" Dashed: before training." if levels else "")

    document.figure(f"{name}-curves", draw)


def _was_evaluated(line: Mapping[str, Any]) -> bool:
    return (line.get("evaluation") or {}).get("map_at_r") is not None


def add_search(document: Document, comparison: Comparison, name: str) -> None:
    """Add how the search for settings went, what it found, and every trial that came to nothing."""
    rows = [row for row in comparison.trained if row.get("trials")]
    if not rows:
        return
    document.heading("The search for settings", 3)
    found = [row for row in rows if row.get("best_settings")]
    if found:
        document.table(_best_settings(found))
    values = {row["title"]: [_drawn(t) for t in _in_order(row["trials"])] for row in rows}
    pruned = {
        row["title"]: {at for at, t in enumerate(_in_order(row["trials"])) if t.get("pruned")}
        for row in rows
    }

    def draw(path: Path) -> str:
        figures.search_history(values, path, pruned=pruned)
        words = "Mean validation MAP@R of each trial, and the best so far."
        if any(value is None for each in values.values() for value in each):
            words += " A cross is a trial that failed, or is not done."
        if any(pruned.values()):
            words += " A ring is a trial of which folds were left out; it cannot win."
        return words

    document.figure(f"{name}-search", draw)
    kinds = ("failed", "pruned")
    lost = {
        kind: [[t for t in _in_order(row["trials"]) if t.get(kind)] for row in rows]
        for kind in kinds
    }
    spaces = [
        ", ".join(f"{key} {_range(space)}" for key, space in row.get("search_space", {}).items())
        for row in rows
    ]
    columns = [Column("loss", [row["title"] for row in rows])]
    columns.append(Column("trials", [str(len(row["trials"])) for row in rows]))
    columns += [Column(kind, [str(len(trials)) for trials in lost[kind]]) for kind in kinds]
    columns.append(Column("searched", [space or None for space in spaces]))
    document.table(from_columns(columns, "Trials of the search, and the ranges that it drew from."))
    listed = [
        (row["title"], str(trial["number"]), kind, settings_text(trial["settings"]), trial[kind])
        for at, row in enumerate(rows)
        for kind in kinds
        for trial in lost[kind][at]
    ]
    if listed:
        headers = ("loss", "trial", "what", "settings", "why")
        document.table(
            from_columns(
                [
                    Column(header, [str(line[at]) if line[at] else None for line in listed])
                    for at, header in enumerate(headers)
                ],
                "Every trial that failed or was pruned.",
            )
        )


def _drawn(trial: Mapping[str, Any]) -> float | None:
    """Return the value of a trial as it is drawn: one that failed has none, though it scores 0."""
    return None if trial.get("failed") else trial.get("value")


def _in_order(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(trials, key=lambda trial: trial["number"])


def _range(space: Mapping[str, Any]) -> str:
    if "low" not in space or "high" not in space:
        return str(dict(space))
    ends = f"{axis_value(space['low'])} to {axis_value(space['high'])}"
    return f"{ends} (log)" if space.get("log") else ends


def _best_settings(rows: Sequence[Row]) -> Table:
    best: list[Mapping[str, Any]] = [
        next((t for t in row["trials"] if t["number"] == row.get("best_trial")), {}) for row in rows
    ]
    columns = [
        Column("loss", [row["title"] for row in rows]),
        Column("trial", [str(trial["number"]) if trial else None for trial in best]),
        Column(
            "validation MAP@R",
            [score_cell({"mean": trial.get("value")}, decimals=2) for trial in best],
        ),
        Column("settings", [settings_text(row["best_settings"]) for row in rows]),
    ]
    caption = "Best settings found, by the mean MAP@R (per cent) on the classes that each fold held"
    return from_columns(columns, f"{caption} out; the test set had no part in it.")


def add_significance(document: Document, comparison: Comparison) -> None:
    """Add the paired tests and how to read them."""
    tests = comparison.summary.get("tests", ())
    if not tests:
        return
    # Many losses have many pairs: the metric that decides is shown, the others are in the summary.
    all_tests = len(tests)
    if all_tests > MOST_TESTS:
        tests = [test for test in tests if test["metric"] == comparison.main_metric] or tests
    document.heading("Significance", 3)
    document.paragraph(
        "Each line compares two rows of the table over the repetitions that they share, pair by "
        "pair. The difference is the first less the second, in points of per cent, with its 95 % "
        "interval. p is how often chance alone would give a difference at least as large, by "
        "Student's paired test and, without assuming a bell curve, by Wilcoxon's. Among many tests "
        f"some are below {SIGNIFICANT} by luck; Holm's correction makes up for it: read that "
        "column."
    )
    fewest = min(int(test.get("num_pairs") or 0) for test in tests)
    if fewest < FEW_PAIRS:
        document.paragraph(
            f"Mind: some tests rest on {fewest} pair{'s' * (fewest != 1)}. With fewer than "
            f"{FEW_PAIRS} a small p may be luck with the spread, and a large one says nothing: "
            "nothing is printed bold there, and these tests are corrected apart from the others."
        )
    titles = {row["name"]: comparison.label(row) for row in comparison.rows}
    corrected = [test.get("corrected") for test in tests]
    columns = [
        Column("metric", [_metric_title(test["metric"]) for test in tests]),
        Column("first", [titles.get(test["first"], test["first"]) for test in tests]),
        Column("second", [titles.get(test["second"], test["second"]) for test in tests]),
        Column("difference", [_difference(test) for test in tests]),
        Column("p", [p_text(test.get("p_value")) for test in tests]),
        Column("p, corrected", [p_text(p) for p in corrected]),
        Column("p, Wilcoxon", [p_text(test.get("wilcoxon")) for test in tests]),
        Column("pairs", [str(test.get("num_pairs")) for test in tests]),
    ]
    caption = f"Paired tests; bold: below {SIGNIFICANT} after Holm's correction."
    if len(tests) < all_tests:
        caption += " Tests by other metrics are in summary.json."
    table = from_columns(columns, caption)
    many = [int(test.get("num_pairs") or 0) >= FEW_PAIRS for test in tests]
    bold = {(at, 5) for at, p in enumerate(corrected) if p is not None and p < SIGNIFICANT}
    bold = {(at, column) for at, column in bold if many[at]}
    document.table(replace(table, best=frozenset(bold)))


def p_text(p: float | None) -> Cell:
    """Return a p-value to three digits; small ones as what they are below."""
    if p is None or p != p:
        return None
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def points(fraction: float) -> str:
    """Return a difference of fractions in points of per cent, with its sign."""
    return f"{100 * fraction:+.2f}".replace("-", MINUS)


def _difference(test: Mapping[str, Any]) -> Cell:
    if test.get("difference") is None:
        return None
    low, high = test.get("low"), test.get("high")
    shown = points(test["difference"])
    return shown if low is None or high is None else f"{shown} ({points(low)} to {points(high)})"


def _metric_title(metric: str) -> str:
    part, _, name = metric.rpartition(".")
    title = TITLES.get(name, name)
    return f"{title}, {part}" if part else title


def add_costs(document: Document, comparison: Comparison) -> None:
    """Add what the runs took: time, speed, memory."""
    lines: list[list[Cell]] = []
    for row in comparison.trained:
        results = [result for _, result in comparison.results(row)]
        known = (row.get("scores", {}).get("seconds") or {}).get("values", [])
        seconds = [r["seconds"] for r in results if "seconds" in r] or known
        if not seconds:
            continue
        memory = [r["peak_gpu_memory_gb"] for r in results if "peak_gpu_memory_gb" in r]
        lines.append(
            [
                comparison.label(row),
                str(len(seconds)),
                significant(sum(seconds) / len(seconds)),
                significant(sum(seconds)),
                _mean([r["epochs"] for r in results if "epochs" in r]),
                _mean([r["images_per_second"] for r in results if "images_per_second" in r]),
                significant(max(memory)) if memory else None,
                _search_seconds(comparison.folder / row["name"]),
            ]
        )
    if not lines:
        return
    columns = [
        Column(header, [line[at] for line in lines])
        for at, header in enumerate(COSTS)
        if any(line[at] for line in lines)
    ]
    document.heading("Costs", 3)
    document.table(
        from_columns(
            columns,
            "What the finished runs took: seconds of a run and of all of them, epochs until it "
            "stopped, images trained on a second. Runs that shared a machine slowed each other "
            "down: this is what it took, not what a loss costs; for that see weiss study classes.",
        )
    )


def _mean(values: Sequence[float]) -> Cell:
    return significant(sum(values) / len(values)) if values else None


def _search_seconds(folder: Path) -> Cell:
    runs = [Run(path.parent) for path in sorted(folder.glob(f"trial-*/fold-*/{RESULT}"))]
    seconds = [run.result().get("seconds", 0.0) for run in runs if run.exists()]
    return significant(sum(seconds)) if seconds else None
