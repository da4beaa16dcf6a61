"""Tables as the paper prints them: one description each, which every format is written from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from weiss.evaluation.metrics import TITLES
from weiss.reporting.captions import how_measured, num_values
from weiss.reporting.page import are_numbers
from weiss.reporting.published import Published, published, published_at
from weiss.reporting.reading import Comparison, axis_value, is_reference, mean_of

Cell = str | None
"""What stands in a cell; None is absent, which is shown as a dash and never as a zero."""
Row = Mapping[str, Any]
DECIMALS = {"reality-check": 2}
"""Digits after the point of a score in per cent, where it is not one; as the paper has it."""
BREAKDOWN = {"spread": "spread", "pair": "pair loss", "mean_field": "mean field"}
BREAKDOWN |= {"gap": "gap", "excess": "excess"}
FOLDS = 4
"""Of a reality check that does not say how many it has, as in the paper."""
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Table:
    """A table, whatever format it is to be written in.

    Attributes:
        headers: the names of the columns.
        rows: the cells, as they are shown.
        caption: what the reader sees, in plain text.
        best: the cells to print bold, as ``(row, column)`` from 0.
        groups: headings above the headers, each with how many columns it spans; or none.
        apart: rows that are set apart: what the others are measured against.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    best: frozenset[tuple[int, int]] = frozenset()
    groups: tuple[tuple[str, int], ...] = ()
    apart: frozenset[int] = frozenset()

    def is_number(self, column: int) -> bool:
        """Say whether a column holds numbers, which stand right."""
        return are_numbers([row[column] for row in self.rows])


@dataclass(frozen=True)
class Column:
    """A column on its way into a table.

    Attributes:
        header: its name.
        cells: as they are shown.
        better: which value is the best and bold, if any is.
        values: what the cells show, to tell the best; None for what does not compete.
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
) -> Table:
    """Put columns side by side and find the best of each.

    Cells whose mean reads the same as the best's are as good: the digits shown do not tell them
    apart. Where only one row has a value, or all read the same, nothing is best.
    """
    best = set()
    for at, column in enumerate(columns):
        known = [value for value in column.values if value is not None]
        if column.better is None or len(known) < 2:
            continue
        first = column.values.index(max(known) if column.better == "high" else min(known))
        shown = _mean_part(column.cells[first])
        alike = {
            (row, at)
            for row, cell in enumerate(column.cells)
            if column.values[row] is not None and _mean_part(cell) == shown
        }
        best |= alike if len(alike) < len(known) else set()
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


def score_cell(score: Mapping[str, Any] | None, *, factor: float = 100, decimals: int = 1) -> Cell:
    """Return a score as ``25.3 ± 0.3``: its mean and half the width of its interval, if it has one.

    Example:
        >>> score_cell({"mean": 0.253, "low": 0.25, "high": 0.256})
        '25.3 ± 0.3'
        >>> score_cell({"mean": 0.253}), score_cell(None)
        ('25.3', None)
    """
    mean = (score or {}).get("mean")
    if score is None or mean is None or not math.isfinite(mean):
        return None
    low, high = score.get("low"), score.get("high")
    shown = f"{factor * mean:.{decimals}f}"
    if low is None or high is None or not math.isfinite(high - low):
        return shown
    return f"{shown} ± {factor * (high - low) / 2:.{decimals}f}"


def paper_cell(number: Published | None, decimals: int = 1) -> Cell:
    """Return a number of the paper the way ours are shown."""
    if number is None:
        return None
    return f"{number.mean:.{decimals}f} ± {number.half_width:.{decimals}f}"


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
    """Return the tables of a comparison's scores, as its kind wants them."""
    if not comparison.rows:
        return []
    match comparison.kind:
        case "reality-check":
            return _reality_check(comparison)
        case "dimension" | "batch-size" | "regularisation":
            return [_by_axis(comparison, name) for name in TITLES if _has(comparison, name)]
        case "classes":
            names = {"milliseconds": "Milliseconds", "megabytes": "Megabytes"}
            return [
                _costs_by_axis(comparison, name, title)
                for name, title in names.items()
                if _has(comparison, name)
            ]
        case "beta-delta":
            return _grids(comparison)
        case "breakdown":
            return [_breakdown(comparison)]
        case _:
            return [_bench(comparison)]


