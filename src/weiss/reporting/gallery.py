"""Queries and what was found for them: which to show, and their neighbours as images.

Dimensions: N items, D embedding size, C classes, k neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weiss._base import checks, draws
from weiss._base.arrays import Array
from weiss.evaluation.embeddings import Embeddings, check_embeddings, take
from weiss.evaluation.neighbours import NOBODY, default_budget, nearest_neighbours
from weiss.theory.distances import DISTANCES

Images = Callable[[int], Array] | Sequence[Array] | Array
OWNER = "a gallery"
MIDDLE = (0.25, 0.75)
"""Queries between these quantiles of the metric are typical."""


@dataclass(frozen=True)
class Query:
    """A query to show, and why.

    Args:
        index: which row of the embeddings.
        why: a few words for the reader.
    """

    index: int
    why: str = ""


@dataclass(frozen=True, eq=False)
class Tile:
    """An image of a gallery.

    Args:
        pixels: uint8 ``(height, width, 1 or 3)``.
        name: what stands below it: its class.
        is_right: whether it is of the query's class; None for the query itself.
    """

    pixels: Array
    name: str
    is_right: bool | None = None


@dataclass(frozen=True, eq=False)
class Row:
    """A query and what was found for it.

    Args:
        label: what the row shows: the query's class.
        query: its image.
        neighbours: what was found, nearest first.
        note: why it is shown, and how well it went.
    """

    label: str
    query: Tile
    neighbours: tuple[Tile, ...]
    note: str = ""


@dataclass(frozen=True)
class Gallery:
    """Rows of queries and their neighbours.

    Args:
        rows: at least one.
        caption: what the reader sees; empty for none.
    """

    rows: Sequence[Row]
    caption: str = ""

    def __post_init__(self) -> None:
        """Refuse a gallery of nothing."""
        if not self.rows:
            raise ValueError("rows must be at least one for a gallery; got none. Leave it out.")


def choose_queries(
    per_query_values: Array,
    labels: Array,
    number: int,
    seed: int = 0,
    *,
    index: Array | None = None,
    metric: str = "MAP@R",
) -> list[Query]:
    """Choose queries of different classes to show: some typical ones, then some of the worst.

    Half of them (rounded up) are typical: drawn from the middle half of all queries by value. The
    others have the lowest values of all. Ties are settled by the seed. Where there are not enough
    classes, fewer are chosen.

    Args:
        per_query_values: ``(N,)`` a metric of each query, 0 to 1: `Retrieval.per_query["map_at_r"]`
            for instance.
        labels: their classes, ``(N,)`` or multi-hot ``(N, C)``: `Retrieval.query_labels`.
        number: how many to choose.
        seed: which of the typical ones; the same gives the same.
        index: ``(N,)`` which rows of the embeddings these are (`Retrieval.query_index`), where
            some queries were left out; without it they are counted from 0.
        metric: what to call the values.

    Returns:
        The queries, each of another class.
    """
    checks.count("number", number, OWNER)
    values, labels = np.asarray(per_query_values, dtype=np.float64), np.asarray(labels)
    rows = np.arange(len(values)) if index is None else np.asarray(index)
    if values.ndim != 1 or not len(values) or not len(values) == len(labels) == len(rows):
        raise ValueError(
            "per_query_values, labels and index must have one entry a query, and at least one; "
            f"got {values.shape}, {labels.shape} and {rows.shape}. Pass those of one evaluation."
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"per_query_values must be finite; got {np.sum(~np.isfinite(values)):,} that are not. "
            "Leave these queries out."
        )
    _, classes = np.unique(labels, axis=0, return_inverse=True)
    classes = classes.reshape(-1)  # some versions of NumPy keep the second dimension
    number = min(number, int(classes.max()) + 1)
    # A sheet of queries: one word more than a sheet of classes, so that no numbers are shared.
    shuffled = draws.permutation(len(values), seed, draws.QUERIES)
    low, high = np.quantile(values, MIDDLE)
    ascending = shuffled[np.argsort(values[shuffled], kind="stable")]
    middle = shuffled[(values[shuffled] >= low) & (values[shuffled] <= high)]
    taken: set[int] = set()
    # The worst first, or a typical query might keep the worst one of its class from being shown.
    worst = _of_new_classes(ascending, classes, number // 2, taken)
    typical = _of_new_classes(middle, classes, number - len(worst), taken)
    return [
        Query(int(rows[place]), f"{kind}, {metric} {100 * values[place]:.0f} %")
        for kind, places in (("typical", typical), ("among the worst", worst))
        for place in places
    ]


def _of_new_classes(places: Array, classes: Array, number: int, taken: set[int]) -> list[int]:
    """Return the first places of classes that are not taken yet, at most so many; take them."""
    chosen: list[int] = []
    for place in places.tolist():
        if len(chosen) == number:
            break
        if classes[place] not in taken:
            taken.add(int(classes[place]))
            chosen.append(place)
    return chosen


def retrieval_rows(
    embeddings: Embeddings,
    labels: Array,
    images: Images,
    class_names: Sequence[str],
    queries: Sequence[Query | int],
    k: int = 10,
    *,
    candidates: Array | None = None,
    distance: str = "cosine",
) -> list[Row]:
    """Find the exact nearest neighbours of a few queries and lay them out as rows of images.

    No query finds itself; of equal distances the lower index comes first. A neighbour is right if
    it has a class in common with the query.

    Args:
        embeddings: ``(N, D)`` tensor, array or memory map.
        labels: ``(N,)`` class indices or ``(N, C)`` multi-hot.
        images: the N images, uint8 ``(height, width, 1 or 3)``, or a function that reads the i-th:
            a table's ``source.read``. Only those shown are read.
        class_names: the C names.
        queries: which rows to search for, as indices or from `choose_queries`.
        k: how many neighbours to show, or all there are.
        candidates: which rows may be found, as indices or as a mask ``(N,)``, if not all:
            ``table.splits == "gallery"``, say.
        distance: ``"cosine"`` or ``"euclidean"``.

    Returns:
        A row for each query, in their order.
    """
    checks.count("k", k, OWNER)
    checks.one_of("distance", distance, DISTANCES, OWNER)
    check_embeddings(embeddings, "embeddings", distance)
    labels = np.asarray(labels)
    for name, given in (("labels", labels), ("images", images)):
        if not callable(given) and len(given) != len(embeddings):
            raise ValueError(
                f"{name} must have one entry for each of the {len(embeddings):,} embeddings; got "
                f"{len(given):,}. Pass them in the order of the embeddings."
            )
    shown = [query if isinstance(query, Query) else Query(int(query)) for query in queries]
    wrong = [query.index for query in shown if not 0 <= query.index < len(embeddings)]
    if wrong:
        raise ValueError(
            f"queries must lie in [0, {len(embeddings)}), the rows of the embeddings; got "
            f"{wrong[0]}. Pass choose_queries the query_index of the evaluation."
        )
    read: Callable[[int], Array] = images if callable(images) else images.__getitem__

    def tile(item: int, is_right: bool | None) -> Tile:
        return Tile(read(item), _class_name(labels[item], class_names), is_right)

    places = [query.index for query in shown]
    rows = []
    for query, found in zip(
        shown, _neighbours(embeddings, places, candidates, k, distance), strict=True
    ):
        right = [_share_a_class(labels[query.index], labels[item]) for item in found]
        counted = f"{sum(right)} of {len(found)} right" if found else "nothing to find"
        first = tile(query.index, None)
        note = f"{query.why}; {counted}" if query.why else counted
        neighbours = tuple(tile(item, hit) for item, hit in zip(found, right, strict=True))
        rows.append(Row(first.name, first, neighbours, note))
    return rows


def _neighbours(
    embeddings: Embeddings, queries: Sequence[int], candidates: Array | None, k: int, distance: str
) -> list[list[int]]:
    """Return the k nearest candidates of each query, itself not among them."""
    # By index, so that of equal distances the lower one comes first; a mask gives the same.
    items = np.arange(len(embeddings))
    if candidates is not None:
        items = np.unique(items[np.asarray(candidates)])
    if not len(items):
        return [[] for _ in queries]
    gallery = embeddings if candidates is None else take(embeddings, items)
    device = embeddings.device if isinstance(embeddings, torch.Tensor) else torch.device("cpu")
    found: list[list[int]] = [[] for _ in queries]
    blocks = nearest_neighbours(
        take(embeddings, np.asarray(queries, dtype=np.int64)),
        gallery,
        np.full(len(queries), k + 1),  # one more than shown, for a query may be its own nearest
        distance=distance,
        leave_one_out=False,
        device=device,
        budget=default_budget(device),
        rows=np.arange(len(queries)),
    )
    for block, index_qk in blocks:
        for place, nearest in zip(block.tolist(), index_qk.tolist(), strict=True):
            others = [int(items[at]) for at in nearest if at != NOBODY]
            found[place] = [item for item in others if item != queries[place]][:k]
    return found


def _share_a_class(one: Any, other: Any) -> bool:
    return bool(np.any(np.logical_and(one, other)) if np.ndim(one) else one == other)


def _class_name(label: Any, class_names: Sequence[str]) -> str:
    if np.ndim(label):
        return ", ".join(class_names[c] for c in np.flatnonzero(label).tolist())
    return class_names[int(label)]
