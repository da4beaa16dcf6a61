"""Conditions on the items of an index: what they say, which items satisfy them, the nearest ones.

    class=kiwi    price<5    colour!=red    date>=2024-06-01

A condition is a column, one of ``= != < <= > >=``, and a value. Several must hold together. A
number is compared with numbers, text with text in the order of the alphabet: where a column holds
both, text never satisfies ``price<5``. An item without a value satisfies no condition on it, not
even ``!=``.

Dimensions: n items, m of them satisfy the conditions, q queries, D embedding size.
"""

import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import some, suggestion
from weiss.catalogue.exact import nearest
from weiss.catalogue.records import CLASS, in_short
from weiss.catalogue.segments import Items
from weiss.catalogue.stores import best_first
from weiss.data.list_columns import MOST_DIGITS, NUMBER, as_number

CONDITION = re.compile(r"([^=!<>]+)(==|!=|<=|>=|=|<|>)(.*)", re.DOTALL)
"""No two parts of it can take the same letter, so that a text is refused in linear time."""
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EXAMPLES = "class=kiwi or price<5"
MOST_CONDITIONS, MOST_LETTERS = 32, 1000
"""More conditions of a search, and longer ones, are refused: a server gets them from anybody."""
MOST_NAMES = 2_000
"""Of more classes none is suggested: to look for a similar name takes long."""
ROWS_AT_ONCE = 32_768
"""Vectors that are compared at a time."""


class ConditionError(ValueError):
    """A condition cannot be understood, or does not fit the index."""


