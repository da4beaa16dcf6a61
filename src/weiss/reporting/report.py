"""The report: runs and comparisons in, one page and the same as Markdown and LaTeX out."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss.reporting.gallery import Gallery, Query, retrieval_rows
from weiss.reporting.markdown import Document
from weiss.reporting.order_parameters import add_order
from weiss.reporting.reading import Comparison, Summary, axis_value, mean_of, read_folders, score_of
from weiss.reporting.sections import (
    SIGNIFICANT,
    add_costs,
    add_pictures,
    add_scores,
    add_search,
    add_significance,
    p_text,
)
from weiss.reporting.tables import Cell, Column, Row, from_columns, settings_text, significant
from weiss.reporting.worst_classes import Looked, class_scores
from weiss.runs.folder import MODEL, RECIPE, Run
from weiss.runs.summaries import FEW_PAIRS, MEASURES, by_repetition

Look = Callable[[Path], Looked]
NUM_WORST_SHOWN, NUM_WORST, NUM_BEST = 6, 10, 5
NUM_NEIGHBOURS = 10
MEASURED = {
    "classes": ("milliseconds", "a step of the loss takes, in milliseconds,"),
    "breakdown": ("excess", "pair loss and mean field differ, beyond zero spread, by"),
}
"""For each measure of losses, the score to begin with, and how to say it."""
SEARCHED = ("spaces",)
"""What a protocol holds and the part on the search shows."""
LEFT_OUT = ("made_with", "seed")
"""Parts of a recipe in which runs of one comparison differ without being different experiments."""


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    look: Look | None = None,
    title: str = "",
    summaries: Mapping[Path, Summary] | None = None,
) -> list[Path]:
    """Write a report of runs and comparisons.

    The page is one HTML file that needs nothing else. Beside it the same stands as Markdown, the
    tables as LaTeX, and every figure in the folder ``STEM-figures`` as .svg and .pdf.

    Args:
        folders: run folders, folders of seeds, comparison folders; finished or not.
        out: the page; its name ends in .html.
        look: embeds what the run in a folder was measured on, to show what its network finds and
            which classes it finds worst; without it the report has no such part.
        title: of the page; by default it says what was compared.
        summaries: of comparisons under way, by their folders: newer than what lies there. Folders
            are only read.

    Returns:
        The files written: page, Markdown, LaTeX, figures.
    """
    out = Path(out)
    if out.suffix.lower() != ".html":
        raise ValueError(
            f"--out must end in .html, the page; got {out}. Markdown and LaTeX are written beside "
            f"it. Pass {out.with_suffix('.html')}."
        )
    comparisons = read_folders(folders, summaries)
    headings = [heading_of(comparison) for comparison in comparisons]
    title = title or (headings[0] if len(headings) == 1 else "Comparisons")
    leads = [lead_of(comparison) for comparison in comparisons]
    is_one = len(leads) == 1
    document = Document(out, title, leads[0] if is_one else f"{len(leads)} comparisons.")
    if not is_one:
        for number, (heading, lead) in enumerate(zip(headings, leads, strict=True), 1):
            document.announce(number, heading, lead)
    for number, (comparison, heading) in enumerate(zip(comparisons, headings, strict=True), 1):
        name = f"{number:02d}-{re.sub(r'[^a-z0-9]+', '-', heading.lower()).strip('-')[:40]}"
        document.heading(heading if heading != title else "What was found")
        add_scores(document, comparison)
        add_pictures(document, comparison, name)
        add_order(document, comparison, name)
        add_search(document, comparison, name)
        add_significance(document, comparison)
        add_costs(document, comparison)
        if look is not None:
            add_worst_classes(document, comparison, look)
        add_settings(document, comparison)
    return document.write()


def heading_of(comparison: Comparison) -> str:
    """Return what a comparison is called, with its data, and with what chose the epoch."""
    summary = comparison.summary
    name, data = str(summary.get("title") or comparison.kind), summary.get("data")
    name = f"{name} on {Path(str(data)).name or data}" if data else name
    by_itself = comparison.kind == "reality-check"  # where held-out classes always choose
    chosen_on = str(summary.get("selected_on", "test"))
    return name if by_itself or chosen_on == "test" else f"{name}, chosen on {chosen_on}"


def lead_of(comparison: Comparison) -> str:
    """Return in a sentence or three what was compared and what came out."""
    summary = comparison.summary
    losses = dict.fromkeys(row["loss"] for row in comparison.trained)
    network, size = summary.get("backbone"), summary.get("embedding_size")
    if comparison.kind in MEASURES:
        counted, network = _several(len(comparison.rows), "measurement"), None
    else:
        counted = _several(sum(len(row.get("runs", ())) for row in comparison.trained), "run")
    words = f"{counted} of {_several(len(losses), 'loss', 'losses')}"
    titles = dict.fromkeys(row["title"] for row in comparison.trained)
    if any(row.get("changes") for row in comparison.trained):
        words += f" in {_several(len(titles), 'version')}"
    about = [str(network)] if network else []
    varied = {axis["key"] for axis in summary.get("axes", ())}
    about += [f"{size} dimensions"] if size and "backbone.embedding_size" not in varied else []
    words += f" ({', '.join(about)})" if about else ""
    if summary.get("is_complete", True):
        words += "."
    else:
        done, units = summary.get("num_done"), summary.get("num_units")
        words += f"; not complete: {done} of {units} units are done."
    best = comparison.best_row()
    if comparison.kind in MEASURES:
        return words + _at_the_end(comparison)
    return f"{words} {_who_is_best(comparison, best) if best else 'There are no scores yet.'}"


def _several(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _at_the_end(comparison: Comparison) -> str:
    """Return what a measure of losses found at the largest value of its axis."""
    (name, said), axis = MEASURED[comparison.kind], comparison.summary["axes"][0]
    known = [row for row in comparison.trained if mean_of(row, name) is not None]
    known = [row for row in known if row.get("at", {}).get(axis["key"]) is not None]
    if not known:
        return " There are no measurements yet."
    last = max(row["at"][axis["key"]] for row in known)
    found = [
        f"{significant(mean_of(row, name))} for {row['title']}"
        for row in known
        if row["at"][axis["key"]] == last
    ]
    where = axis.get("short") or axis.get("label")
    return f" At the largest {where}, {axis_value(last)}, {said} {', '.join(found)}."


def _who_is_best(comparison: Comparison, best: Row) -> str:
    """Return which row is the best, by how much, and whether that may be chance."""
    metric = comparison.main_metric
    score = mean_of(best, metric) or 0.0
    said = f"MAP@R {100 * score:.1f} %"
    if comparison.kind == "reality-check":
        said += ", embeddings concatenated"
    others = [row for row in comparison.trained if row is not best]
    rivals = [row for row in others if mean_of(row, metric) is not None]
    if not rivals:
        return f"{comparison.label(best)} reaches {said}."
    second = max(rivals, key=lambda row: mean_of(row, metric) or 0.0)
    test = _test_of(comparison, best, second)
    words = f"{comparison.label(best)} is best with {said}"
    if test is None and comparison.summary.get("axes"):
        is_single = len(best.get("runs", ())) == 1
        return f"{words}{', of one run' * is_single}."  # another value is no rival
    counts = [len(row.get("runs", ())) for row in (best, second)]
    if counts[0] != counts[1]:
        words += f" of {_several(counts[0], 'run')}"
    words += f", {_ahead(best, second, metric, score)} {comparison.label(second)}"
    words += f" of {_several(counts[1], 'run')}; " if counts[0] != counts[1] else "; "
    if test is None:
        return f"{words}whether that is chance was not tested."
    if int(test.get("num_pairs") or 0) < FEW_PAIRS:
        pairs = _several(int(test.get("num_pairs") or 0), "pair")
        return f"{words}{pairs} are too few to tell that from chance."
    verdict = "is" if test["corrected"] < SIGNIFICANT else "is not"
    p = p_text(test["corrected"]) or ""
    p = p if p.startswith("<") else f"= {p}"
    number = _several(int(test.get("num_pairs") or 0), "pair")
    return f"{words}the difference {verdict} significant after Holm's correction (p {p}, {number})."


def _ahead(best: Row, second: Row, metric: str, score: float) -> str:
    """Return by how much a row is better, on the repetitions that both have if not on all."""
    one, other = by_repetition(best, metric), by_repetition(second, metric)
    common = sorted(set(one) & set(other))
    if set(one) == set(other) or not common:
        return f"{100 * (score - (mean_of(second, metric) or 0.0)):.2f} points above"
    difference = 100 * sum(one[n] - other[n] for n in common) / len(common)
    where = "above" if difference >= 0 else "below"
    shared = _several(len(common), "repetition")
    return f"on the {shared} that both have {abs(difference):.2f} points {where}"


def _test_of(comparison: Comparison, one: Row, other: Row) -> Mapping[str, Any] | None:
    pair = {one["name"], other["name"]}
    for test in comparison.summary.get("tests", ()):
        is_it = test["metric"] == comparison.main_metric and {test["first"], test["second"]} == pair
        if is_it and test.get("corrected") is not None:
            return dict(test)
    return None


def add_worst_classes(document: Document, comparison: Comparison, look: Look) -> None:
    """Add the classes that the best network finds worst, with what it finds for them.

    Of a bench or study the best run of the best loss is looked at, of single runs each.
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
            document.paragraph(f"No images of {which}: its network is not in its folder any more.")
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
            document.paragraph(f"No images of {which}, for its data could not be read: {error}")
            continue
        document.gallery(
            Gallery(
                found,
                f"{which}: the classes with the lowest mean MAP@R, of each its worst "
                "query and the nearest images.",
            )
        )
        worst = classes[:NUM_WORST]
        fine = classes[len(worst) :][-NUM_BEST:]
        shown = [*worst, *fine]
        document.table(
            from_columns(
                [
                    Column("class", [each.name for each in shown]),
                    Column("MAP@R", [f"{100 * each.mean:.1f}" for each in shown]),
                    Column("queries", [str(each.num_queries) for each in shown]),
                ],
                f"{which}: the {len(worst)} worst classes by mean MAP@R (per cent)"
                + (f" and, set apart, the {len(fine)} best." if fine else "."),
                apart=range(len(worst), len(shown)),
            )
        )