def _has(comparison: Comparison, name: str) -> bool:
    return any(mean_of(row, name) is not None for row in comparison.rows)


def _score_column(
    header: str, rows: Sequence[Row], name: str, *, decimals: int = 1, factor: float = 100
) -> Column:
    """Return the column of a score; what nothing was trained for competes with nothing."""
    cells: list[Cell] = []
    values: list[float | None] = []
    for row in rows:
        competes = bool(row) and not is_reference(row)
        score = row.get("scores", {}).get(name) if competes or name != "epoch" else None
        cells.append(score_cell(score, factor=factor, decimals=decimals))
        values.append(mean_of(row, name) if competes else None)
    return Column(header, cells, "low" if name == "epoch" else "high", values)


def _with_paper(
    comparison: Comparison, header: str, name: str, *, factor: float = 100
) -> list[Column]:
    """Return the column of a score and, where the paper has it for any loss, the paper's beside."""
    rows, decimals = comparison.rows, DECIMALS.get(comparison.kind, 1)
    ours = _score_column(header, rows, name, decimals=decimals, factor=factor)
    data = str(comparison.summary.get("data"))
    # The paper's numbers are those of its settings, not of a loss with others.
    numbers = [
        None if row.get("changes") else published(comparison.kind, data, row["loss"], name)
        for row in rows
    ]
    if not any(numbers):
        return [ours]
    return [ours, Column("paper", [paper_cell(number, decimals) for number in numbers])]


def _apart(rows: Sequence[Row]) -> list[int]:
    return [at for at, row in enumerate(rows) if is_reference(row)]


def _bench(comparison: Comparison) -> Table:
    """Return losses (and, in a study of ways, these) against scores."""
    rows = comparison.rows
    columns = [Column("loss", [row["title"] for row in rows])]
    for axis in comparison.summary.get("axes", ()):
        values = [row.get("at", {}).get(axis["key"]) for row in rows]
        cells = [None if value is None else axis_value(value) for value in values]
        columns.append(Column(axis["label"], cells))
    for name, title in TITLES.items():
        columns += _with_paper(comparison, title, name)
    columns += _with_paper(comparison, "best epoch", "epoch", factor=1)
    columns.append(Column("runs", [str(num_values(row, "map_at_r")) for row in rows]))
    has_paper = any(column.header == "paper" for column in columns)
    caption = how_measured(comparison, has_paper=has_paper)
    return from_columns(columns, f"{caption} Bold: the best of a column.", apart=_apart(rows))


def _reality_check(comparison: Comparison) -> list[Table]:
    """Return separated and concatenated scores; with the paper's beside them, a table each."""
    rows, size = comparison.rows, comparison.summary.get("embedding_size")
    folds = (comparison.summary.get("protocol") or {}).get("folds", FOLDS)
    parts = {"separated": size, "concatenated": folds * size if isinstance(size, int) else None}
    names = Column("loss", [row["title"] for row in rows])
    number = [str(num_values(row, comparison.main_metric)) for row in rows]
    blocks = {}
    for part, dimensions in parts.items():
        title = part if dimensions is None else f"{part}, {dimensions}-d"
        blocks[title] = [
            column
            for name, header in TITLES.items()
            for column in _with_paper(comparison, header, f"{part}.{name}")
        ]
    has_paper = any(column.header == "paper" for block in blocks.values() for column in block)
    caption = how_measured(comparison, has_paper=has_paper)
    caption += f" Separated: mean of the networks of {folds} folds; concatenated: their embeddings "
    caption += "side by side. Bold: the best of a column."
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
        found.setdefault((row["loss"], row["title"]), {})[row.get("at", {}).get(key)] = row
    return found


def _axis(comparison: Comparison, number: int = 0) -> tuple[str, str, list[Any]]:
    """Return key, label and values of an axis; values that only rows know come last."""
    axis = comparison.summary["axes"][number]
    at = [row.get("at", {}).get(axis["key"]) for row in comparison.rows]
    values = dict.fromkeys([*axis.get("values", ()), *(v for v in at if v is not None)])
    return axis["key"], axis.get("label", axis["key"]), list(values)


