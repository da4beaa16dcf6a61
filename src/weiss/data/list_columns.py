"""The further columns of a list of images: a price, the address of a page.

A table of items has no use for them; an index keeps them, and a folder of embeddings.

Values of a CSV or TSV file are text. A column of it holds numbers if every value is written as one,
with at most 15 digits: ``4.50`` is one, ``007`` is not, since it would lose its zeros. Empty values
and ``nan`` are missing.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss.data.object_storage import Objects
from weiss.data.own_data import read_csv
from weiss.data.table import Table

Value = str | int | float | bool
Columns = Mapping[str, Sequence[Value | None]]
"""Values of all items by the name of the column; None where one is missing."""
OWN = ("path", "label", "labels")
"""What a table of items is made of."""
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
MOST_DIGITS = 15
"""A float keeps so many; of whole numbers, so does JavaScript."""
MISSING = ("", "nan")


def list_columns(path: str | Path, table: Table) -> tuple[dict[str, list[Value | None]], list[str]]:
    """Return the further columns of a list, for the items of its table, in their order.

    Also why columns are left out: their names and reasons.
    """
    path = Path(path)
    if path.suffix.lower() == ".parquet":
        return plain_columns(arrow_columns(path, table)[0])
    given = read_csv(path)
    rows = _rows(given["path"], table)
    columns = {name: typed([given[name][row] for row in rows]) for name in given if name not in OWN}
    left_out = [_NAMELESS] if columns.pop("", None) is not None else []
    return columns, left_out


def arrow_columns(path: str | Path, table: Table) -> tuple[Any, list[str]]:
    """Return the further columns of a list as a table of pyarrow with a row for each item.

    Those of a Parquet file have its types. None if there are no further columns. Also why columns
    are left out: their names and reasons.
    """
    path = Path(path)
    if path.suffix.lower() != ".parquet":
        columns, left_out = list_columns(path, table)
        if not columns:
            return None, left_out  # also without pyarrow
        import pyarrow

        return pyarrow.table(columns), left_out
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(path)
    found = found.rename_columns([name.lower() for name in found.column_names])
    further = [name for name in found.column_names if name not in OWN]
    if not further:
        return None, []
    rows = _rows(found.column("path").to_pylist(), table)
    return found.select(further).take(rows).combine_chunks(), []


def plain_columns(found: Any) -> tuple[dict[str, list[Value | None]], list[str]]:
    """Return columns of pyarrow as text, numbers and bools, and which are left out, and why.

    Times become text, as do whole numbers with more than 15 digits; lists and structs become JSON.
    """
    import pyarrow

    columns: dict[str, list[Value | None]] = {}
    left_out: list[str] = []
    for name in () if found is None else found.column_names:
        column = found.column(name)
        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            values = _plain(column, pyarrow.types)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            left_out.append(f"{name}, of type {column.type} ({error})")
            continue
        if name.strip():
            columns[name] = values
        else:
            left_out.append(_NAMELESS)
    return columns, left_out


def typed(given: Sequence[str]) -> list[Value | None]:
    """Return values of a column of text as numbers if all are, None for those that are missing."""
    values = [None if value.strip().lower() in MISSING else value for value in given]
    numbers = [None if value is None else as_number(value) for value in values]
    are_numbers = all(
        value is None or number is not None for value, number in zip(values, numbers, strict=True)
    )
    return [*numbers] if are_numbers else [*values]


def kinds(values: Iterable[Value | None]) -> dict[str, Value]:
    """Return what kinds of values there are, each with the first one.

    Example:
        >>> kinds([None, 4.5, "on request", 3])
        {'numbers': 4.5, 'text': 'on request'}
    """
    found: dict[str, Value] = {}
    for value in values:
        if isinstance(value, bool):
            found.setdefault("true or false", value)
        elif value is not None:
            found.setdefault("text" if isinstance(value, str) else "numbers", value)
    return found


def as_number(text: str) -> int | float | None:
    """Return the number that a text writes; None if it is none, or one with too many digits.

    Example:
        >>> [as_number(text) for text in (" 4.50", "12", "007", "1e999", "4,99", "1_0")]
        [4.5, 12, None, None, None, None]
    """
    text = text.strip()
    if not NUMBER.fullmatch(text) or sum(map(str.isdigit, text)) > MOST_DIGITS:
        return None
    if text.removeprefix("-").isdigit():
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else None


_NAMELESS = "one without a name"


def _rows(paths: Iterable[Any], table: Table) -> list[int]:
    """Return the row of each item in the list."""
    source = table.source
    below = f"{source.root}/" if isinstance(source, Objects) else ""  # a list may have addresses
    first: dict[str, int] = {}
    for row, name in enumerate(paths):
        first.setdefault(str(name).removeprefix(below), row)
    return [first[source.name(row)] for row in range(len(table))]


def _plain(column: Any, types: Any) -> list[Value | None]:
    """Return a column of pyarrow as plain values; raise an error for what has no such form."""
    kind = column.type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        raise TypeError("it is neither text nor numbers")
    if types.is_nested(kind):
        words = [None if value is None else json.dumps(value) for value in column.to_pylist()]
        return [*words]
    if types.is_boolean(kind) or types.is_null(kind):
        return list(column.to_pylist())
    if types.is_decimal(kind):
        column, kind = column.cast("float64"), None
    if kind is None or types.is_floating(kind):
        floats = [None if v is None or math.isnan(v) else float(v) for v in column.to_pylist()]
        if any(v is not None and math.isinf(v) for v in floats):
            raise ValueError("it holds an infinite number")
        return [*floats]
    if types.is_integer(kind):
        wholes = column.to_pylist()
        if all(v is None or abs(v) < 10**MOST_DIGITS for v in wholes):
            return list(wholes)
    return list(column.cast("string").to_pylist())
