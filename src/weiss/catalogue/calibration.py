"""From which similarity on a hit is a match: a threshold with a measured error.

A picture of something that is not in the catalogue finds a nearest item all the same. How similar
that item is tells a threshold. So take pictures whose class the network never trained on, hide
their class from the gallery, and look: each is then a stranger, and what it finds is a false match
if it lies above the threshold.

    s_i  the similarity of query i to the nearest item of another class: what a stranger finds
    o_i  the similarity to the nearest other item of its own class
    t    the least threshold at which at most the wanted share of the s_i of half of the classes
         reach it

False matches (s_i >= t) and true ones (o_i >= t) are counted on the other half of the classes.

The nearest of many strangers is nearer than the nearest of few: a threshold holds for galleries of
about the size it was set with, which is why the size is told with it.

Dimensions: n items, q queries, D embedding size.
"""

from dataclasses import dataclass

import numpy as np

from weiss._base import draws
from weiss._base.arrays import Array

MIN_CLASSES, MIN_ITEMS = 10, 200
"""With fewer held-out classes or items a rate of a few per cent cannot be measured."""
MAX_QUERIES = 1_000
"""More queries make the rates hardly more certain, and take long in a large index."""
MOST_OF_A_CLASS = MAX_QUERIES // MIN_CLASSES
"""Queries of one class: a large one must not speak for all."""
MIN_OF_A_HALF, MIN_FINDABLE = 100, 20
"""Queries that set a threshold, as many that measure it, and how many of these must have something
of their own class to find."""
BLOCK = 8_000_000
"""Similarities held at a time, 32 MB of them."""


@dataclass(frozen=True)
class Calibration:
    """A threshold and how it was found.

    Attributes:
        similarity: the threshold.
        false_match_rate: measured on the second half of the classes.
        true_match_rate: measured there, among queries whose class has another item.
        num_classes: held-out classes that were asked, both halves.
        num_setting_classes: those of them that set it.
        num_setting: queries that set it.
        num_measuring: queries that measured it.
        num_gallery: items they were compared with.
    """

    similarity: float
    false_match_rate: float
    true_match_rate: float
    num_classes: int
    num_setting_classes: int
    num_setting: int
    num_measuring: int
    num_gallery: int


def enough(labels: Array, held_out: Array, seed: int = 0) -> str:
    """Return why a threshold cannot be set, or nothing if it can.

    Args:
        labels: ``(n,)`` int64 classes; -1 for items without one.
        held_out: ``(C,)`` bool, whether the network never trained on a class.
        seed: as for `calibrate`.
    """
    rows = _held_out_rows(labels, held_out)
    classes = len(np.unique(labels[rows]))
    if classes < MIN_CLASSES or len(rows) < MIN_ITEMS:
        return (
            f"{MIN_CLASSES} classes and {MIN_ITEMS} items that the network never trained on are "
            f"needed; there are {classes} and {len(rows)}"
        )
    queries, sets = halves(labels, held_out, seed)
    for half in (queries[sets], queries[~sets]):
        few = len(np.unique(labels[half]))
        if len(half) < MIN_OF_A_HALF or few < MIN_CLASSES // 2:
            return (
                f"{MIN_OF_A_HALF} queries of {MIN_CLASSES // 2} classes that the network never "
                "trained on are needed to set a threshold, and as many to measure it, at most "
                f"{MOST_OF_A_CLASS} of a class; there are {len(half)} of {few}"
            )
    findable = int((_class_sizes(labels)[labels[queries[~sets]]] > 1).sum())
    if findable < MIN_FINDABLE:
        return (
            f"{MIN_FINDABLE} queries with another item of their class are needed to measure how "
            f"many find it; there are {findable}"
        )
    return ""


def halves(labels: Array, held_out: Array, seed: int = 0) -> tuple[Array, Array]:
    """Choose the queries, and which of them set the threshold: half of them, by whole classes.

    Of every class as many are taken as of the others, as far as it has them.

    Args:
        labels: as for `calibrate`.
        held_out: as for `calibrate`.
        seed: as for `calibrate`.

    Returns:
        ``(q,)`` int64 rows; and bool ``(q,)``, whether each sets the threshold or measures it.
    """
    rows = _held_out_rows(labels, held_out)
    rows = rows[draws.permutation(len(rows), seed, draws.QUERIES)]
    rows = rows[np.argsort(labels[rows], kind="stable")]
    classes, firsts, sizes = np.unique(labels[rows], return_index=True, return_counts=True)
    turn = np.arange(len(rows)) - np.repeat(firsts, sizes)  # the how-manieth of its class
    # First one of each class, then a second one: a large class waits for the small ones.
    in_turn = np.argsort(turn, kind="stable")
    chosen = rows[in_turn[turn[in_turn] < MOST_OF_A_CLASS][:MAX_QUERIES]]
    queries = np.sort(chosen)
    counts = dict(zip(*np.unique(labels[queries], return_counts=True), strict=True))
    order = classes[draws.permutation(len(classes), seed, draws.SPLITS)]
    first: list[int] = []
    more = 0  # by how many queries the first half has more
    for each in sorted((c for c in order if c in counts), key=lambda c: -counts[c]):
        if more <= 0:
            first.append(int(each))
        more += int(counts[each]) if more <= 0 else -int(counts[each])
    return queries, np.isin(labels[queries], first)