@dataclass(frozen=True)
class Condition:
    """A column, a sign of `COMPARE`, and the value to compare with, as it was written."""

    column: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read a condition.

        Example:
            >>> Condition.parse("price<= 4.50")
            Condition(column='price', sign='<=', value='4.50')
        """
        if len(text) > MOST_LETTERS:
            raise ConditionError(
                f"a condition must have at most {MOST_LETTERS:,} letters; got {len(text):,}. "
                "Shorten it."
            )
        found = CONDITION.fullmatch(text.strip())
        if found is None or not found[1].strip() or not found[3].strip():
            raise ConditionError(
                f"a condition must be a column, one of {' '.join(COMPARE)}, and a value, as "
                f"{EXAMPLES}; got {in_short(text)!r}."
            )
        column, sign, value = (part.strip() for part in found.groups())
        # Lists have their columns in small letters.
        return cls(column.lower(), "=" if sign == "==" else sign, value)


@dataclass(frozen=True)
class _Column:
    """The values of n items in a column.

    Attributes:
        numbers: float64 ``(n,)``; NaN where it is missing, text or a bool.
        words: different texts, sorted; bools are ``false`` and ``true``.
        codes: int64 ``(n,)``, the place of each text among the words, -1 for others.
    """

    numbers: Array
    words: list[str]
    codes: Array


class Filter:
    """Finds the items of an index that satisfy conditions.

    Args:
        items: of the index.
        by_class: the sorted ids of each class.
    """

    def __init__(self, items: Items, by_class: Mapping[str, Array]) -> None:
        self._items, self._by_class = items, by_class
        self.names = items.column_names()
        self._columns: dict[str, _Column] = {}

    def ids(self, where: Sequence[str]) -> Array:
        """Return the sorted ids ``(m,)`` of the items that satisfy all conditions.

        Raises:
            ConditionError: a condition cannot be understood, or does not fit the index.
        """
        if len(where) > MOST_CONDITIONS:
            raise ConditionError(
                f"a search must have at most {MOST_CONDITIONS} conditions; got {len(where)}. "
                "Leave some out."
            )
        holds: Array = np.ones(len(self._items.ids), dtype=bool)
        for condition in map(Condition.parse, where):
            of_class = condition.column == CLASS
            holds &= self._of_class(condition) if of_class else self._of_column(condition)
        return self._items.ids[holds]

    def _of_class(self, condition: Condition) -> Array:
        """Return which items, bool ``(n,)``, have a class, and if so this one, or not this one."""
        name = condition.value
        if condition.sign not in ("=", "!="):
            raise ConditionError(
                f"{CLASS} must be compared by = or !=; got {condition.sign}. Write {CLASS}={name}"
            )
        if name not in self._by_class:
            known = list(self._by_class)
            have = f"they are {some(known)}" if known else "its items have none"
            raise ConditionError(
                f"{CLASS} must be compared with a class of the index ({have}); got "
                f"{in_short(name)!r}.{suggestion(name, known) if len(known) <= MOST_NAMES else ''}"
            )
        is_in = np.isin(self._items.ids, self._by_class[name])
        if condition.sign == "=":
            return is_in
        has_any = np.isin(self._items.ids, np.concatenate(list(self._by_class.values())))
        return np.asarray(has_any & ~is_in)

    def _of_column(self, condition: Condition) -> Array:
        """Return which items, bool ``(n,)``, have a value that satisfies it in a column."""
        name, sign = condition.column, condition.sign
        if name not in self.names:
            known = [CLASS, *self.names]
            raise ConditionError(
                f"a condition must name a column of the index ({', '.join(known)}); got "
                f"{in_short(name)!r}.{suggestion(name, known)}"
            )
        column = self._column(name)
        compare, number = COMPARE[sign], as_number(condition.value)
        is_ordering, is_number = sign not in ("=", "!="), ~np.isnan(column.numbers)
        is_long = is_ordering and NUMBER.fullmatch(condition.value) is not None
        if number is None and is_number.any() and (is_long or not column.words):
            raise ConditionError(
                f"{name} holds numbers and must be compared with one, of at most {MOST_DIGITS} "
                f"digits; got {in_short(condition.value)!r}. Write it like 4 or 4.50"
            )
        if is_ordering and number is not None and column.words and not is_number.any():
            raise ConditionError(
                f"{name} must hold numbers to be compared by {sign} with {condition.value}; its "
                f"{int((column.codes >= 0).sum()):,} values are text, such as "
                f"{in_short(column.words[0])!r}. Write the value as these are written, or give "
                "the column numbers alone in the list."
            )
        # A number is compared with numbers, text with text. Only = and != may mean either.
        holds = np.zeros(len(column.codes), dtype=bool)
        if number is not None:
            holds |= is_number & compare(column.numbers, number)
            if is_ordering:
                return holds
        elif sign == "!=":
            holds |= is_number
        is_yes_or_no = {*column.words[:3]} <= {"false", "true"}  # they are different
        meant = condition.value.lower() if is_yes_or_no else condition.value
        # The words are sorted: -1 for those before the one that is meant, 0 for itself, 1 after it.
        order = np.zeros(len(column.codes), dtype=np.int8) - 1
        order += column.codes >= bisect_left(column.words, meant)
        order += column.codes >= bisect_right(column.words, meant)
        return np.asarray(holds | ((column.codes >= 0) & compare(order, 0)))

    def _column(self, name: str) -> _Column:
        """Return a column, made at its first use."""
        if name not in self._columns:
            values = [
                str(value).lower() if isinstance(value, bool) else value
                for value in self._items.column(name)
            ]
            words = sorted({value for value in values if isinstance(value, str)})
            place = {word: at for at, word in enumerate(words)}
            self._columns[name] = _Column(
                np.array(
                    [np.nan if v is None or isinstance(v, str) else v for v in values], dtype=float
                ),
                words,
                np.array([place[v] if isinstance(v, str) else -1 for v in values], dtype=np.int64),
            )
        return self._columns[name]


def nearest_of(items: Items, ids: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """Compare queries ``(q, D)`` with all items of the sorted ids ``(m,)``: exact.

    The result has the form of `VectorStore.search`.
    """
    return best_first(*nearest(items.vectors_of(ids, ROWS_AT_ONCE), queries, k), k)