def _everywhere(comparison: Comparison, key: str, points: Mapping[Any, Row]) -> dict[Any, Row]:
    """Return the row at each value; a network that was not trained is the same at all of them."""
    if None not in points:
        return dict(points)
    values = _axis(comparison)[2]
    if key == "backbone.embedding_size":  # on which every network depends
        values = [comparison.summary.get("embedding_size")]
    return {**dict.fromkeys(values, points[None]), **points}


def _by_axis(comparison: Comparison, name: str) -> Table:
    """Return a score of each loss at each value of the study's axis, the paper's beside it."""
    key, label, values = _axis(comparison)
    data, blocks = str(comparison.summary.get("data")), []
    for (loss, title), points in _series(comparison, key).items():
        rows = [_everywhere(comparison, key, points).get(value, {}) for value in values]
        block = [_score_column(title, rows, name)]
        is_changed = any(row.get("changes") for row in rows)
        numbers = [published_at(comparison.kind, data, loss, value) for value in values]
        if name == "map_at_r" and any(numbers) and not is_changed:
            block.append(Column("paper", [paper_cell(number) for number in numbers]))
        blocks.append(block)
    has_paper = any(len(block) > 1 for block in blocks)
    columns = [Column(label, [axis_value(value) for value in values])]
    columns += [column for block in blocks for column in block]
    caption = f"{TITLES[name]}. {how_measured(comparison, has_paper=has_paper)}"
    return from_columns(columns, f"{caption} Bold: the best value for a loss.")


def _costs_by_axis(comparison: Comparison, name: str, title: str) -> Table:
    """Return what a step of each loss costs at each number of classes."""
    key, label, values = _axis(comparison)
    series = _series(comparison, key)
    columns = [Column("loss", [title for _, title in series])]
    for value in values:
        means = [mean_of(points.get(value, {}), name) for points in series.values()]
        columns.append(Column(axis_value(value), [*map(significant, means)], "low", means))
    caption = f"{title} that one step of the loss takes, forward and backward, without the network;"
    caption += f" batch of {comparison.summary.get('batch_size')}. Bold: the least of a column."
    return from_columns(columns, caption, groups=[("", 1), (label, len(values))])


def _grids(comparison: Comparison) -> list[Table]:
    """Return a table for each loss: the first axis to the right, the second one down."""
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
            columns.append(replace(_score_column(axis_value(value), rows, "map_at_r"), better=None))
        levels = [
            f" {row['title'].capitalize()}: {score_cell(row['scores'].get('map_at_r'))}."
            for row in comparison.rows
            if is_reference(row) and mean_of(row, "map_at_r") is not None
        ]
        caption = f"MAP@R of {title}: {label} to the right, {down_label} down. "
        caption += f"{how_measured(comparison, has_paper=False)}{''.join(levels)}"
        table = from_columns(columns, f"{caption} Bold: the best of all.")
        means = {
            (row, column): value
            for column, each in enumerate(columns)
            for row, value in enumerate(each.values)
            if value is not None
        }
        if len(means) > 1:
            row, column = max(means, key=lambda place: means[place])
            shown = _mean_part(table.rows[row][column])
            alike = {(r, c) for r, c in means if _mean_part(table.rows[r][c]) == shown}
            table = replace(table, best=frozenset(alike))
        tables.append(table)
    return tables


def _breakdown(comparison: Comparison) -> Table:
    """Return how far a pair loss and its mean field are apart at each spread."""
    rows = comparison.rows
    networks = [f", {row['network']} network" if row.get("network") else "" for row in rows]
    losses = [f"{row['title']}{which}" for row, which in zip(rows, networks, strict=True)]
    columns = [Column("loss", losses)]
    for name, header in BREAKDOWN.items():
        asked = [row.get("at", {}).get(name) for row in rows]
        means = [mean_of(row, name) for row in rows]
        values = [a if m is None else m for a, m in zip(asked, means, strict=True)]
        columns.append(Column(header, [significant(value) for value in values]))
    caption = "Gap: pair loss less mean field. Excess: the gap less the gap at zero spread, where "
    caption += "every sample stands at its class's mean. Spread: mean distance of samples to it."
    return from_columns(columns, caption)
