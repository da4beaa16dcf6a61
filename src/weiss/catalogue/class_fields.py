"""The field of each class of an index: what class a picture is, and which labels are doubtful.

Training moves a class's field to the mean of its embeddings, so that a class which never trained
gets a field from a few photos:

    m_c = S_c / |S_c|,  S_c = sum of v_i over the items i of class c

A picture belongs to the class whose field is nearest. How often that is right is measured on the
items of the index, each without its own part in the field of its class:

    own_i   = v_i . (S_c - v_i) / |S_c - v_i|,  c the class of i
    other_i = max over c' != c of v_i . m_c'

Item i is confused where other_i > own_i: its label is doubtful, or the classes are alike.

Dimensions: n items, q queries, D embedding size, C classes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss.evaluation.statistics import Interval, independent_count, share_interval

SIMILARITIES_AT_ONCE = 8_000_000
"""Similarities in memory at a time, 64 MB."""
FITS = 0.05
"""The share of items that may lie farther from the field of their class than a fit."""
MIN_ITEMS = 20
"""With fewer items that have another of their class this share cannot be measured."""
SHORTEST = 1e-6
"""A sum of vectors shorter than this has no direction: its class has no field."""


@dataclass(frozen=True)
class Guess:
    """A class that a picture may belong to.

    Attributes:
        name: of the class.
        similarity: the cosine between the picture's embedding and the field of the class.
        fits: whether the similarity reaches `ClassFields.level`; None without one.
    """

    name: str
    similarity: float
    fits: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Return the guess for JSON."""
        return {"class": self.name, "similarity": self.similarity, "fits": self.fits}


@dataclass(frozen=True)
class ClassFields:
    """The fields of the classes of an index, and how well they tell its items apart.

    Attributes:
        names: C classes.
        vectors: ``(C, D)`` float64 fields of unit length; zeros for a class without a direction.
        labels: ``(n,)`` the class of each item; -1 for none or several.
        own: ``(n,)`` similarity of each item to the field that the others of its class have; NaN
            for the only item of its class and for items without a class.
        other: ``(n,)`` similarity to the nearest field of another class; -inf where there is none.
        nearest_other: ``(n,)`` that class.
        level: the similarity that all but `FITS` of the items have to the field of their class;
            None if fewer than `MIN_ITEMS` have another item of their class.
    """

    names: tuple[str, ...]
    vectors: Array
    labels: Array
    own: Array
    other: Array
    nearest_other: Array
    level: float | None

    def classify(
        self, queries: Array, k: int = 3, *, rows: Sequence[int | None] | None = None
    ) -> list[list[Guess]]:
        """Return the k nearest classes of each query ``(q, D)`` of unit length, best first.

        ``rows`` has for each query the row of the item that it is, or None. Such a query is
        compared with the field of its class without it; it cannot be of a class that is it alone.
        """
        guesses = []
        for number, query in enumerate(np.asarray(queries, dtype=np.float64)):
            similarity = self.vectors @ query
            row = None if rows is None else rows[number]
            if row is not None and self.labels[row] >= 0:
                similarity[self.labels[row]] = self.own[row]  # NaN without another item
            best = np.argsort(-similarity, kind="stable")[:k]
            best = best[~np.isnan(similarity[best])]
            found = zip(best.tolist(), similarity[best].tolist(), strict=True)
            guesses.append([Guess(self.names[c], s, self._fits(s)) for c, s in found])
        return guesses

    def _fits(self, similarity: float) -> bool | None:
        return None if self.level is None else similarity >= self.level

    @property
    def measured(self) -> Array:
        """Bool ``(n,)``: items with a class that has another item."""
        return ~np.isnan(self.own)

    @property
    def confused(self) -> Array:
        """Bool ``(n,)``: measured items that are nearer to the field of another class."""
        return self.measured & (self.other > self.own)

    def doubtful(self) -> Array:
        """Return the rows of confused items, the clearest first."""
        rows = np.flatnonzero(self.confused)
        return rows[np.argsort(self.own[rows] - self.other[rows], kind="stable")]

    def accuracy_interval(self, classes: Array | None = None) -> Interval | None:
        """Return the share of measured items whose own class is the nearest, with its interval.

        Args:
            classes: ``(C,)`` bool, which count; all by default. None is returned if none of their
                items is measured.
        """
        among = self.measured
        if classes is not None:
            among = among & np.isin(self.labels, np.flatnonzero(classes))
        return _share(~self.confused[among], self.labels[among])

    def impostor_interval(self) -> Interval | None:
        """Return the share of measured items that would fit another class if theirs were absent.

        With its interval; None without a level.
        """
        if self.level is None:
            return None
        return _share(self.other[self.measured] >= self.level, self.labels[self.measured])

    def confusions(self) -> list[tuple[str, str, int]]:
        """Return (class, taken for, how many items), most frequent first."""
        rows = np.flatnonzero(self.confused)
        pairs = zip(self.labels[rows].tolist(), self.nearest_other[rows].tolist(), strict=True)
        counted = sorted(Counter(pairs).items(), key=lambda each: (-each[1], each[0]))
        return [(self.names[a], self.names[b], count) for (a, b), count in counted]


