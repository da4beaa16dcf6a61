"""Tables of a comparison, as the paper prints them; every format is written from a `Table`.

To add the table of a new kind of comparison, add a function and a case in `comparison_tables`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weiss.evaluation.metrics import TITLES
from weiss.reporting.page import are_numbers
from weiss.reporting.published import difference_in_words, published, source
from weiss.reporting.reading import (
    Comparison,
    Row,
    Score,
    axis_value,
    folds_of,
    is_reference,
    mean_of,
    parts_of,
    score_of,
    values_of,
)

Cell = str | None
"""The text of a cell; None is shown as a dash."""
DECIMALS = {"reality-check": 2}
"""Decimals of a score in per cent, if not one; as in the paper."""
BREAKDOWN = {"spread": "spread", "pair": "pair loss", "mean_field": "mean field"}
BREAKDOWN |= {"gap": "gap", "excess": "excess"}
COSTS = {"milliseconds": "Median milliseconds", "megabytes": "Peak megabytes"}
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Table:
    """A table, independent of the format.

    ``best`` are the bold cells, as ``(row, column)`` from 0. ``groups`` are headings above the
    headers, each with the number of columns it spans. Rows of ``apart`` are set apart: baselines
    such as the untrained network.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    best: frozenset[tuple[int, int]] = frozenset()
    groups: tuple[tuple[str, int], ...] = ()
    apart: frozenset[int] = frozenset()

    def is_number(self, column: int) -> bool:
        """Return whether a column holds numbers, which are aligned to the right."""
        return are_numbers([row[column] for row in self.rows])


@dataclass(frozen=True)
class Column:
    """A column of a table.

    ``better`` is which value is the best and bold, if any is; ``values`` are the numbers of the
    cells, to find it, None for rows that do not compete.
    """

    header: str
    cells: Sequence[Cell]
    better: Literal["high", "low"] | None = None
    values: Sequence[float | None] = ()


def from_columns(
    columns: Sequence[Column],
    caption: str,
    *,
    apart: Sequence[int] = (),
    groups: Sequence[tuple[str, int]] = (),
    is_grid: bool = False,
) -> Table:
    """Make a table of columns and mark the best cells of each, of a grid those of the whole.

    Cells that show the same mean as the best one are best too. If only one cell has a value, or all
    show the same, none is.
    """
    known = [
        {
            (row, at): value
            for row, value in enumerate(column.values)
            if value is not None and column.better
        }
        for at, column in enumerate(columns)
    ]
    if is_grid:
        known = [{place: value for own in known for place, value in own.items()}]
    best: set[tuple[int, int]] = set()
    for values in known:
        if not values:
            continue
        is_high = columns[next(iter(values))[1]].better == "high"
        first = (max if is_high else min)(values, key=lambda place: values[place])
        shown = {(row, at): _mean_part(columns[at].cells[row]) for row, at in values}
        alike = {place for place in values if shown[place] == shown[first]}
        best |= alike if len(alike) < len(values) else set()
    return Table(
        tuple(column.header for column in columns),
        tuple(zip(*(column.cells for column in columns), strict=True)),
        caption,
        frozenset(best),
        tuple(groups),
        frozenset(apart),
    )


def _mean_part(cell: Cell) -> str:
    return (cell or "").partition(" ±")[0]


def score_cell(score: Score | None, decimals: int = 1) -> Cell:
    """Return a score as ``25.3 ± 0.3``: its mean and half the width of its interval, if it has one.

    Example:
        >>> score_cell(Score((), 25.3, 25.0, 25.6)), score_cell(Score((), 25.3)), score_cell(None)
        ('25.3 ± 0.3', '25.3', None)
    """
    if score is None:
        return None
    shown = f"{score.mean:.{decimals}f}"
    if score.low is None or score.high is None:
        return shown
    return f"{shown} ± {(score.high - score.low) / 2:.{decimals}f}"


def significant(value: float | None) -> Cell:
    """Return about three digits of a number of any size.

    Example:
        >>> significant(1234.5), significant(1.2345), significant(0.00012345), significant(None)
        ('1,234', '1.23', '0.000123', None)
    """
    if value is None or not math.isfinite(value):
        return None
    size = abs(value)
    if 0 < size < 1e-7:
        shown = f"{value:.2e}"
    else:
        digits = 2 - math.floor(math.log10(size)) if size else 0
        shown = f"{value:,.{min(max(digits, 0), 9)}f}"
    return shown.replace("-", MINUS)


