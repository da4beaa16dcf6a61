"""What a catalogue speaks of: items, hits, a threshold, a map; and what can be wrong with it.

Dimensions: n items, D embedding size, m fields.
"""

import re
from dataclasses import dataclass

from weiss._base.arrays import Array

UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that move a cursor or break a line, and halves of bytes that were no text."""


def shown(name: str) -> str:
    r"""Return a name as it can be shown and written anywhere: of items, classes, collections.

    Example:
        >>> shown("caf\udce9") == "caf\ufffd", shown("a\x1b[2Jb") == "a\ufffd[2Jb"
        (True, True)
    """
    return UNSEEN.sub("\ufffd", name)


class UnknownItemError(KeyError):
    """An item that the index does not hold; the message says which."""

    def __str__(self) -> str:
        """Return the message as it is, not quoted as a key would be."""
        return str(self.args[0]) if self.args else ""


class DamagedIndexError(ValueError):
    """A file of an index is missing, cut off or changed; the message says which by its name."""


class OtherModelError(ValueError):
    """Vectors of one network were to be compared with those of another."""


@dataclass(frozen=True)
class Item:
    """Something that can be found.

    Attributes:
        id: never used again, not even after the item was removed.
        name: the path below the collection, or what the collection calls it; never a path of the
            machine.
        class_names: the classes it belongs to; none if nobody said.
    """

    id: int
    name: str
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """An item that was found.

    Attributes:
        item: what was found.
        similarity: the cosine between it and the query, in -1..1.
        distance: 1 - similarity.
        is_match: whether the similarity reaches the threshold; None without one.
    """

    item: Item
    similarity: float
    distance: float
    is_match: bool | None


@dataclass(frozen=True)
class Threshold:
    """The similarity from which on two pictures count as showing the same class.

    Attributes:
        similarity: a hit with this much or more is a match.
        false_match_rate: how many queries whose class is not in the gallery find a match all the
            same; measured on classes that neither trained the network nor set the threshold.
        true_match_rate: how many queries whose class is there find a match that is right; measured
            on the same classes.
        basis: in words: which classes, how many queries, against how many items.
    """

    similarity: float
    false_match_rate: float
    true_match_rate: float
    basis: str


@dataclass(frozen=True)
class Map:
    """All items of an index in two dimensions.

    Attributes:
        method: ``"PCA"`` or ``"UMAP"``.
        explained: the share of the variance that the two dimensions hold; None for UMAP.
        ids: ``(n,)`` int64, the items.
        points: ``(n, 2)`` float32, where they lie.
        field_names: m names of the classes whose mean fields are known.
        field_points: ``(m, 2)`` float32, where these fields lie.
    """

    method: str
    explained: float | None
    ids: Array
    points: Array
    field_names: tuple[str, ...]
    field_points: Array
