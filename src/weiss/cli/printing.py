"""How results and messages look on a terminal."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

if TYPE_CHECKING:
    from weiss.data import Findings, Table
    from weiss.evaluation.retrieval import Retrieval

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that move a cursor, and bytes of a file name that are no UTF-8."""
SHOWN = {
    "map_at_r": "MAP@R (%)",
    "precision_at_1": "P@1 (%)",
    "r_precision": "RP (%)",
    "separated.map_at_r": "separated MAP@R (%)",
    "concatenated.map_at_r": "concatenated MAP@R (%)",
    "concatenated.precision_at_1": "concatenated P@1 (%)",
    "epoch": "epoch",
    "milliseconds": "ms",
    "megabytes": "MB",
    "pair": "pair loss",
    "mean_field": "mean field",
    "excess": "excess",
}
"""The scores of a comparison that a terminal has room for."""
NUMBERS = {"int_parsing": "it must be a whole number", "float_parsing": "it must be a number"}
"""What a value of the wrong type must be, by pydantic's name of the mistake."""


def print_json(found: Mapping[str, Any]) -> None:
    """Print the result of a command for programs: one JSON object, the only thing on stdout.

    Keys are those of `weiss.retrieval_metrics`, ``result.json`` and the server; shares lie in 0..1;
    a number that is not finite, for which JSON has no word, is null.
    """
    finite = json.loads(json.dumps(found), parse_constant=lambda _: None)
    print(json.dumps(finite, indent=2))


def print_sizes(table: "Table", official: Any) -> None:
    """Print how many images and classes each split has."""
    grid = Grid(box=None, pad_edge=False)
    headers = ["split", "images", "classes"] + (["official"] if official else [])
    for header in headers:
        grid.add_column(header, justify="left" if header in ("split", "official") else "right")
    for split, (images, classes) in table.sizes().items():
        row = [split, f"{images:,}", f"{classes:,}"]
        if official:
            must = official.counts.get(split)
            row.append("-" if must is None else f"{must[0]:,} images of {must[1]:,} classes")
        grid.add_row(*row)
    out().print(f"[bold]{plain(table.name)}[/]: {len(table):,} items")
    out().print(grid)
    of_class = sorted((int(table.class_sizes()[c]), table.class_names[c]) for c in table.classes())
    if of_class:
        (least, rarest), (most, commonest) = of_class[0], of_class[-1]
        middle = of_class[len(of_class) // 2][0]
        text = f"images a class: {least:,} ({rarest}) to {most:,} ({commonest}), median {middle:,}"
        out().print(plain(text), soft_wrap=True)


def print_findings(
    found: "Findings", *, skip_bad: bool, quick: bool, num_doubtful: int = 0
) -> None:
    """Print what a check found; raise typer.Exit if it is a problem.

    ``num_doubtful`` is how many labels are doubtful, which were printed before.
    """
    for remark in found.remarks:
        out().print(f"[yellow]Note:[/] {plain(remark)}", soft_wrap=True)
    if skip_bad and found.unreadable:
        out().print(f"Left out, since they cannot be read ({len(found.unreadable):,}):")
        for message in found.unreadable:
            out().print(f"  {plain(message)}", soft_wrap=True)
    for problem in found.problems:
        out().print(f"[bold red]Problem:[/] {plain(problem)}", soft_wrap=True)
    if found.problems:
        raise typer.Exit(1)
    looked = "lists and counts" if quick else "lists, counts and every image"
    if num_doubtful:
        doubt = f"{num_doubtful:,} {'label is' if num_doubtful == 1 else 'labels are'} doubtful"
        out().print(f"[yellow]{doubt}[/], see above; no problem in {looked}.", soft_wrap=True)
        return
    out().print(f"[green]All right[/] ({looked}).")


def print_metrics(found: "Retrieval") -> None:
    """Print every metric, and its interval where there is one."""
    grid = Grid("metric", "value", "95 % interval", box=None, pad_edge=False)
    for name, value in found.summary().items():
        if name not in found.per_query:
            shown = f"{100 * value:.2f}" if isinstance(value, float) else f"{value:,}"
            grid.add_row(name, shown, "")
            continue
        ends = found.interval(name)
        between = f"{100 * ends.low:.2f} to {100 * ends.high:.2f}"
        grid.add_row(name, f"{100 * value:.2f}", between)
    out().print(grid)


def print_seeds(found: dict[str, Any], folder: Path) -> None:
    """Print mean and interval of several seeds."""
    grid = Grid("", "mean", "95 % interval", "runs", box=None, pad_edge=False)
    for name, entry in found.items():
        if isinstance(entry, dict):
            scale = 1 if name in ("epoch", "seconds") else 100
            mean, low, high = (f"{scale * entry[key]:.2f}" for key in ("mean", "low", "high"))
            values = ", ".join(f"{scale * value:.2f}" for value in entry["values"])
            grid.add_row(name, mean, f"{low} to {high}", values)
    out().print(grid)
    print(f"Wrote {folder / 'summary.json'}")


def print_comparison(found: dict[str, Any], folder: Path) -> None:
    """Print the table of a comparison: a line a row, failed trials and tests below."""
    from weiss.runs.summaries import FEW_PAIRS, UNTRAINED

    names = dict.fromkeys(name for row in found["rows"] for name in row["scores"])
    shown = [name for name in names if name in SHOWN] or list(names)
    grid = Grid(box=None, pad_edge=False)
    for header in ("", *(SHOWN.get(name, name) for name in shown)):
        grid.add_column(header, no_wrap=not header)
    rows = sorted(found["rows"], key=lambda row: row["loss"] == UNTRAINED)
    titles = {row["name"]: _row_title(row) for row in rows}
    for row in rows:
        scores = dict(row["scores"])
        if row["loss"] == UNTRAINED:
            scores.pop("epoch", None)
        grid.add_row(titles[row["name"]], *(_cell(scores.get(name), name) for name in shown))
    out().print(grid)
    for row in rows:
        for what in ("failed", "pruned"):
            lost = [trial for trial in row.get("trials", ()) if trial[what]]
            if lost:
                count = f"{len(lost)} of {len(row['trials'])} trials {what}"
                line = f"{row['title']}: {count}, the first: {lost[0][what]}"
                out().print(plain(line), soft_wrap=True)
    for test in found["tests"]:
        if test["metric"] == found["tests"][0]["metric"]:
            verdict = "differ" if test["corrected"] < 0.05 else "cannot be told apart"
            if test["num_pairs"] < FEW_PAIRS:
                verdict = f"{test['num_pairs']} pairs are too few to tell"
            ends = f"{100 * test['low']:+.2f} to {100 * test['high']:+.2f}"
            out().print(
                f"{titles[test['first']]} - {titles[test['second']]}: "
                f"{100 * test['difference']:+.2f} ({ends}), p {test['p_value']:.3g}, "
                f"corrected {test['corrected']:.3g}: {verdict}",
                soft_wrap=True,
            )
    print(f"Wrote {folder / 'summary.json'}. A page: weiss report {folder}")


def _row_title(row: dict[str, Any]) -> str:
    at = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in row["at"].items())
    return plain(" ".join(filter(None, (row["title"], at, row.get("network")))))