def _share(hits: Array, labels: Array) -> Interval | None:
    """Return the share of hits; items of one class are not independent of each other."""
    if not len(hits):
        return None
    return share_interval(float(hits.mean()), independent_count(hits, labels))


def class_fields(vectors: Array, labels: Array, names: Sequence[str]) -> ClassFields:
    """Compute the fields of classes and measure them, in blocks of items.

    Args:
        vectors: ``(n, D)`` of unit length.
        labels: ``(n,)`` int64 classes; -1 for items that have none or several.
        names: C.
    """
    num_classes, size = len(names), vectors.shape[1]
    sums = np.zeros((num_classes, size))
    step = max(1, SIMILARITIES_AT_ONCE // max(num_classes, size))
    parts = [slice(start, start + step) for start in range(0, len(labels), step)]
    for part in parts:
        rows = np.flatnonzero(labels[part] >= 0)
        np.add.at(sums, labels[part][rows], np.asarray(vectors[part], dtype=np.float64)[rows])
    fields, lengths = _directions(sums)
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)
    own, other = np.full(len(labels), np.nan), np.full(len(labels), -np.inf)
    nearest = np.full(len(labels), -1, dtype=np.int64)
    for part in parts:
        given = np.asarray(vectors[part], dtype=np.float64)
        similarity_bC = given @ fields.T
        similarity_bC[:, lengths < SHORTEST] = -np.inf
        rows = np.flatnonzero(labels[part] >= 0)
        of_class = labels[part][rows]
        rest, rest_lengths = _directions(sums[of_class] - given[rows])
        there = (counts[of_class] > 1) & (rest_lengths >= SHORTEST)
        own[part][rows[there]] = (given[rows] * rest).sum(axis=1)[there]
        similarity_bC[rows, of_class] = -np.inf
        if num_classes:
            nearest[part] = similarity_bC.argmax(axis=1)
            other[part] = similarity_bC.max(axis=1)
    measured = own[~np.isnan(own)]
    level = float(np.quantile(measured, FITS)) if len(measured) >= MIN_ITEMS else None
    return ClassFields(tuple(names), fields, labels, own, other, nearest, level)


def _directions(sums: Array) -> tuple[Array, Array]:
    """Return rows of unit length, zeros where a row has no direction; and their lengths before."""
    lengths = np.linalg.norm(sums, axis=1)
    safe = np.where(lengths < SHORTEST, np.inf, lengths)
    return sums / safe[:, None], lengths


def grouped(vectors: Array, level: float) -> list[Array]:
    """Group items that belong together, such as unknown individuals; the largest group first.

    In their order, each item joins the group whose mean direction is nearest, if its similarity
    reaches ``level``; else it begins a group.

    Args:
        vectors: ``(n, D)`` of unit length.
        level: a cosine.

    Returns:
        the rows of each group.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    sums, directions = np.empty_like(vectors), np.empty_like(vectors)
    groups: list[list[int]] = []
    for row, vector in enumerate(vectors):
        similarity = directions[: len(groups)] @ vector
        best = int(similarity.argmax()) if groups else 0
        if groups and similarity[best] >= level:
            sums[best] += vector
            groups[best].append(row)
        else:
            best = len(groups)
            sums[best] = vector
            groups.append([row])
        directions[best : best + 1] = _directions(sums[best : best + 1])[0]
    return [np.array(rows) for rows in sorted(groups, key=lambda rows: (-len(rows), rows[0]))]