def calibrate(
    vectors: Array,
    labels: Array,
    held_out: Array,
    *,
    false_match_rate: float = 0.05,
    seed: int = 0,
) -> Calibration:
    """Set a threshold, and measure it on other classes than those that set it.

    Args:
        vectors: float32 ``(n, D)`` of unit length.
        labels: ``(n,)`` int64 classes; items of -1 have none and are left aside.
        held_out: ``(C,)`` bool, whether the network never trained on a class.
        false_match_rate: how many strangers may find a match, as a share of them.
        seed: which half of the classes sets it, and which queries are taken of very many.

    Returns:
        The threshold and its rates.

    Raises:
        ValueError: the rate is no share, or there is not `enough` to measure it on.
    """
    if not 0 < false_match_rate < 1:
        raise ValueError(
            f"false_match_rate must lie between 0 and 1; got {false_match_rate!r}. Pass 0.05 for "
            "one false match in twenty."
        )
    if lack := enough(labels, held_out, seed):
        raise ValueError(f"a threshold cannot be set: {lack}.")
    queries, sets = halves(labels, held_out, seed)
    own_q, stranger_q = nearest_of_both(vectors, labels, queries)
    threshold = least_threshold(stranger_q[sets], false_match_rate)
    own, stranger = own_q[~sets], stranger_q[~sets]
    findable = np.isfinite(own)
    return Calibration(
        similarity=threshold,
        false_match_rate=float((stranger >= threshold).mean()),
        true_match_rate=float((own[findable] >= threshold).mean()),
        num_classes=len(np.unique(labels[queries])),
        num_setting_classes=len(np.unique(labels[queries[sets]])),
        num_setting=int(sets.sum()),
        num_measuring=int((~sets).sum()),
        num_gallery=int((labels >= 0).sum()),
    )


def nearest_of_both(vectors: Array, labels: Array, queries: Array) -> tuple[Array, Array]:
    """Return how near the nearest item of the own class is, and that of any other.

    Args:
        vectors: float32 ``(n, D)`` of unit length.
        labels: ``(n,)`` int64; -1 for items without a class, which nobody finds.
        queries: ``(q,)`` rows that look for others; each has a class.

    Returns:
        Two float32 ``(q,)`` of similarities; -inf where there is none.
    """
    asked_qD, class_q = np.asarray(vectors[queries]), labels[queries]
    own_q = np.full(len(queries), -np.inf, dtype=np.float32)
    stranger_q = own_q.copy()
    # Some items at a time, as they lie: of a million neither a copy nor all similarities.
    rows = max(1, BLOCK // max(len(queries), 1))
    for start in range(0, len(labels), rows):
        part = slice(start, start + rows)
        similarity_qb = asked_qD @ np.asarray(vectors[part]).T
        similarity_qb[:, labels[part] < 0] = -np.inf
        here = np.flatnonzero((queries >= start) & (queries < start + rows))
        similarity_qb[here, queries[here] - start] = -np.inf
        is_own_qb = class_q[:, None] == labels[part]
        for best_q, counts_qb in ((own_q, is_own_qb), (stranger_q, ~is_own_qb)):
            found = similarity_qb.max(axis=1, where=counts_qb, initial=-np.inf)
            np.maximum(best_q, found, out=best_q)
    return own_q, stranger_q


def least_threshold(strangers: Array, false_match_rate: float) -> float:
    """Return the least threshold that at most this share of strangers reach.

    Args:
        strangers: ``(q,)`` similarities.
        false_match_rate: the share.

    Example:
        >>> least_threshold(np.array([0.1, 0.2, 0.3, 0.4]), 0.25) > 0.3
        True
        >>> least_threshold(np.array([0.1, 0.2, 0.3, 0.4]), 0.25) <= 0.4
        True
    """
    allowed = int(np.floor(false_match_rate * len(strangers)))
    nearest_first = np.sort(strangers.astype(np.float32))[::-1]
    # Just above the first who must not reach it; those who tie with him stay below as well.
    return float(np.nextafter(nearest_first[allowed], np.float32(np.inf)))


def _class_sizes(labels: Array) -> Array:
    return np.bincount(labels[labels >= 0])


def _held_out_rows(labels: Array, held_out: Array) -> Array:
    has_class = np.flatnonzero(labels >= 0)
    return np.asarray(has_class[held_out[labels[has_class]]])