def settings_text(settings: Mapping[str, Any]) -> Cell:
    """Return settings in a line, numbers to four digits; None if there are none."""
    parts = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
    )
    return ", ".join(parts) or None


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the tables of scores of a comparison, by its kind."""
    if not comparison.rows:
        return []
    match comparison.kind:
        case "reality-check":
            return _reality_check(comparison)
        case "dimension" | "batch-size" | "regularisation":
            return [_by_axis(comparison, name) for name in TITLES if _has(comparison, name)]
        case "classes":
            return [_costs_by_axis(comparison, name) for name in COSTS if _has(comparison, name)]
        case "beta-delta":
            return _grids(comparison)
        case "breakdown":
            return [_breakdown(comparison)]
        case _:
            return [_bench(comparison)]


def _how_measured(comparison: Comparison, *, has_paper: bool) -> str:
    """Return the part that all captions of scores share: unit, interval, data, source."""
    counts = [len(values_of(row, comparison.main_metric)) for row in comparison.trained]
    most = max(counts, default=0)
    what = "repeats" if comparison.kind == "reality-check" else "runs"
    if most > 1:
        words = f"Per cent; mean ± half the width of its 95 % t-interval over up to {most} {what}"
        words += "; without ± there is one value only."
    else:
        words = "Per cent; one run each, so there is no interval."
    measured = comparison.summary.get("measured_on")
    chosen = comparison.summary.get("selected_on", measured)
    if measured == "test" and comparison.kind != "reality-check":
        words += " Measured on the test set"
        if chosen == "test":
            words += ", which also chose the epoch, as in the paper."
        else:
            words += f"; the epoch was chosen on {chosen}."
    elif measured and measured != "nothing" and comparison.kind != "reality-check":
        words += f" Measured on: {measured}."
    asked = ((comparison.summary.get("recipe") or {}).get("train") or {}).get("epochs")
    was_last = [
        value == row["changes"].get("train.epochs", asked)
        for row in comparison.trained
        for value in values_of(row, "epoch")
    ]
    if asked is not None and was_last and all(was_last):
        words += " The best epoch was the last in every run: none had stopped improving."
    if has_paper:
        words += f" Paper: {source()}.{difference_in_words(comparison.summary)}"
    return words


def _has(comparison: Comparison, name: str) -> bool:
    return any(mean_of(row, name) is not None for row in comparison.rows)


def _score_column(
    header: str, rows: Sequence[Row], name: str, *, decimals: int = 1, factor: float = 100
) -> Column:
    """Return the column of a score; untrained networks do not compete for the best."""
    cells: list[Cell] = []
    values: list[float | None] = []
    for row in rows:
        competes = bool(row) and not is_reference(row)
        score = score_of(row, name, factor) if competes or name != "epoch" else None
        # An epoch is a whole number; a mean of several is not.
        is_epoch = name == "epoch" and score is not None and len(score.values) == 1
        cells.append(score_cell(score, 0 if is_epoch else decimals))
        values.append(score.mean if score and competes else None)
    return Column(header, cells, "low" if name == "epoch" else "high", values)


def _with_paper(
    comparison: Comparison, header: str, name: str, *, factor: float = 100
) -> list[Column]:
    """Return the column of a score and, if the paper has it for any loss, the paper's."""
    rows, decimals = comparison.rows, DECIMALS.get(comparison.kind, 1)
    ours = _score_column(header, rows, name, decimals=decimals, factor=factor)
    numbers = [published(comparison.summary, row, name) for row in rows]
    if not any(numbers):
        return [ours]
    return [ours, Column("paper", [score_cell(number, decimals) for number in numbers])]


def _apart(rows: Sequence[Row]) -> list[int]:
    return [at for at, row in enumerate(rows) if is_reference(row)]


def _bench(comparison: Comparison) -> Table:
    """Return losses (and values of axes, if any) against scores."""
    rows = comparison.rows
    columns = [Column("loss", [row["title"] for row in rows])]
    for axis in comparison.summary["axes"]:
        values = [row["at"].get(axis["key"]) for row in rows]
        cells = [None if value is None else axis_value(value) for value in values]
        columns.append(Column(axis["label"], cells))
    for name, title in TITLES.items():
        if _has(comparison, name):
            columns += _with_paper(comparison, title, name)
    columns += _with_paper(comparison, "best epoch", "epoch", factor=1)
    columns.append(Column("runs", [str(len(values_of(row, "map_at_r"))) for row in rows]))
    has_paper = any(column.header == "paper" for column in columns)
    caption = _how_measured(comparison, has_paper=has_paper)
    return from_columns(columns, f"{caption} Bold: the best of a column.", apart=_apart(rows))


def _reality_check(comparison: Comparison) -> list[Table]:
    """Return separated and concatenated scores; with the paper's numbers, a table each."""
    rows = comparison.rows
    names = Column("loss", [row["title"] for row in rows])
    number = [str(len(values_of(row, comparison.main_metric))) for row in rows]
    blocks = {}
    for part, title in parts_of(comparison.summary).items():
        blocks[title] = [
            column
            for name, header in TITLES.items()
            if _has(comparison, f"{part}.{name}")
            for column in _with_paper(comparison, header, f"{part}.{name}")
        ]
    blocks = {title: block for title, block in blocks.items() if block}
    has_paper = any(column.header == "paper" for block in blocks.values() for column in block)
    caption = _how_measured(comparison, has_paper=has_paper)
    caption += f" Separated: mean of the networks of {folds_of(comparison.summary)} folds; "
    caption += "concatenated: their embeddings side by side. Bold: the best of a column."
    together = [blocks] if not has_paper else [{title: block} for title, block in blocks.items()]
    tables = []
    for shown in together:
        columns = [names, *(column for block in shown.values() for column in block)]
        groups = [("", 1), *((title, len(block)) for title, block in shown.items()), ("", 1)]
        columns.append(Column("repeats", number))
        tables.append(from_columns(columns, caption, apart=_apart(rows), groups=groups))
    return tables


