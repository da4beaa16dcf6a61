"""The threshold from which on a hit is a match, calibrated to a rate of false matches.

An impostor is a query whose class is not in the gallery; it finds a nearest item all the same. To
calibrate, take queries of classes that the network never trained on, and ignore their own class in
the gallery: each is then an impostor, and its nearest item is a false match if its similarity
reaches the threshold.

    s_i  the similarity of query i to the nearest item of another class (as an impostor)
    o_i  the similarity to the nearest other item of its own class
    t    the smallest threshold that at most the wanted share of the s_i of half the classes reach

False matches (s_i >= t) and true ones (o_i >= t) are counted on the other half of the classes.

In a larger gallery the nearest item of another class is nearer: a threshold holds for galleries of
about the size it was measured with, so that this size is reported with it.

Dimensions: n items, q queries, D embedding size, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from weiss._base import draws
from weiss._base.arrays import Array
from weiss.catalogue.manifest import Manifest
from weiss.catalogue.records import printable
from weiss.runs import embed_runs
from weiss.runs.folder import Run

MIN_CLASSES, MIN_ITEMS = 10, 200
"""With fewer held-out classes or items a rate of a few per cent cannot be measured."""
MAX_QUERIES = 1_000
"""More queries make the rates hardly more certain, and take long in a large index."""
MOST_OF_A_CLASS = MAX_QUERIES // MIN_CLASSES
"""Queries of one class: a large class must not dominate."""
MIN_OF_A_HALF, MIN_FINDABLE = 100, 20
"""Queries that set a threshold, and as many that measure it; and how many of the latter must have
another item of their own class."""
SIMILARITIES_AT_ONCE = 8_000_000
"""Similarities in memory at a time, 32 MB."""
SEED = 0
OWN_ITEMS = "this index"
"""The source of a threshold that was calibrated on the items of the index."""


def shortage(labels: Array, held_out: Array) -> str:
    """Return what is missing to `calibrate` with these arguments; empty if nothing is."""
    rows = _held_out_rows(labels, held_out)
    classes = len(np.unique(labels[rows]))
    if classes < MIN_CLASSES or len(rows) < MIN_ITEMS:
        return (
            f"{MIN_CLASSES} classes and {MIN_ITEMS} items that the network never trained on are "
            f"needed; there are {classes} and {len(rows)}"
        )
    queries, sets = halves(labels, held_out)
    for half in (queries[sets], queries[~sets]):
        few = len(np.unique(labels[half]))
        if len(half) < MIN_OF_A_HALF or few < MIN_CLASSES // 2:
            return (
                f"{MIN_OF_A_HALF} queries of {MIN_CLASSES // 2} classes that the network never "
                "trained on are needed to set a threshold, and as many to measure it, at most "
                f"{MOST_OF_A_CLASS} of a class; there are {len(half)} of {few}"
            )
    findable = int((np.bincount(labels[labels >= 0])[labels[queries[~sets]]] > 1).sum())
    if findable < MIN_FINDABLE:
        return (
            f"{MIN_FINDABLE} queries with another item of their class are needed to measure how "
            f"many find it; there are {findable}"
        )
    return ""


def halves(labels: Array, held_out: Array) -> tuple[Array, Array]:
    """Choose the queries, and which of them set the threshold: half of them, by whole classes.

    All classes get the same number of queries, as far as they have items. Return ``(q,)`` int64
    rows; and bool ``(q,)``, whether each sets the threshold or measures it.
    """
    rows = _held_out_rows(labels, held_out)
    rows = rows[draws.permutation(len(rows), SEED, draws.QUERIES)]
    rows = rows[np.argsort(labels[rows], kind="stable")]
    classes, firsts, sizes = np.unique(labels[rows], return_index=True, return_counts=True)
    turn = np.arange(len(rows)) - np.repeat(firsts, sizes)  # position within its class
    # One of each class, then a second of each, and so on.
    in_turn = np.argsort(turn, kind="stable")
    chosen = rows[in_turn[turn[in_turn] < MOST_OF_A_CLASS][:MAX_QUERIES]]
    queries = np.sort(chosen)
    counts = dict(zip(*np.unique(labels[queries], return_counts=True), strict=True))
    order = classes[draws.permutation(len(classes), SEED, draws.SPLITS)]
    first: list[int] = []
    more = 0  # queries of the first half minus those of the second
    for each in sorted((c for c in order if c in counts), key=lambda c: -counts[c]):
        if more <= 0:
            first.append(int(each))
        more += int(counts[each]) if more <= 0 else -int(counts[each])
    return queries, np.isin(labels[queries], first)


def calibrate(
    vectors: Array, labels: Array, held_out: Array, wanted: float, source: str = OWN_ITEMS
) -> dict[str, Any]:
    """Set a threshold on half of the held-out classes, and measure it on the other half.

    There must be no `shortage` of items or classes. The rate of true matches is that of queries
    whose class has another item.

    Args:
        vectors: float32 ``(n, D)`` of unit length.
        labels: ``(n,)`` int64 classes; items of -1 have none and are ignored.
        held_out: ``(C,)`` bool, whether the network never trained on a class.
        wanted: the share of impostors that may find a match, between 0 and 1.
        source: where the items are from, in words.

    Returns:
        What the manifest keeps: a `weiss.catalogue.Threshold`, ``wanted`` and ``source``.
    """
    queries, sets = halves(labels, held_out)
    own_q, impostor_q = nearest_of_both(vectors, labels, queries)
    threshold = least_threshold(impostor_q[sets], wanted)
    own, impostor = own_q[~sets], impostor_q[~sets]
    classes, setting = (len(np.unique(labels[rows])) for rows in (queries, queries[sets]))
    basis = (
        f"{classes:,} classes of {source} that never trained: {setting:,} of them, "
        f"{sets.sum():,} queries, set it to at most {100 * wanted:g} % false matches; the others, "
        f"{(~sets).sum():,} queries, measured it against {(labels >= 0).sum():,} items"
    )
    return {
        "similarity": threshold,
        "false_match_rate": float((impostor >= threshold).mean()),
        "true_match_rate": float((own[np.isfinite(own)] >= threshold).mean()),
        "basis": basis,
        "wanted": wanted,
        "source": source,
    }


def nearest_of_both(vectors: Array, labels: Array, queries: Array) -> tuple[Array, Array]:
    """Return the similarities of the nearest item of the own class, and of any other class.

    Queries ``(q,)`` are rows with a class; none finds itself, nor an item without a class. Return
    two float32 ``(q,)``; -inf where there is no such item.
    """
    asked_qD, class_q = np.asarray(vectors[queries]), labels[queries]
    own_q = np.full(len(queries), -np.inf, dtype=np.float32)
    impostor_q = own_q.copy()
    # In blocks of items: neither a copy of a large index nor all similarities fit in memory.
    rows = max(1, SIMILARITIES_AT_ONCE // max(len(queries), 1))
    for start in range(0, len(labels), rows):
        part = slice(start, start + rows)
        similarity_qb = asked_qD @ np.asarray(vectors[part]).T
        similarity_qb[:, labels[part] < 0] = -np.inf
        here = np.flatnonzero((queries >= start) & (queries < start + rows))
        similarity_qb[here, queries[here] - start] = -np.inf
        is_own_qb = class_q[:, None] == labels[part]
        for best_q, counts_qb in ((own_q, is_own_qb), (impostor_q, ~is_own_qb)):
            found = similarity_qb.max(axis=1, where=counts_qb, initial=-np.inf)
            np.maximum(best_q, found, out=best_q)
    return own_q, impostor_q


def least_threshold(impostors: Array, false_match_rate: float) -> float:
    """Return the smallest threshold that at most this share of impostors ``(q,)`` reach.

    Example:
        >>> 0.3 < least_threshold(np.array([0.1, 0.2, 0.3, 0.4]), 0.25) <= 0.4
        True
    """
    allowed = int(np.floor(false_match_rate * len(impostors)))
    nearest_first = np.sort(impostors.astype(np.float32))[::-1]
    # Just above the first one that must not reach it; equal ones stay below as well.
    return float(np.nextafter(nearest_first[allowed], np.float32(np.inf)))


def index_threshold(
    manifest: Manifest,
    vectors: Array,
    class_names: Sequence[str],
    labels: Array,
    model: Run,
    run: Run | None,
    device: str,
) -> tuple[dict[str, Any] | None, str]:
    """Calibrate the threshold of an index on its own items, else on the test data of ``run``.

    The run may have trained on: ``model``, the copy that the index has of it, embeds the data.
    Return what the manifest keeps, and what it was measured on; or None, and why there is none.
    """
    rate = float(manifest.settings["false_match_rate"])
    trained = {printable(str(name)) for name in (model.model_facts() or {}).get("class_names", ())}
    held_out = np.array([name not in trained for name in class_names], dtype=bool)
    lack = shortage(labels, held_out)
    if not lack:
        found = calibrate(vectors, labels, held_out, rate)
        return found, found["basis"]
    old = manifest.threshold
    if run is None:
        # A threshold of the run's own data, which the index does not have, stays valid.
        if old is not None and old["source"] != OWN_ITEMS:
            return old, manifest.threshold_why
        return None, f"{lack} in {OWN_ITEMS}"
    try:
        data = {f"data.{key}": value for key, value in run.recipe()["data"].items()}
        tested = embed_runs([model], device=device, overrides=data)[0]
    # For whatever reason the data cannot be opened: an index can be made without a threshold.
    except (ValueError, OSError, RuntimeError):
        return None, f"{lack} in {OWN_ITEMS}, and the run's own test data could not be opened"
    table = tested.table
    if table.is_multi_label:
        return None, f"{lack} in {OWN_ITEMS}, and the run's test items have several classes each"
    held_out = np.array([printable(name) not in trained for name in table.class_names], dtype=bool)
    if shortage(table.labels, held_out):
        return None, f"{lack}, in {OWN_ITEMS} and among the run's own test data"
    embeddings = tested.embeddings.float().cpu().numpy()
    found = calibrate(embeddings, table.labels, held_out, rate, "the run's own test data")
    return found, found["basis"]


def _held_out_rows(labels: Array, held_out: Array) -> Array:
    has_class = np.flatnonzero(labels >= 0)
    return np.asarray(has_class[held_out[labels[has_class]]])