def _best_run(comparison: Comparison, row: Row) -> Run | None:
    scored = [(run, score_of(result)) for run, result in comparison.results(row)]
    known = [(run, score) for run, score in scored if score is not None]
    # To save room networks may have been removed; of the others the best is looked at.
    known = [pair for pair in known if (pair[0].folder / MODEL).is_file()] or known
    return max(known, key=lambda pair: pair[1])[0] if known else None


def add_settings(document: Document, comparison: Comparison) -> None:
    """Add what is needed to do it again: command, recipes, seeds, versions, hardware."""
    summary = comparison.summary
    document.heading("To do it again", 3)
    if summary.get("command"):
        document.code(str(summary["command"]), "Command", folded=False)
    recipes: dict[str, Run] = {}
    for row in comparison.trained:
        # Along an axis recipes differ in what the table says anyway: one of each loss is enough.
        label = row["title"] if summary.get("axes") else comparison.label(row)
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
        caption = f"In what the recipes differ from that of {first}."
    else:
        lines = _settings(comparison)
        caption = "Settings of the loss."
    if lines and any(lines.values()):
        columns = [Column("loss", list(lines)), Column("settings", list(lines.values()))]
        document.table(from_columns(columns, caption))
    known = _circumstances(comparison)
    if known:
        columns = [Column("what", list(known)), Column("which", list(known.values()))]
        document.table(from_columns(columns, "Protocol, seeds, versions and hardware."))