def _series(comparison: Comparison, key: str) -> dict[tuple[str, str], dict[Any, Row]]:
    """Return for each loss, by name and title, the row at each value of an axis."""
    found: dict[tuple[str, str], dict[Any, Row]] = {}
    for row in comparison.rows:
        found.setdefault((row["loss"], row["title"]), {})[row["at"].get(key)] = row
    return found


def _axis(comparison: Comparison, number: int = 0) -> tuple[str, str, list[Any]]:
    """Return key, label and values of an axis; values that only rows have come last."""
    axis = comparison.summary["axes"][number]
    at = [row["at"].get(axis["key"]) for row in comparison.rows]
    values = dict.fromkeys([*axis.get("values", ()), *(v for v in at if v is not None)])
    return axis["key"], axis["label"], list(values)


def _by_axis(comparison: Comparison, name: str) -> Table:
    """Return a score of each loss at each value of the study's axis, the paper's beside it."""
    key, label, values = _axis(comparison)
    columns = [Column(label, [axis_value(value) for value in values])]
    for (_, title), points in _series(comparison, key).items():
        if None in points:
            # An untrained network is the same at all values, except for another embedding size.
            size = [comparison.summary.get("embedding_size")]
            same = size if key == "backbone.embedding_size" else values
            points = {**dict.fromkeys(same, points[None]), **points}
        columns.append(_score_column(title, [points.get(value, {}) for value in values], name))
        row = next(iter(points.values()))
        numbers = [published(comparison.summary, row, name, at=value) for value in values]
        if any(numbers):
            columns.append(Column("paper", [score_cell(number) for number in numbers]))
    has_paper = any(column.header == "paper" for column in columns)
    caption = f"{TITLES[name]}. {_how_measured(comparison, has_paper=has_paper)}"
    return from_columns(columns, f"{caption} Bold: the best value for a loss.")


def _costs_by_axis(comparison: Comparison, name: str) -> Table:
    """Return the cost of a step of each loss at each number of classes."""
    key, label, values = _axis(comparison)
    series = _series(comparison, key)
    columns = [Column("loss", [title for _, title in series])]
    for value in values:
        means = [mean_of(points.get(value, {}), name) for points in series.values()]
        columns.append(Column(axis_value(value), [*map(significant, means)], "low", means))
    caption = f"{COSTS[name]} of one step of the loss, forward and backward, without the network; "
    caption += f"batch of {comparison.summary.get('batch_size')}. Bold: the least of a column."
    return from_columns(columns, caption, groups=[("", 1), (label, len(values))])


def _grids(comparison: Comparison) -> list[Table]:
    """Return a table for each loss: columns are the first axis, rows the second."""
    (key, label, values), (down_key, down_label, down) = _axis(comparison), _axis(comparison, 1)
    tables = []
    for title in dict.fromkeys(row["title"] for row in comparison.trained):
        at = {
            (row["at"].get(key), row["at"].get(down_key)): row
            for row in comparison.trained
            if row["title"] == title
        }
        columns = [Column(f"{down_label} \\ {label}", [axis_value(value) for value in down])]
        for value in values:
            rows = [at.get((value, other), {}) for other in down]
            columns.append(_score_column(axis_value(value), rows, "map_at_r"))
        levels = [
            f" {row['title'].capitalize()}: {score_cell(score)}."
            for row in comparison.rows
            if is_reference(row) and (score := score_of(row, "map_at_r", 100))
        ]
        caption = f"MAP@R of {title}: {label} to the right, {down_label} down. "
        caption += f"{_how_measured(comparison, has_paper=False)}{''.join(levels)}"
        tables.append(from_columns(columns, f"{caption} Bold: the best of all.", is_grid=True))
    return tables


def _breakdown(comparison: Comparison) -> Table:
    """Return the gap between a pair loss and its mean field at each spread."""
    rows = comparison.rows
    networks = [f", {row['network']} network" if row.get("network") else "" for row in rows]
    losses = [f"{row['title']}{which}" for row, which in zip(rows, networks, strict=True)]
    columns = [Column("loss", losses)]
    for name, header in BREAKDOWN.items():
        asked = [row["at"].get(name) for row in rows]
        means = [mean_of(row, name) for row in rows]
        values = [a if m is None else m for a, m in zip(asked, means, strict=True)]
        columns.append(Column(header, [significant(value) for value in values]))
    caption = "Gap: pair loss less mean field. Excess: the gap less the gap at zero spread, where "
    caption += "every sample is at its class's mean. Spread: mean distance of samples to it."
    return from_columns(columns, caption)