def _cell(score: dict[str, Any] | None, name: str) -> str:
    if score is None:
        return "-"
    is_share = SHOWN.get(name, "").endswith("(%)")
    scale, digits, few = (100, ".2f", ".2f") if is_share else (1, ".4g", ".2g")
    ends = None if score["low"] is None else scale * (score["high"] - score["low"]) / 2
    return f"{scale * score['mean']:{digits}}" + ("" if ends is None else f" ± {ends:{few}}")


def plain(text: str) -> str:
    """Return text without control characters, and with brackets that are not markup of rich."""
    return escape(UNPRINTABLE.sub("\ufffd", text))


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one message."""
    err().print(f"[yellow]Warning:[/] {plain(str(message))}", soft_wrap=True)


def say_what_was_given(error: Any) -> None:
    """Add the value to an error of typer about its type; newer versions leave it out."""
    found = getattr(error.__cause__, "errors", None)  # of pydantic's ValidationError
    if hasattr(error, "message") and callable(found):
        wrong = found()[0]
        law = NUMBERS.get(wrong["type"], error.message)
        error.message = f"{law}; got {wrong['input']!r}."


def out() -> Console:
    """Return the console for results."""
    return Console(highlight=False)


def err() -> Console:
    """Return the console for messages."""
    return Console(stderr=True, highlight=False)


def print_error(text: str) -> None:
    """Print an error on standard error."""
    err().print(f"[bold red]Error:[/] {plain(text)}", soft_wrap=True)


def print_note(text: str) -> None:
    """Print a note on standard error."""
    err().print(f"[yellow]Note:[/] {plain(text)}", soft_wrap=True)
