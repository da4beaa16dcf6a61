"""What a catalogue gives out: items, hits, a threshold, their form in JSON; and its errors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from weiss.data.list_columns import Value
from weiss.evaluation.statistics import percent

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that move a cursor or break a line, and bytes of a file name that are no UTF-8."""

LINES = re.compile(CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b\x0c\x0e-\x1f"))
"""The same without the tabs and the ends of lines that a long text may have."""
CLASS = "class"
"""By which conditions name the label of an item; no column has this name."""
SIGNS = frozenset("=!<>")
"""What conditions compare by; no column has one in its name, which would end there."""
MOST_SHOWN = 60
"""Letters of a value that consists of words, on a terminal."""

REPAIR = "Copy the index again, or make it again: weiss index [RUN] IMAGES --out INDEX --replace"


def printable(name: str) -> str:
    r"""Return the name of an item, class or collection without control characters.

    Example:
        >>> printable("caf\udce9") == "caf\ufffd", printable("a\x1b[2Jb") == "a\ufffd[2Jb"
        (True, True)
    """
    return CONTROL.sub("\ufffd", name)


def shown(value: Value | None) -> Value | None:
    """Return the value of a column without control characters."""
    return LINES.sub("\ufffd", value) if isinstance(value, str) else value


def in_short(value: Value) -> str:
    r"""Return the value of a column as text of one line, at most so many letters.

    Example:
        >>> in_short(True), in_short(4.0), in_short("two\nlines")
        ('true', '4', 'two lines')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    text = printable(" ".join(str(value).split()))
    is_short = len(text) <= MOST_SHOWN or " " not in text  # half an address is of no use
    return text if is_short else f"{text[: MOST_SHOWN - 3]}..."


class UnknownItemError(KeyError):
    """The index holds no such item; the message names it."""

    def __str__(self) -> str:
        """Return the message as it is, not quoted as a key would be."""
        return str(self.args[0]) if self.args else ""


class DamagedIndexError(ValueError):
    """A file of an index is missing, cut off or changed; the message names the file."""


def damaged(name: str, why: object) -> DamagedIndexError:
    """Return the error for a damaged file of an index."""
    reason = str(why).rstrip(".")
    return DamagedIndexError(f"{name} of the index is damaged: {reason}. {REPAIR}")


class OtherModelError(ValueError):
    """Vectors of two different networks cannot be compared."""


@dataclass(frozen=True)
class Item:
    """An item of a catalogue.

    Attributes:
        id: never used again, not even after the item was removed.
        name: the path below the collection, or the collection's own name for it; never a path of
            the machine.
        class_names: the classes it belongs to; empty if they are unknown.
        columns: what a list said about it beyond its class, by the name of the column; without
            values that are missing.
    """

    id: int
    name: str
    class_names: tuple[str, ...]
    columns: Mapping[str, Value] = field(default_factory=dict, hash=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the item for JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "classes": list(self.class_names),
            "columns": dict(self.columns),
        }


@dataclass(frozen=True)
class Hit:
    """An item that a search has found.

    Attributes:
        item: the item.
        similarity: the cosine between it and the query, in -1..1.
        distance: 1 - similarity.
        is_match: whether the similarity reaches the threshold; None without one.
    """

    item: Item
    similarity: float
    distance: float
    is_match: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Return the hit for JSON."""
        return {
            **self.item.as_dict(),
            "similarity": self.similarity,
            "distance": self.distance,
            "match": self.is_match,
        }


@dataclass(frozen=True)
class Threshold:
    """The similarity from which on two pictures count as showing the same class.

    Attributes:
        similarity: a hit with at least this similarity is a match.
        false_match_rate: the share of impostors (queries whose class is not in the gallery) that
            find a match; measured on classes that never trained, each with the threshold that the
            others set. None for a threshold that was given and could not be measured.
        true_match_rate: the share of queries with their class in the gallery that find a match of
            it; measured on the same classes.
        basis: which classes, how many queries, against how many items.
        intervals: the two ends of the 95 % interval of each number above, by its name; without
            ``similarity`` where the threshold was given. Empty in an index of an older version.
    """

    similarity: float
    false_match_rate: float | None
    true_match_rate: float | None
    basis: str
    intervals: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, name: str) -> str:
        """Return a rate by its name in words, with its interval: ``4 % (3 to 6 %)``."""
        value, ends = getattr(self, name), self.intervals.get(name)
        if value is None:
            return "an unknown share"
        if ends is None:
            return percent(value)
        low, high = (percent(end, ends) for end in ends)
        return f"{percent(value, ends)} ({low.removesuffix(' %')} to {high})"

    def similarity_in_words(self) -> str:
        """Return the threshold with its interval: ``0.948 (0.941 to 0.955)``."""
        ends = self.intervals.get("similarity")
        between = "" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f})"
        return f"{self.similarity:.3f}{between}"


def kept_threshold(kept: dict[str, Any]) -> Threshold:
    """Return the threshold of a manifest, which keeps more than users need."""
    return Threshold(
        **{each.name: kept[each.name] for each in fields(Threshold) if each.name in kept}
    )


def search_answer(hits: Sequence[Hit], threshold: Threshold | None) -> dict[str, Any]:
    """Return the result of a search for JSON, as `weiss search --json` and the server give it.

    It has ``threshold`` (dict or None), ``match`` (whether the nearest item is a match; None
    without a threshold) and ``results``, one `Hit.as_dict` each.
    """
    match = None if threshold is None else bool(hits and hits[0].is_match)
    return {
        "threshold": None if threshold is None else asdict(threshold),
        "match": match,
        "results": [hit.as_dict() for hit in hits],
    }


def verdict(hits: Sequence[Hit], threshold: Threshold | None, where: Sequence[str] = ()) -> str:
    """Return one line: whether there is a match, and the error rate of the threshold."""
    if not hits:
        which = f"no item with {' and '.join(where)}" if where else "no other item"
        return f"nothing was found: the index has {which}"
    best = hits[0]
    if threshold is None:
        return f"the nearest has similarity {best.similarity:.3f}; the index has no threshold"
    rate = f"threshold {threshold.similarity:.3f}, which "
    rate += f"{threshold.rate('false_match_rate')} of impostors reach"
    if not best.is_match:
        return f"no match: the nearest has similarity {best.similarity:.3f}, below the {rate}"
    count = sum(bool(hit.is_match) for hit in hits)
    number = f"{count} matches" if count > 1 else "a match"
    return f"{number}: the nearest has similarity {best.similarity:.3f}, above the {rate}"
