"""The threshold from which on a hit is a match, calibrated to a rate of false matches.

An impostor is a query whose class is not in the gallery; it finds a nearest item all the same. To
calibrate, take queries of classes that the network never trained on, and ignore their own class in
the gallery: each is then an impostor, and its nearest item is a false match if its similarity
reaches the threshold.

    s_i  the similarity of query i to the nearest item of another class (as an impostor)
    o_i  the similarity to the nearest other item of its own class
    t    the smallest threshold that at most the wanted share of all s_i reach
    t_c  the same without the queries of class c

False matches (s_i >= t_c) and true ones (o_i >= t_c) are counted with the threshold of the other
classes: no class is measured with a threshold that it has set.

Queries of a class are alike. All of them tell as much as n independent ones (`independent_count`).
The interval of t has the thresholds at which n impostors could have the wanted share.
With few classes its upper end is 1: nobody has seen the most similar impostors.

A photo that is filed under several classes has a copy in another class, which is no evidence about
impostors: its items count as items without a class (`without`).

In a larger gallery the nearest item of another class is nearer: a threshold holds for galleries of
about the size it was measured with, so that this size is reported with it.

Dimensions: n items, q queries, D embedding size, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from weiss._base import draws
from weiss._base.arrays import Array
from weiss._base.checks import UntrustedError
from weiss.catalogue.manifest import Manifest
from weiss.catalogue.records import printable
from weiss.data.content import digests_of_items, in_several_classes
from weiss.evaluation.statistics import independent_count, share_interval
from weiss.runs import embed_runs
from weiss.runs.experiment import refuse_addresses
from weiss.runs.folder import Run

MIN_CLASSES, MIN_OF_A_CLASS = 3, 2
"""With fewer held-out classes, of so many items each, no interval is narrower than everything."""
MANY_CLASSES, MANY_ITEMS = 10, 200
"""With fewer held-out classes or items the test data of the run are used, if they have more."""
MAX_QUERIES = 1_000
"""More queries make the rates hardly more certain, and take long in a large index."""
MOST_OF_A_CLASS = 100
"""Queries of one class: a large class must not dominate."""
SIMILARITIES_AT_ONCE = 8_000_000
"""Similarities in memory at a time, 32 MB."""
SEED = 0
CONFIDENCE = 0.95
MOST_SIMILAR = 1.0
"""The upper end of an interval that the evidence does not bound."""
OWN_ITEMS = "this index"
"""The source of a threshold that was calibrated on the items of the index."""
GIVEN = "given, not measured"
"""The source of a threshold that the user gave and nothing measures."""


def shortage(labels: Array, held_out: Array, *, many: bool = False) -> str:
    """Return what is missing to `calibrate` with these arguments; empty if nothing is.

    With ``many`` also what is missing for rates of a few per cent.
    """
    rows = _held_out_rows(labels, held_out)
    _, sizes = np.unique(labels[rows], return_counts=True)
    if many:
        if len(sizes) >= MANY_CLASSES and len(rows) >= MANY_ITEMS:
            return ""
        return f"{MANY_CLASSES} classes and {MANY_ITEMS} items are many; there are fewer"
    classes = int((sizes >= MIN_OF_A_CLASS).sum())
    if classes >= MIN_CLASSES:
        return ""
    return (
        f"{MIN_CLASSES} classes of {MIN_OF_A_CLASS} items that the network never trained on are "
        f"needed to measure one; there {'is' if classes == 1 else 'are'} {classes}"
    )


def without(labels: Array, shared: Sequence[Array]) -> Array:
    """Return labels ``(n,)`` with -1 for the rows of photos that are in several classes."""
    counted = labels.copy()
    for rows in shared:
        counted[rows] = -1
    return counted


def choose_queries(labels: Array, held_out: Array) -> Array:
    """Return the rows ``(q,)`` of the queries, ascending.

    All classes get the same number of queries, as far as they have items.
    """
    rows = _held_out_rows(labels, held_out)
    rows = rows[draws.permutation(len(rows), SEED, draws.QUERIES)]
    rows = rows[np.argsort(labels[rows], kind="stable")]
    _, firsts, sizes = np.unique(labels[rows], return_index=True, return_counts=True)
    turn = np.arange(len(rows)) - np.repeat(firsts, sizes)  # position within its class
    # One of each class, then a second of each, and so on.
    in_turn = np.argsort(turn, kind="stable")
    return np.sort(rows[in_turn[turn[in_turn] < MOST_OF_A_CLASS][:MAX_QUERIES]])


def calibrate(
    vectors: Array,
    labels: Array,
    held_out: Array,
    wanted: float,
    source: str = OWN_ITEMS,
    given: float | None = None,
) -> dict[str, Any]:
    """Set a threshold on the held-out classes, and measure it on each with that of the others.

    There must be no `shortage` of items or classes. The rate of true matches is that of queries
    whose class has another item.

    Args:
        vectors: float32 ``(n, D)`` of unit length.
        labels: ``(n,)`` int64 classes; items of -1 have none and are ignored.
        held_out: ``(C,)`` bool, whether the network never trained on a class.
        wanted: the share of impostors that may find a match, between 0 and 1.
        source: where the items are from, in words.
        given: a threshold to measure; None to set one.

    Returns:
        What the manifest keeps: a `weiss.catalogue.Threshold`, ``wanted`` and ``source``.
    """
    queries = choose_queries(labels, held_out)
    own_q, impostor_q = nearest_of_both(vectors, labels, queries)
    class_q = labels[queries]
    classes = len(np.unique(class_q))
    if given is None:
        threshold = least_threshold(impostor_q, wanted)
        least_q = _thresholds_of_others(impostor_q, class_q, wanted)
        count = independent_count(impostor_q, class_q)
        intervals = {"similarity": list(threshold_interval(impostor_q, wanted, count))}
        how = (
            f"set it to at most {100 * wanted:g} % false matches; each class was measured with the "
            "threshold of the others"
        )
    else:
        threshold, least_q, intervals = given, np.full(len(queries), given), {}
        how = "measured it, since it was given"
    rates: dict[str, float | None] = {}
    for name, similarity_q in (("false_match_rate", impostor_q), ("true_match_rate", own_q)):
        there = np.isfinite(similarity_q)
        rates[name] = None
        if there.any():
            rate = float((similarity_q[there] >= least_q[there]).mean())
            evidence = independent_count(similarity_q[there], class_q[there])
            found = share_interval(rate, evidence, confidence=CONFIDENCE)
            rates[name], intervals[name] = rate, [found.low, found.high]
    basis = (
        f"{classes:,} classes of {source} that never trained: {len(queries):,} queries {how}, "
        f"against {(labels >= 0).sum():,} items"
    )
    return {
        "similarity": threshold,
        **rates,
        "basis": basis,
        "intervals": intervals,
        "wanted": wanted,
        "source": source,
    }


def threshold_interval(impostors: Array, wanted: float, count: float) -> tuple[float, float]:
    """Return the thresholds between which one that exactly this share of impostors reach may lie.

    Args:
        impostors: ``(q,)`` similarities.
        wanted: the share.
        count: how many independent impostors tell as much.
    """
    shares = share_interval(wanted, count, confidence=CONFIDENCE)
    nearest_first = np.sort(impostors)[::-1]
    last = len(impostors) - 1
    low = nearest_first[min(int(np.ceil(shares.high * len(impostors))), last)]
    # Unless some of so many impostors are surely above the threshold, none may have been seen.
    if (1 - wanted) ** count > (1 - CONFIDENCE) / 2:
        return float(low), MOST_SIMILAR
    high = nearest_first[int(np.floor(shares.low * len(impostors)))]
    return float(low), float(np.nextafter(high, np.float32(np.inf)))


def _thresholds_of_others(impostors: Array, classes: Array, wanted: float) -> Array:
    """Return for each query ``(q,)`` the threshold that the queries of other classes set."""
    found = np.empty(len(impostors), dtype=np.float32)
    for each in np.unique(classes):
        mine = classes == each
        found[mine] = least_threshold(impostors[~mine], wanted)
    return found


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
    """Calibrate the threshold of an index on its own items, or on the test data of ``run``.

    Its own items are preferred, unless they are few and the run's are many. The run may have
    trained on: ``model``, the copy that the index has of it, embeds the data. A threshold that the
    user gave (``settings``) is only measured. Return what the manifest keeps, and what it was
    measured on; or None, and why there is none.
    """
    wanted, given = float(manifest.settings["false_match_rate"]), manifest.settings.get("threshold")
    trained = trained_classes(model)
    held_out = np.array([name not in trained for name in class_names], dtype=bool)
    lack = shortage(labels, held_out)
    are_few = bool(shortage(labels, held_out, many=True))
    why = f"{lack} in {OWN_ITEMS}"
    if are_few and run is None:
        # A threshold of the run's own data, which the index does not have, stays valid.
        old = manifest.threshold
        if old is not None and old["source"] not in (OWN_ITEMS, GIVEN):
            return old, manifest.threshold_why
    if are_few and run is not None:
        found, also = _of_test_data(model, run, trained, device, wanted, given, many=not lack)
        if found is not None:
            return found, found["basis"]
        why = f"{why}, {also}"
    if not lack:
        found = calibrate(vectors, labels, held_out, wanted, given=given)
        return found, found["basis"]
    if given is None:
        return None, why
    unknown: dict[str, Any] = {"false_match_rate": None, "true_match_rate": None, "intervals": {}}
    basis = f"nothing: {why}"
    facts = {"similarity": given, "basis": basis, "wanted": wanted, "source": GIVEN, **unknown}
    return facts, basis


def trained_classes(model: Run) -> set[str]:
    """Return the names of the classes that a network was trained on, as an index names them."""
    return {printable(str(name)) for name in (model.model_facts() or {}).get("class_names", ())}


def _of_test_data(
    model: Run,
    run: Run,
    trained: set[str],
    device: str,
    wanted: float,
    given: float | None,
    *,
    many: bool,
) -> tuple[dict[str, Any] | None, str]:
    """Calibrate on the test data of a run; or None, and why not: with ``many`` if there are few."""
    try:
        refuse_addresses(run)
    except UntrustedError:
        return None, "and the run's own test data are at an address, which needs --trust"
    try:
        data = {f"data.{key}": value for key, value in run.recipe()["data"].items()}
        tested = embed_runs([model], device=device, overrides=data)[0]
        digests = digests_of_items(tested.table.source)
    # For whatever reason the data cannot be opened: an index can be made without a threshold.
    except (ValueError, OSError, RuntimeError):
        return None, "and the run's own test data could not be opened"
    table = tested.table
    if table.is_multi_label:
        return None, "and the run's test items have several classes each"
    held_out = np.array([printable(name) not in trained for name in table.class_names], dtype=bool)
    shared = in_several_classes(digests, table.labels)
    labels = without(table.labels, shared)
    if shortage(labels, held_out, many=many):
        return None, "nor are there so many among the run's own test data"
    embeddings = tested.embeddings.float().cpu().numpy()
    source = "the run's own test data"
    if shared:
        photos = "1 photo" if len(shared) == 1 else f"{len(shared):,} photos"
        source = f"{source}, without {photos} in more than one class,"
    return calibrate(embeddings, labels, held_out, wanted, source, given), ""


def _held_out_rows(labels: Array, held_out: Array) -> Array:
    has_class = np.flatnonzero(labels >= 0)
    return np.asarray(has_class[held_out[labels[has_class]]])
