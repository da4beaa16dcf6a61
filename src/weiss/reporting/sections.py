"""The sections of a report about one comparison, each a function that adds to a document.

It is one piece: every section is here, in the order of the report; a new one is a function here and
a line in `weiss.reporting.report`. The tables of scores are in `weiss.reporting.tables`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss import figures
from weiss.evaluation.metrics import TITLES
from weiss.reporting.document import Document
from weiss.reporting.gallery import Looked, Query, class_scores, retrieval_rows
from weiss.reporting.pictures import draw_picture, levels_of
from weiss.reporting.reading import Comparison, Row, axis_value, measured, number, values_of
from weiss.reporting.tables import (
    MINUS,
    Cell,
    Table,
    comparison_tables,
    settings_text,
    significant,
)
from weiss.runs.folder import MODEL, RECIPE, RESULT, Run
from weiss.runs.summaries import EPOCH, FEW_PAIRS, UNTRAINED

Look = Callable[[Path], Looked]
MOST_CURVES = 8
"""More curves than these in one figure cannot be distinguished."""
MOST_TESTS = 20
"""If there are more tests, only those by the main metric are shown."""
NUM_WORST_SHOWN, NUM_WORST, NUM_BEST = 6, 10, 5
NUM_NEIGHBOURS = 10
SEARCHED = ("spaces",)
"""Entries of a protocol that the section on the search shows."""
LEFT_OUT = ("made_with", "seed")
"""Parts of a recipe in which runs of one experiment differ."""
MEANINGS = {
    "class_mean_length": (
        "The length of a class mean is 1 for a class in one point and near 0 for one scattered "
        "over the sphere."
    ),
    "residual": (
        "The residual is the distance of the class vector from the class mean, in the loss's own "
        "distance: 0 is self-consistent, as mean-field theory asks."
    ),
    "violating_share": (
        "Pairs of fields violate where they are closer than their own loss's repulsion reaches."
    ),
}
"""The meaning of each order parameter, for readers who see it for the first time."""
SIGNIFICANT = 0.05


def add_scores(document: Document, comparison: Comparison) -> None:
    """Add the question, the progress, the tables of scores, and the units without a result."""
    summary = comparison.summary
    if summary.get("question"):
        document.paragraph(str(summary["question"]))
    if not summary.get("is_complete", True):
        document.paragraph(
            f"Not complete: {summary.get('num_done')} of {summary.get('num_units')} units are "
            "done. These are the results so far."
        )
    for table in comparison_tables(comparison):
        document.table(table)
    missing = {
        **{unit: why for row in comparison.rows for unit, why in row["failed"].items()},
        **{run: f"unfinished: {far}" for run, far in comparison.unfinished.items()},
    }
    if missing:
        caption = "Units without a result; no score above contains them."
        document.table(Table(("unit", "why"), tuple(missing.items()), caption))


def add_pictures(document: Document, comparison: Comparison, name: str) -> None:
    """Add the picture of a comparison, its learning curves and a box plot of its P@1."""
    summary = comparison.summary
    num_values = sum(len(each) for each in _values(comparison, "map_at_r").values())
    # A single dot shows no more than its number.
    if comparison.is_given or num_values > 1:
        document.figure(
            f"{name}-picture", lambda path: draw_picture(summary, path, with_paper=True)
        )
    _add_curves(document, comparison, name)
    boxes = _values(comparison, "precision_at_1")
    if comparison.kind == "traditional" and any(len(values) > 1 for values in boxes.values()):
        levels, title = levels_of(comparison.rows, "precision_at_1"), TITLES["precision_at_1"]

        def draw(path: Path) -> str:
            figures.box_panels({"": figures.Boxes(boxes, levels)}, path, ylabel=f"{title} (%)")
            return f"{title} of each run, in per cent."

        document.figure(f"{name}-precision-at-1", draw)


def _values(comparison: Comparison, metric: str) -> dict[str, list[float]]:
    """Return by the label of each trained row its values of a score, in per cent."""
    found = {comparison.label(row): values_of(row, metric, 100) for row in comparison.trained}
    return {label: values for label, values in found.items() if values}


def _add_curves(document: Document, comparison: Comparison, name: str) -> None:
    runs = comparison.metrics()
    curves = figures.averages(runs).get("map_at_r", {})
    if not 0 < len(curves) <= MOST_CURVES:
        return
    # The untrained network was measured on the test set; the curves may be on held-out classes.
    chosen = comparison.summary.get("selected_on", comparison.summary.get("measured_on"))
    is_test = comparison.kind == "traditional" and chosen == "test"
    levels = levels_of(comparison.rows, "map_at_r") or _levels_before(comparison)
    levels = levels if is_test else {}
    what = "the test set" if chosen == "test" else "held-out classes"

    def draw(path: Path) -> str:
        figures.averaged_curves(runs, path, levels=levels)
        band = any(curve.num_runs > 1 for curve in curves.values())
        about = "mean over the runs that reached the epoch, shaded from the lowest to the highest"
        words = f"MAP@R on {what} at each evaluation" + (f": {about}." if band else ".")
        return words + (" Dashed: before training." if levels else "")

    document.figure(f"{name}-curves", draw)


def _levels_before(comparison: Comparison) -> dict[str, float]:
    """Return MAP@R of the networks that runs began with, in per cent; of several the highest."""
    found: dict[str, set[float]] = {}
    for row in comparison.trained:
        for _, result in comparison.results(row):
            before = number((result.get("before") or {}).get("map_at_r"))
            if before is not None:
                found.setdefault(result.get("start", UNTRAINED), set()).add(100 * before)
    return {
        start if len(values) == 1 else f"{start}, highest": max(values)
        for start, values in found.items()
    }


def add_order(document: Document, comparison: Comparison, name: str) -> None:
    """Add the order parameters along training, a line a loss, if runs have measured them."""
    runs = comparison.metrics()
    found = figures.averages(runs)
    found.pop("map_at_r", None)
    if not 0 < len({label for curves in found.values() for label in curves}) <= MOST_CURVES:
        return
    # The runs of a reality check differ in their data too, not in the seed alone.
    one = "run" if comparison.kind == "reality-check" else "seed"
    caption = f"{_order_caption(found, one)} {_batches_in_words(comparison)}"

    def draw(path: Path) -> str:
        figures.averaged_order(runs, path)
        return caption

    document.heading("Order along training", 3)
    document.figure(f"{name}-order", draw)


def _order_caption(found: Mapping[str, Mapping[str, figures.Averaged]], one: str) -> str:
    """Return what the panels show and how it was measured; ``one`` is "run" or "seed"."""
    words = ["Order along training, the median over classes."]
    labels = {label for curves in found.values() for label in curves}
    for key, curves in found.items():
        words.append(MEANINGS[key])
        if key == "residual" and len(curves) < len(labels):
            words.append("A loss without class vectors, such as one over pairs, has none.")
    counts = [curve.num_runs for curves in found.values() for curve in curves.values()]
    fewest, most = min(counts), max(counts)
    if most == 1:
        words.append(f"Each line is of 1 {one}.")
    else:
        number = f"{most}" if fewest == most else f"{fewest} to {most}"
        words.append(
            f"Each line is the mean over those of {number} {one}s that reached the epoch, shaded "
            "from the lowest to the highest."
        )
    return " ".join(words)


def _batches_in_words(comparison: Comparison) -> str:
    """Return what order parameters were measured on: images, or features of a frozen network."""
    kinds = set()
    for run in (run for row in comparison.trained for run in comparison.runs(row)):
        recipe = run.recipe()
        crops = (recipe.get("augment") or {}).get("views") or 0
        train = recipe.get("train") or {}
        is_frozen = recipe["backbone"].get("train") == "frozen"
        if is_frozen or (train.get("warmup_on") == "features" and train.get("warmup_epochs")):
            kinds.add("features" if not crops else "features of random crops")
        if not is_frozen:
            kinds.add("augmented images")
    batches = " or ".join(sorted(kinds)) or "augmented images"
    return (
        f"Measured on the training batches of the epoch ({batches}) as they passed, of a network "
        "that moved meanwhile, against the class vectors at its end."
    )


def add_search(document: Document, comparison: Comparison, name: str) -> None:
    """Add the history of the search, the best settings, and every failed or pruned trial."""
    rows = [row for row in comparison.trained if row["trials"]]
    if not rows:
        return
    document.heading("The search for settings", 3)
    found = [row for row in rows if row.get("best_settings")]
    if found:
        document.table(_best_settings(found))
    trials = {row["title"]: sorted(row["trials"], key=lambda t: t["number"]) for row in rows}
    # A failed trial scores 0, but is drawn without a value.
    values = {
        title: [None if t.get("failed") else t.get("value") for t in own]
        for title, own in trials.items()
    }
    pruned = {
        title: {at for at, t in enumerate(own) if t.get("pruned")} for title, own in trials.items()
    }

    def draw(path: Path) -> str:
        figures.search_history(values, path, pruned=pruned)
        words = "Mean validation MAP@R of each trial, and the best so far."
        if any(value is None for each in values.values() for value in each):
            words += " A cross is a trial that failed, or is not done."
        if any(pruned.values()):
            words += " A ring is a pruned trial, with skipped folds; it cannot win."
        return words

    document.figure(f"{name}-search", draw)
    lines: list[tuple[Cell, ...]] = []
    listed: list[tuple[Cell, ...]] = []
    for row in rows:
        own = trials[row["title"]]
        lost = {kind: [t for t in own if t.get(kind)] for kind in ("failed", "pruned")}
        space = [f"{key} {_range(each)}" for key, each in row.get("search_space", {}).items()]
        counts = [str(len(each)) for each in (own, *lost.values())]
        lines.append((row["title"], *counts, ", ".join(space) or None))
        listed += [
            (row["title"], str(t["number"]), kind, settings_text(t["settings"]), str(t[kind]))
            for kind, each in lost.items()
            for t in each
        ]
    headers: tuple[str, ...] = ("loss", "trials", "failed", "pruned", "searched")
    document.table(Table(headers, tuple(lines), "Trials of the search, and its ranges."))
    if listed:
        headers = ("loss", "trial", "what", "settings", "why")
        document.table(Table(headers, tuple(listed), "Every trial that failed or was pruned."))


def _range(space: Mapping[str, Any]) -> str:
    ends = f"{axis_value(space['low'])} to {axis_value(space['high'])}"
    return f"{ends} (log)" if space.get("log") else ends


def _best_settings(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        winners = [t for t in row["trials"] if t["number"] == row.get("best_trial")]
        best: Mapping[str, Any] = winners[0] if winners else {}
        value = number(best.get("value"))
        score = None if value is None else f"{100 * value:.2f}"
        trial = str(best["number"]) if best else None
        lines.append((row["title"], trial, score, settings_text(row["best_settings"])))
    caption = "Best settings found, by the mean MAP@R (per cent) on the classes that each fold held"
    return Table(
        ("loss", "trial", f"validation {TITLES['map_at_r']}", "settings"),
        tuple(lines),
        f"{caption} out; the test set was not used.",
    )


def add_significance(document: Document, comparison: Comparison) -> None:
    """Add the paired tests and how to read them."""
    tests = comparison.summary["tests"]
    if not tests:
        return
    # Many losses have many pairs: then only the main metric and the best epoch are shown.
    all_tests = len(tests)
    if all_tests > MOST_TESTS:
        main = (comparison.main_metric, EPOCH)
        tests = [test for test in tests if test["metric"] in main] or tests
    document.heading("Significance", 3)
    document.paragraph(
        "Each line compares two rows of the table over the repetitions that they share, pair by "
        "pair. The difference is the first less the second, in percentage points (best epochs: in "
        "epochs), with its 95 % interval. p is the probability that chance alone gives a "
        "difference at least as large, by Student's paired test and, without assuming a normal "
        f"distribution, by Wilcoxon's. Among many tests some are below {SIGNIFICANT} by chance; "
        "Holm's correction accounts for it: read that column."
    )
    fewest = min(int(test.get("num_pairs") or 0) for test in tests)
    if fewest < FEW_PAIRS:
        document.paragraph(
            f"Note: some tests have {fewest} pair{'s' * (fewest != 1)}. With fewer than "
            f"{FEW_PAIRS} a small p may be chance, and a large one is no evidence: these tests are "
            "never bold, and are corrected apart from the others."
        )
    titles = {row["name"]: comparison.label(row) for row in comparison.rows}
    lines: list[dict[str, Cell]] = []
    bold = set()
    for at, test in enumerate(tests):
        p, num_pairs = test.get("corrected"), int(test.get("num_pairs") or 0)
        part, _, metric = test["metric"].rpartition(".")
        lines.append(
            {
                "metric": {**TITLES, EPOCH: "best epoch"}.get(metric, metric)
                + (f", {part}" if part else ""),
                "first": titles.get(test["first"], test["first"]),
                "second": titles.get(test["second"], test["second"]),
                "difference": _difference(test),
                "p": p_text(test.get("p_value")),
                "p, corrected": p_text(p),
                "p, Wilcoxon": p_text(test.get("wilcoxon")),
                "pairs": str(test.get("num_pairs")),
            }
        )
        if p is not None and p < SIGNIFICANT and num_pairs >= FEW_PAIRS:
            bold.add((at, list(lines[0]).index("p, corrected")))
    caption = f"Paired tests; bold: below {SIGNIFICANT} after Holm's correction."
    if len(tests) < all_tests:
        caption += " Tests by other metrics are in summary.json."
    rows = tuple(tuple(line.values()) for line in lines)
    document.table(Table(tuple(lines[0]), rows, caption, frozenset(bold)))


def p_text(p: float | None) -> Cell:
    """Return a p-value with three decimals, or "<0.001"."""
    if p is None or p != p:
        return None
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _difference(test: Mapping[str, Any]) -> Cell:
    """Return a difference with its sign and its interval, of fractions in percentage points."""
    factor = 1 if test["metric"] == EPOCH else 100
    shown = [
        None if test.get(key) is None else f"{factor * test[key]:+.2f}".replace("-", MINUS)
        for key in ("difference", "low", "high")
    ]
    return shown[0] if None in shown else "{} ({} to {})".format(*shown)


def add_costs(document: Document, comparison: Comparison) -> None:
    """Add time, speed and memory of the runs."""
    lines: list[dict[str, Cell]] = []
    for row in comparison.trained:
        results = [result for _, result in comparison.results(row)]
        seconds = _known(results, "seconds") or values_of(row, "seconds")
        if not seconds:
            continue
        memory = _known(results, "peak_gpu_memory_gb")
        trials = (comparison.folder / row["name"]).glob(f"trial-*/fold-*/{RESULT}")
        found = [Run(path.parent).whole_result() for path in sorted(trials)]
        searched = [result.get("seconds", 0.0) for result in found if result is not None]
        lines.append(
            {
                "loss": comparison.label(row),
                "runs": str(len(seconds)),
                "seconds, mean": _mean(seconds),
                "seconds, total": significant(sum(seconds)),
                "epochs": _mean(_known(results, "epochs")),
                "images per second": _mean(_known(results, "images_per_second")),
                "peak GPU memory, GB": significant(max(memory, default=None)),
                "seconds of the search": significant(sum(searched)) if searched else None,
            }
        )
    if not lines:
        return
    headers = tuple(header for header in lines[0] if any(line[header] for line in lines))
    document.heading("Costs", 3)
    document.table(
        Table(
            headers,
            tuple(tuple(line[header] for header in headers) for line in lines),
            "Costs of the finished runs: seconds of a run and of all together, epochs until it "
            "stopped, training images a second. Runs that shared a machine slowed each other "
            "down: these are not the costs of a loss; for those see weiss study classes.",
        )
    )


def _known(results: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [result[key] for result in results if key in result]


def _mean(values: Sequence[float]) -> Cell:
    return significant(sum(values) / len(values)) if values else None


def add_worst_classes(document: Document, comparison: Comparison, look: Look) -> None:
    """Add the classes with the lowest scores, with queries and their neighbours as images.

    Of a bench or study the best run of the best loss is shown, of single runs each.
    """
    best = comparison.best_row()
    rows = ([best] if best is not None else []) if comparison.is_given else comparison.trained
    runs = [(row, run) for row in rows if (run := _best_run(comparison, row)) is not None]
    if not runs:
        return
    document.heading("Worst classes", 3)
    for row, run in runs:
        which = f"{comparison.label(row)} ({comparison.name_of(run)})"
        if not (run.folder / MODEL).is_file():
            document.paragraph(f"No images of {which}: its folder has no {MODEL} any more.")
            continue
        try:
            looked = look(run.folder)
            classes = class_scores(looked)
            queries = [
                Query(
                    each.worst,
                    f"class mean {100 * each.mean:.0f} %, this query "
                    f"{100 * each.worst_value:.0f} % MAP@R",
                )
                for each in classes[:NUM_WORST_SHOWN]
            ]
            found = retrieval_rows(
                looked.embeddings,
                looked.labels,
                looked.read,
                looked.class_names,
                queries,
                NUM_NEIGHBOURS,
                candidates=looked.candidates,
            )
        except (OSError, ValueError) as error:
            document.paragraph(f"No images of {which}: its data could not be read: {error}")
            continue
        document.gallery(
            found,
            f"{which}: the classes with the lowest mean MAP@R, each with its worst query and the "
            "nearest images.",
        )
        worst = classes[:NUM_WORST]
        fine = classes[len(worst) :][-NUM_BEST:]
        caption = f"{which}: the {len(worst)} worst classes by mean MAP@R (per cent)"
        caption += f" and, below, the {len(fine)} best." if fine else "."
        document.table(
            Table(
                ("class", TITLES["map_at_r"], "queries"),
                tuple((c.name, f"{100 * c.mean:.1f}", str(c.num_queries)) for c in worst + fine),
                caption,
                apart=frozenset(range(len(worst), len(worst + fine))),
            )
        )


def _best_run(comparison: Comparison, row: Row) -> Run | None:
    scored = [(run, measured(result, "map_at_r")) for run, result in comparison.results(row)]
    known = [(run, score) for run, score in scored if score is not None]
    # Networks may have been removed to save space; prefer a run that has its network.
    known = [pair for pair in known if (pair[0].folder / MODEL).is_file()] or known
    return max(known, key=lambda pair: pair[1])[0] if known else None


def add_settings(document: Document, comparison: Comparison) -> None:
    """Add what is needed to reproduce it: command, recipes, seeds, versions, hardware."""
    summary = comparison.summary
    document.heading("How to reproduce", 3)
    if summary.get("command"):
        document.code(str(summary["command"]), "Command", folded=False)
    recipes: dict[str, Run] = {}
    for row in comparison.trained:
        # Along an axis the table shows how recipes differ: one of each loss is enough.
        label = row["title"] if summary["axes"] else comparison.label(row)
        if label not in recipes and (runs := comparison.runs(row)):
            recipes[label] = runs[0]
    first = next(iter(recipes), None)
    if first is not None:
        text = (recipes[first].folder / RECIPE).read_text(encoding="utf-8", errors="replace")
        document.code(text, f"Recipe of {first} ({comparison.name_of(recipes[first])})")
    elif summary.get("recipe"):
        document.code(json.dumps(summary["recipe"], indent=2, ensure_ascii=False), "Recipe")
    if len(recipes) > 1:
        lines = _differences(recipes)
        caption = f"Differences of the recipes from that of {first}."
    else:
        lines = _settings(comparison)
        caption = "Settings of the loss."
    if lines and any(lines.values()):
        document.table(Table(("loss", "settings"), tuple(lines.items()), caption))
    used = [run.recipe() for row in comparison.trained for run in comparison.runs(row)]
    seeds = sorted({recipe["seed"] for recipe in used if "seed" in recipe})
    known = _flat(summary.get("protocol") or {}, SEARCHED)
    if seeds:
        known["seeds of the runs"] = ", ".join(map(str, seeds))
    known |= _flat(summary.get("made_with") or (used[0].get("made_with", {}) if used else {}))
    if known:
        rows = tuple((key, str(value)) for key, value in known.items())
        document.table(Table(("what", "which"), rows, "Protocol, seeds, versions and hardware."))


def _settings(comparison: Comparison) -> dict[str, Cell]:
    """Return the settings of each loss, once if they are the same at every value of the axes."""
    by_title: dict[str, dict[str, Cell]] = {}
    for row in comparison.trained:
        own = settings_text(row["settings"])
        by_title.setdefault(row["title"], {})[comparison.label(row)] = own
    found: dict[str, Cell] = {}
    for title, by_label in by_title.items():
        one = set(by_label.values())
        found |= {title: one.pop()} if len(one) == 1 else by_label
    return found


def _differences(recipes: Mapping[str, Run]) -> dict[str, Cell]:
    """Return for each run but the first how its recipe differs from the first one's."""
    flat = {label: _flat(run.recipe(), LEFT_OUT) for label, run in recipes.items()}
    first, *others = flat
    found: dict[str, Cell] = {}
    for label in others:
        keys = dict.fromkeys([*flat[first], *flat[label]])
        # Another loss has other settings; those that it lacks are not listed.
        changed = [
            key
            for key in keys
            if flat[label].get(key) != flat[first].get(key)
            and (key in flat[label] or not key.startswith("loss."))
        ]
        if changed:
            own = {f"{key} =": flat[label].get(key, "not given") for key in changed}
            found[label] = settings_text(own)
    return found


def _flat(
    nested: Mapping[str, Any], left_out: Sequence[str] = (), above: str = ""
) -> dict[str, Any]:
    """Return nested values under dotted names; lists as text."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if key in left_out:
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, (), f"{above}{key}.")
        else:
            is_list = isinstance(value, list)
            found[f"{above}{key}"] = ", ".join(map(str, value)) if is_list else value
    return found
