"""Queries and their nearest neighbours as images: which to show, and the worst classes.

Dimensions: N items, D embedding size, C classes, k neighbours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from weiss._base import checks, draws
from weiss._base.arrays import Array
from weiss.evaluation.embeddings import Embeddings, check_embeddings, take
from weiss.evaluation.neighbours import NOBODY, default_budget, nearest_neighbours

OWNER = "a gallery"
MIDDLE = (0.25, 0.75)
"""Queries between these quantiles of the metric are typical."""


@dataclass(frozen=True)
class Query:
    """A query to show: its row of the embeddings, and why, in a few words for the reader."""

    index: int
    why: str


@dataclass(frozen=True, eq=False)
class Tile:
    """An image of a gallery, uint8 ``(height, width, 1 or 3)``, and its class, the text below it.

    ``is_right`` is whether it is of the query's class; None for the query itself.
    """

    pixels: Array
    name: str
    is_right: bool | None = None


@dataclass(frozen=True, eq=False)
class Row:
    """A query and its neighbours, nearest first; ``note`` is why, and how many are right."""

    query: Tile
    neighbours: tuple[Tile, ...]
    note: str


def choose_queries(
    per_query_values: Array,
    labels: Array,
    number: int,
    seed: int = 0,
    *,
    index: Array | None = None,
) -> list[Query]:
    """Choose queries of different classes to show: some typical ones, then some of the worst.

    Half of them (rounded up) are typical: drawn from the middle half of all queries by value. The
    others have the lowest values of all. If there are not enough classes, fewer are chosen.

    Args:
        per_query_values: ``(N,)`` MAP@R of each query, 0 to 1.
        labels: their classes, ``(N,)`` or multi-hot ``(N, C)``: `Retrieval.query_labels`.
        number: how many to choose.
        seed: decides ties and the draw of typical ones.
        index: ``(N,)`` their rows of the embeddings (`Retrieval.query_index`), if some queries
            were skipped; by default 0 to N - 1.
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
    shuffled = draws.permutation(len(values), seed, draws.QUERIES)
    low, high = np.quantile(values, MIDDLE)
    ascending = shuffled[np.argsort(values[shuffled], kind="stable")]
    middle = shuffled[(values[shuffled] >= low) & (values[shuffled] <= high)]
    taken: set[int] = set()
    # The worst first: a typical query of the same class would exclude the worst one.
    worst = _of_new_classes(ascending, classes, number // 2, taken)
    typical = _of_new_classes(middle, classes, number - len(worst), taken)
    return [
        Query(int(rows[place]), f"{kind}, MAP@R {100 * values[place]:.0f} %")
        for kind, places in (("typical", typical), ("among the worst", worst))
        for place in places
    ]


def _of_new_classes(places: Array, classes: Array, number: int, taken: set[int]) -> list[int]:
    """Return the first places whose classes are not in ``taken``, which gets these classes."""
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
    read: Callable[[int], Array],
    class_names: Sequence[str],
    queries: Sequence[Query],
    k: int = 10,
    *,
    candidates: Array | None = None,
) -> list[Row]:
    """Find the exact nearest neighbours of a few queries and return them as rows of images.

    Nearest by the cosine. A query is not its own neighbour; of equal distances the lower index
    comes first. A neighbour is right if it has a class in common with the query.

    Args:
        embeddings: ``(N, D)`` tensor, array or memory map.
        labels: ``(N,)`` class indices or ``(N, C)`` multi-hot.
        read: returns the i-th image, uint8 ``(height, width, 1 or 3)``: a table's ``source.read``.
        class_names: the C names.
        queries: rows to search for, as `choose_queries` returns them.
        k: how many neighbours to show; fewer if there are fewer.
        candidates: rows to search in, as indices or as a mask ``(N,)`` such as
            ``table.splits == "gallery"``; by default all.
    """
    checks.count("k", k, OWNER)
    check_embeddings(embeddings, "embeddings", "cosine")
    labels = np.asarray(labels)
    if len(labels) != len(embeddings):
        raise ValueError(
            f"labels must have one entry for each of the {len(embeddings):,} embeddings; got "
            f"{len(labels):,}. Pass them in the order of the embeddings."
        )
    wrong = [query.index for query in queries if not 0 <= query.index < len(embeddings)]
    if wrong:
        raise ValueError(
            f"queries must lie in [0, {len(embeddings)}), the rows of the embeddings; got "
            f"{wrong[0]}. Pass choose_queries the query_index of the evaluation."
        )
    # The classes of a row: those of a multi-hot one, or the one given.
    classes_of = np.flatnonzero if labels.ndim == 2 else np.atleast_1d

    def tile(item: int, is_right: bool | None) -> Tile:
        names = [class_names[label] for label in classes_of(labels[item]).tolist()]
        return Tile(read(item), ", ".join(names), is_right)

    places = [query.index for query in queries]
    rows = []
    for query, found in zip(queries, _neighbours(embeddings, places, candidates, k), strict=True):
        own = classes_of(labels[query.index])
        right = [bool(np.isin(classes_of(labels[item]), own).any()) for item in found]
        counted = f"{sum(right)} of {len(found)} right" if found else "nothing to find"
        neighbours = tuple(tile(item, hit) for item, hit in zip(found, right, strict=True))
        rows.append(Row(tile(query.index, None), neighbours, f"{query.why}; {counted}"))
    return rows


