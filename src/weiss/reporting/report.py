"""The report of runs and comparisons: a page, and the same as Markdown and LaTeX.

`write_report` puts the sections of `weiss.reporting.sections` together; the sentence on top of each
comparison, with the best loss and whether that is significant, is made here.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from weiss.backbones.embedder import LINEAR, NO_HEAD
from weiss.reporting.document import Document
from weiss.reporting.reading import (
    Comparison,
    Row,
    Summary,
    axis_value,
    is_reference,
    mean_of,
    number,
    read_folders,
)
from weiss.reporting.sections import (
    SIGNIFICANT,
    Look,
    add_costs,
    add_order,
    add_pictures,
    add_scores,
    add_search,
    add_settings,
    add_significance,
    add_worst_classes,
    p_text,
)
from weiss.reporting.tables import significant
from weiss.runs.gain import gain_in_words
from weiss.runs.summaries import FEW_PAIRS, MEASURES, by_repetition

MEASURED = {
    "classes": ("milliseconds", "a step of the loss takes, in milliseconds (median),"),
    "breakdown": ("excess", "pair loss and mean field differ, beyond zero spread, by"),
}
"""For each study of the losses themselves its main score, and the words before the number."""


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    look: Look | None = None,
    title: str = "",
    summaries: Mapping[Path, Summary] | None = None,
) -> list[Path]:
    """Write a report of runs and comparisons; return its files: page, Markdown, LaTeX, figures.

    Args:
        folders: run folders, folders of seeds, comparison folders; finished or not.
        out: the page, one self-contained HTML file. Beside it are the same in Markdown, the tables
            in LaTeX, and every figure in the folder ``STEM-figures`` as .svg and .pdf.
        look: embeds the data that the run in a folder was measured on, for the section on the
            worst classes; without it the report has no such section.
        title: of the page; by default made from what was compared.
        summaries: by folder, newer than its summary.json, of comparisons that are not finished.
            Nothing is written to folders.
    """
    out = Path(out)
    if out.suffix.lower() != ".html":
        page = out / "report.html" if out.is_dir() else out.with_suffix(".html")
        raise ValueError(
            f"--out must end in .html, the page; got {out}. Markdown and LaTeX are written beside "
            f"it. Pass {page}."
        )
    # A score whose epoch the test set chose is too good: the others come first.
    comparisons = sorted(read_folders(folders, summaries), key=_is_chosen_on_test)
    _refuse_what_cannot_be_written(out)  # before data are embedded, which takes long
    headings = [heading_of(comparison) for comparison in comparisons]
    title = title or (headings[0] if len(headings) == 1 else "Comparisons")
    leads = [lead_of(comparison) for comparison in comparisons]
    is_one = len(leads) == 1
    document = Document(out, title, leads[0] if is_one else _of_several(comparisons))
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


def _refuse_what_cannot_be_written(out: Path) -> None:
    """Make the folder of a page and write a file there, which is deleted."""
    law = "--out must be a file that can be written"
    if out.is_dir():
        raise ValueError(f"{law}; {out} is a folder. Pass {out / 'report.html'}.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}."):
            pass
    except OSError as error:
        raise ValueError(f"{law}; {out} cannot ({error.strerror}). Pass another path.") from error


def heading_of(comparison: Comparison) -> str:
    """Return the title of a comparison with its data, and what the epoch was chosen on."""
    summary = comparison.summary
    name, data = str(summary.get("title") or comparison.kind), summary.get("data")
    name = f"{name} on {Path(str(data)).name or data}" if data else name
    if comparison.kind == "reality-check" or _is_chosen_on_test(comparison):
        return name  # as the kind of comparison always is
    return f"{name}, chosen on {summary['selected_on']}"


def _is_chosen_on_test(comparison: Comparison) -> bool:
    """Return whether the test set chose the epoch; in a reality check it never does."""
    on_test = comparison.summary.get("selected_on", "test") == "test"
    return on_test and comparison.kind != "reality-check"


def _of_several(comparisons: Sequence[Comparison]) -> str:
    words = f"{len(comparisons)} comparisons."
    if len({_is_chosen_on_test(each) for each in comparisons}) > 1:
        words += (
            " Those whose epoch was chosen on held-out classes come first; below them the test set "
            "chose it, as in the paper, which makes scores look better."
        )
    return words


def lead_of(comparison: Comparison) -> str:
    """Return in a few sentences what was compared and the result."""
    summary = comparison.summary
    losses = dict.fromkeys(row["loss"] for row in comparison.trained)
    network, size = summary.get("backbone"), summary.get("embedding_size")
    if comparison.kind in MEASURES:
        counted, network = _several(len(comparison.rows), "measurement"), None
    else:
        counted = _several(sum(len(row["runs"]) for row in comparison.trained), "run")
    words = f"{counted} of {_several(len(losses), 'loss', 'losses')}"
    titles = dict.fromkeys(row["title"] for row in comparison.trained)
    if any(row["changes"] for row in comparison.trained):
        words += f" in {_several(len(titles), 'version')}"
    about = [str(network)] if network else []
    varied = {axis["key"] for axis in summary["axes"]}
    about += [f"{size} dimensions"] if size and "backbone.embedding_size" not in varied else []
    words += f" ({', '.join(about)})" if about else ""
    if summary.get("is_complete", True):
        words += "."
    else:
        done, units = summary.get("num_done"), summary.get("num_units")
        words += f"; not complete: {done} of {units} units are done."
    if comparison.kind in MEASURES:
        return f"{words} {_at_largest_value(comparison)}"
    best = comparison.best_row()
    if best is None:
        return _not_trained_in_words(comparison) or f"{words} There are no scores yet."
    start = _against_start(comparison, best)
    return f"{words} {_best_in_words(comparison, best)}{f' {start}' if start else ''}"


def _not_trained_in_words(comparison: Comparison) -> str:
    """Return the scores of networks that are not trained, if there is nothing else."""
    scores = {row["title"]: mean_of(row, comparison.main_metric) for row in comparison.rows}
    known = {title: score for title, score in scores.items() if score is not None}
    if comparison.trained or not known:
        return ""
    return " ".join(f"{title}: MAP@R {100 * score:.1f} %." for title, score in known.items())


def _against_start(comparison: Comparison, best: Row) -> str:
    """Return what training brought: the best row against the network before training."""
    metric = comparison.main_metric
    reached = mean_of(best, metric) or 0.0
    starts = [row for row in comparison.rows if is_reference(row)]
    scored = [row for row in starts if mean_of(row, metric) is not None]
    if scored:
        start = max(scored, key=lambda row: mean_of(row, metric) or 0.0)
        before = mean_of(start, metric) or 0.0
        heads = {result.get("head", LINEAR) for _, result in comparison.results(start)}
        how = " behind a random last layer" if heads and NO_HEAD not in heads else ""
        word = "brought" if reached >= before else "lost"
        return (
            f"The {start['title']} network{how} has {100 * before:.1f} %: training {word} "
            f"{100 * abs(reached - before):.1f} points."
        )
    results = [result for _, result in comparison.results(best)]
    words = gain_in_words(results[0]) if len(results) == 1 and "test" not in results[0] else ""
    return f"Training brought: {words}" if words else ""


def _several(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _at_largest_value(comparison: Comparison) -> str:
    """Return the scores of a study of the losses themselves at the largest value of its axis."""
    (name, words), axis = MEASURED[comparison.kind], comparison.summary["axes"][0]
    known = [row for row in comparison.trained if mean_of(row, name) is not None]
    known = [row for row in known if number(row["at"].get(axis["key"])) is not None]
    if not known:
        return "There are no measurements yet."
    last = max(row["at"][axis["key"]] for row in known)
    found = [
        f"{significant(mean_of(row, name))} for {row['title']}"
        for row in known
        if row["at"][axis["key"]] == last
    ]
    where = axis.get("short", axis["label"])
    return f"At the largest {where}, {axis_value(last)}, {words} {', '.join(found)}."


def _best_in_words(comparison: Comparison, best: Row) -> str:
    """Return which row is the best, by how much, and whether that is significant."""
    metric = comparison.main_metric
    score = mean_of(best, metric) or 0.0
    reached = f"MAP@R {100 * score:.1f} %"
    if comparison.kind == "reality-check":
        reached += ", embeddings concatenated"
    others = [row for row in comparison.trained if row is not best]
    rivals = [row for row in others if mean_of(row, metric) is not None]
    if not rivals:
        return f"{comparison.label(best)} reaches {reached}."
    second = max(rivals, key=lambda row: mean_of(row, metric) or 0.0)
    pair = {best["name"], second["name"]}
    tests = [
        test
        for test in comparison.summary["tests"]
        if test["metric"] == metric
        and {test["first"], test["second"]} == pair
        and test.get("corrected") is not None
    ]
    test = tests[0] if tests else None
    words = f"{comparison.label(best)} is best with {reached}"
    if test is None and comparison.summary["axes"]:
        is_single = len(best["runs"]) == 1
        return f"{words}{', of one run' * is_single}."  # other values of an axis do not compete
    counts = [len(row["runs"]) for row in (best, second)]
    own, its = (
        f" of {_several(count, 'run')}" if counts[0] != counts[1] else "" for count in counts
    )
    words += f"{own}, {_ahead(best, second, metric)} {comparison.label(second)}{its}; "
    if test is None:
        return f"{words}whether that is chance was not tested."
    num_pairs = int(test.get("num_pairs") or 0)
    pairs = _several(num_pairs, "pair")
    if num_pairs < FEW_PAIRS:
        return f"{words}{pairs} are too few to tell that from chance."
    verdict = "is" if test["corrected"] < SIGNIFICANT else "is not"
    p = p_text(test["corrected"]) or ""
    p = p if p.startswith("<") else f"= {p}"
    return f"{words}the difference {verdict} significant after Holm's correction (p {p}, {pairs})."


def _ahead(best: Row, second: Row, metric: str) -> str:
    """Return by how much a row is better, on the repetitions that both have."""
    one, other = by_repetition(best, metric), by_repetition(second, metric)
    common = sorted(set(one) & set(other))
    if set(one) == set(other) or not common:
        difference = (mean_of(best, metric) or 0.0) - (mean_of(second, metric) or 0.0)
        return f"{100 * difference:.2f} points above"
    difference = 100 * sum(one[n] - other[n] for n in common) / len(common)
    where = "above" if difference >= 0 else "below"
    shared = _several(len(common), "repetition")
    return f"on the {shared} that both have {abs(difference):.2f} points {where}"
