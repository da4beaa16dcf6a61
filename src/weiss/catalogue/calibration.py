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
from typing import Any

import numpy as np

from weiss import draws

Array = np.ndarray[Any, Any]
MIN_CLASSES, MIN_ITEMS = 10, 200
"""With fewer held-out classes or items a rate of a few per cent cannot be measured."""
MAX_QUERIES = 1_000
"""More queries make the rates hardly more certain, and take long in a large index."""
BLOCK = 256


@dataclass(frozen=True)
class Calibration:
    """A threshold and how it was found.

    Attributes:
        similarity: the threshold.
        false_match_rate: measured on the second half of the classes.
        true_match_rate: measured there, among queries whose class has another item.
        num_classes: held-out classes, both halves.
        num_setting: queries that set it.
        num_measuring: queries that measured it.
        num_gallery: items they were compared with.
    """

    similarity: float
    false_match_rate: float
    true_match_rate: float
    num_classes: int
    num_setting: int
    num_measuring: int
    num_gallery: int


def enough(labels: Array, held_out: Array) -> str:
    """Return why a threshold cannot be set, or nothing if it can.

    Args:
        labels: ``(n,)`` int64 classes; -1 for items without one.
        held_out: ``(C,)`` bool, whether the network never trained on a class.
    """
    rows = _held_out_rows(labels, held_out)
    classes = len(np.unique(labels[rows]))
    if classes >= MIN_CLASSES and len(rows) >= MIN_ITEMS:
        return ""
    return (
        f"{MIN_CLASSES} classes and {MIN_ITEMS} items that the network never trained on are "
        f"needed; there are {classes} and {len(rows)}"
    )


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
    """
    if not 0 < false_match_rate < 1:
        raise ValueError(
            f"false_match_rate must lie between 0 and 1; got {false_match_rate!r}. Pass 0.05 for "
            "one false match in twenty."
        )
    rows = _held_out_rows(labels, held_out)
    chosen = draws.permutation(len(rows), seed, draws.QUERIES)[:MAX_QUERIES]
    queries = rows[np.sort(chosen)]
    own_q, stranger_q = nearest_of_both(vectors, labels, queries)
    classes = np.unique(labels[rows])
    first = classes[draws.permutation(len(classes), seed, draws.SPLITS)[: len(classes) // 2]]
    sets = np.isin(labels[queries], first)
    threshold = least_threshold(stranger_q[sets], false_match_rate)
    own, stranger = own_q[~sets], stranger_q[~sets]
    findable = np.isfinite(own)
    return Calibration(
        similarity=threshold,
        false_match_rate=float((stranger >= threshold).mean()),
        true_match_rate=float((own[findable] >= threshold).mean()) if findable.any() else 0.0,
        num_classes=len(classes),
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
    # Items of a class side by side: what a query must not see is then one slice.
    gallery = np.flatnonzero(labels >= 0)
    gallery = gallery[np.argsort(labels[gallery], kind="stable")]
    vectors_gD = np.ascontiguousarray(vectors[gallery])
    first_q = np.searchsorted(labels[gallery], labels[queries], side="left")
    last_q = np.searchsorted(labels[gallery], labels[queries], side="right")
    own_q = np.full(len(queries), -np.inf, dtype=np.float32)
    stranger_q = own_q.copy()
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        similarity_bg = vectors[block] @ vectors_gD.T
        for at, row in enumerate(block, start):
            own = slice(first_q[at], last_q[at])
            of_class = similarity_bg[at - start, own]
            of_class[gallery[own] == row] = -np.inf
            own_q[at] = of_class.max()
            of_class[:] = -np.inf
        stranger_q[start : start + len(block)] = similarity_bg.max(axis=1)
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


def _held_out_rows(labels: Array, held_out: Array) -> Array:
    has_class = np.flatnonzero(labels >= 0)
    return np.asarray(has_class[held_out[labels[has_class]]])