def _settings(comparison: Comparison) -> dict[str, Cell]:
    """Return the settings of each loss, once where they are the same at every place."""
    by_title: dict[str, dict[str, Cell]] = {}
    for row in comparison.trained:
        own = settings_text(row.get("settings", {}))
        by_title.setdefault(row["title"], {})[comparison.label(row)] = own
    found: dict[str, Cell] = {}
    for title, by_label in by_title.items():
        one = set(by_label.values())
        found |= {title: one.pop()} if len(one) == 1 else by_label
    return found


def _differences(recipes: Mapping[str, Run]) -> dict[str, Cell]:
    """Return for each run but the first in what its recipe differs from the first one's."""
    flat = {label: _flat(run.recipe(), LEFT_OUT) for label, run in recipes.items()}
    first, *others = flat
    found: dict[str, Cell] = {}
    for label in others:
        keys = dict.fromkeys([*flat[first], *flat[label]])
        # Another loss has other settings; those that it lacks go without saying.
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


def _circumstances(comparison: Comparison) -> dict[str, Cell]:
    """Return what else was asked for and what it was made with, by name."""
    summary = comparison.summary
    runs = [run for row in comparison.trained for run in comparison.runs(row)]
    recipes = [run.recipe() for run in runs]
    seeds = sorted({recipe["seed"] for recipe in recipes if "seed" in recipe})
    made_with = summary.get("made_with") or (recipes[0].get("made_with", {}) if recipes else {})
    found = _flat(summary.get("protocol") or {}, SEARCHED)
    if seeds:
        found["seeds of the runs"] = ", ".join(map(str, seeds))
    return {key: str(value) for key, value in {**found, **_flat(made_with)}.items()}


def _flat(
    nested: Mapping[str, Any], left_out: Sequence[str] = (), above: str = ""
) -> dict[str, Any]:
    """Return nested values under dotted names; lists as texts."""
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