def _neighbours(
    embeddings: Embeddings, queries: Sequence[int], candidates: Array | None, k: int
) -> list[list[int]]:
    """Return the k nearest candidates of each query, without itself."""
    # Sorted, so that of equal distances the lower index comes first.
    items = np.arange(len(embeddings))
    if candidates is not None:
        items = np.unique(items[np.asarray(candidates)])
    if not len(items):
        return [[] for _ in queries]
    gallery = embeddings if candidates is None else take(embeddings, items)
    searched = take(embeddings, np.asarray(queries, dtype=np.int64))
    found: list[list[int]] = [[] for _ in queries]
    blocks = nearest_neighbours(
        searched,
        gallery,
        np.full(len(queries), k + 1),  # one more than shown: a query may be its own nearest
        distance="cosine",
        leave_one_out=False,
        device=searched.device,
        budget=default_budget(searched.device),
        rows=np.arange(len(queries)),
    )
    for block, index_qk in blocks:
        for place, nearest in zip(block.tolist(), index_qk.tolist(), strict=True):
            others = [int(items[at]) for at in nearest if at != NOBODY]
            found[place] = [item for item in others if item != queries[place]][:k]
    return found


@dataclass(frozen=True, eq=False)
class Looked:
    """The evaluation of a run's network, with its data, for the section on the worst classes.

    Args:
        embeddings: ``(N, D)`` of all queries and gallery items.
        labels: their classes, ``(N,)`` indices or ``(N, C)`` multi-hot.
        class_names: the C names.
        read: returns the i-th image, uint8 ``(height, width, 1 or 3)``.
        per_query: for each metric ``(n,)`` values; ``"map_at_r"`` must be among them.
        query_index: ``(n,)`` the rows of the embeddings that are queries.
        candidates: rows to search in, as indices; None for all.
    """

    embeddings: Tensor
    labels: Array
    class_names: Sequence[str]
    read: Callable[[int], Array]
    per_query: Mapping[str, Array]
    query_index: Array
    candidates: Array | None = None

    def __post_init__(self) -> None:
        """Refuse values that do not match the queries."""
        values = self.per_query.get("map_at_r")
        if values is None or not len(values) == len(self.query_index) > 0:
            raise ValueError(
                "per_query must hold 'map_at_r' with a value for each of the queries, at least "
                f"one; got {None if values is None else len(values)} for "
                f"{len(self.query_index)} queries. Pass the per_query of evaluate_retrieval."
            )


@dataclass(frozen=True)
class ClassScore:
    """The mean MAP@R of the queries of a class, a fraction, their number, and the worst of them.

    ``worst`` is its row of the embeddings.
    """

    name: str
    mean: float
    num_queries: int
    worst: int
    worst_value: float


def class_scores(looked: Looked) -> list[ClassScore]:
    """Return the classes that have queries, the one with the lowest mean MAP@R first."""
    values = np.asarray(looked.per_query["map_at_r"], dtype=np.float64)
    rows = np.asarray(looked.query_index)
    labels = np.asarray(looked.labels)[rows]
    found = []
    for label, name in enumerate(looked.class_names):
        places = np.flatnonzero(labels[:, label] if labels.ndim == 2 else labels == label)
        if len(places):
            worst = places[values[places].argmin()]
            mean = float(values[places].mean())
            found.append(
                ClassScore(name, mean, len(places), int(rows[worst]), float(values[worst]))
            )
    return sorted(found, key=lambda score: score.mean)
