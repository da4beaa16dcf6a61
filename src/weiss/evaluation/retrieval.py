"""Retrieval evaluation: exact neighbours, metrics of every query, and their summary.

`retrieval_metrics` gives the numbers papers report. `evaluate_retrieval` gives the same with the
value of every query behind them: classes one by one, confidence intervals, comparisons.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks
from weiss._base.arrays import Array
from weiss._base.progress import track
from weiss.evaluation import metrics, statistics
from weiss.evaluation.embeddings import Embeddings, at_least_float32, check_embeddings, take
from weiss.evaluation.neighbours import default_budget, nearest_neighbours
from weiss.evaluation.relevance import Labels, Relevance
from weiss.theory.distances import DISTANCES, unit

Metric = Callable[[Tensor, Tensor], Tensor]
OWNER = "retrieval evaluation"


@dataclass(frozen=True)
class Retrieval:
    """The result of an evaluation, query by query.

    Queries without a relevant item in the gallery have no value and are left out.

    Attributes:
        per_query: for each metric the ``(N,)`` values of the queries that count.
        query_index: ``(N,)`` which rows of the query set those are.
        query_labels: labels of those rows, ``(N,)`` classes or ``(N, C)`` multi-hot.
        queries_left_out: how many queries had no relevant item.
        clustering: ``nmi`` and ``ami``, if asked for.
        queries_in_full: how many queries low precision could not decide, see `nearest_neighbours`;
            they were compared with all items in full precision. 0 where it was not used.
    """

    per_query: dict[str, Array]
    query_index: Array
    query_labels: Array
    queries_left_out: int
    clustering: dict[str, float] = field(default_factory=dict)
    queries_in_full: int = 0

    def summary(self) -> dict[str, float | int]:
        """Return the mean of each metric over the queries, and how many there were."""
        means: dict[str, float | int] = {
            name: float(values.mean()) for name, values in self.per_query.items()
        }
        counts = {"queries": len(self.query_index), "queries_left_out": self.queries_left_out}
        return {**means, **self.clustering, **counts}

    def per_class(self) -> dict[Any, dict[str, float | int]]:
        """Return the mean of each metric over the queries of each class, and their number."""
        if self.query_labels.ndim == 2:
            members = {c: column.nonzero()[0] for c, column in enumerate(self.query_labels.T)}
        else:
            classes, inverse = np.unique(self.query_labels, return_inverse=True)
            order = np.argsort(inverse, kind="stable")
            parts = np.split(order, np.bincount(inverse).cumsum()[:-1])
            members = dict(zip(classes.tolist(), parts, strict=True))
        return {
            label: {
                **{name: float(values[rows].mean()) for name, values in self.per_query.items()},
                "queries": len(rows),
            }
            for label, rows in members.items()
            if len(rows)
        }

    def interval(
        self, metric: str = "map_at_r", *, confidence: float = 0.95, seed: int = 0
    ) -> statistics.Interval:
        """Bootstrap over queries: the interval of a metric's mean for this gallery.

        It estimates how much the mean varies with other queries of the same kind; queries of one
        class share their relevant items, so that the true uncertainty is somewhat larger.
        """
        values = self.per_query[checks.one_of("metric", metric, self.per_query, OWNER)]
        return statistics.bootstrap_interval(values, confidence=confidence, seed=seed)

    def compare(
        self, other: "Retrieval", metric: str = "map_at_r", *, seed: int = 0
    ) -> statistics.PairedTest:
        """Test whether this system differs from another on the same queries.

        Args:
            other: the other system's evaluation of the same queries.
            metric: which metric to compare.
            seed: of the permutations.
        """
        name = checks.one_of("metric", metric, self.per_query, OWNER)
        checks.one_of("metric", metric, other.per_query, "the other system's evaluation")
        if not (
            np.array_equal(self.query_index, other.query_index)
            and np.array_equal(self.query_labels, other.query_labels)
        ):
            raise ValueError(
                "both systems must be evaluated on the same queries in the same order; got "
                f"{len(self.query_index)} and {len(other.query_index)} queries, or other labels. "
                "Evaluate both with the same labels."
            )
        return statistics.paired_test(self.per_query[name], other.per_query[name], seed=seed)


class RetrievalOptions(TypedDict):
    """Further options of `retrieval_metrics`; `evaluate_retrieval` documents them."""

    precision_at: NotRequired[Iterable[int]]
    map_at: NotRequired[Iterable[int]]
    clustering: NotRequired[bool]
    device: NotRequired[torch.device | str | None]
    memory_budget: NotRequired[int | None]
    group: NotRequired[Any]
    progress: NotRequired[bool]


def retrieval_metrics(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    recall_at: Iterable[int] = (1, 2, 4, 8),
    distance: str = "cosine",
    **options: Unpack[RetrievalOptions],
) -> dict[str, float | int]:
    """Compute retrieval metrics from exact nearest neighbours.

    Without a gallery every item is a query against all others (leave one out). Queries without any
    relevant item are left out and counted.

    Args:
        query: ``(Q, D)`` tensor, array or `numpy.memmap`; computed where the tensors are.
        query_labels: ``(Q,)`` integers or strings, or ``(Q, C)`` multi-hot.
        gallery: ``(G, D)``, or None.
        gallery_labels: labels of the gallery, if there is one.
        recall_at: every k for which to report ``recall_at_k``. A k beyond the gallery looks at all
            of it.
        distance: ``"cosine"`` or ``"euclidean"``.
        **options: further options of `evaluate_retrieval`.

    Returns:
        ``precision_at_1``, ``r_precision``, ``map_at_r``, ``recall_at_k`` for each k, what the
        options add, ``queries`` and ``queries_left_out``.

    Example:
        >>> import torch
        >>> from weiss import retrieval_metrics
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> retrieval_metrics(embeddings, ["cat", "cat", "dog", "dog"])["map_at_r"]
        1.0
    """
    found = evaluate_retrieval(
        query,
        query_labels,
        gallery,
        gallery_labels,
        recall_at=recall_at,
        distance=distance,
        **options,
    )
    return found.summary()


def evaluate_retrieval(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    recall_at: Iterable[int] = (1, 2, 4, 8),
    precision_at: Iterable[int] = (),
    map_at: Iterable[int] = (),
    distance: str = "cosine",
    clustering: bool = False,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    group: Any = None,
    progress: bool = True,
) -> Retrieval:
    """Evaluate retrieval and keep the value of every query.

    Args:
        query: as in `retrieval_metrics`.
        query_labels: as in `retrieval_metrics`.
        gallery: as in `retrieval_metrics`.
        gallery_labels: as in `retrieval_metrics`.
        recall_at: every k for ``recall_at_k``: is any of the first k neighbours relevant?
        precision_at: every k for ``precision_at_k``: the share of relevant ones among the first k.
        map_at: every k for ``map_at_k``: average precision of the first k over ``min(k, R)``.
        distance: ``"cosine"`` or ``"euclidean"``.
        clustering: also cluster the queries by k-means, as many clusters as classes, and report
            ``nmi`` and ``ami``; needs scikit-learn, class labels, and all queries in memory.
        device: where to compute, if not where the tensors are (the CPU for arrays).
        memory_budget: bytes the search may use beside its inputs, about.
        group: a `torch.distributed` process group. Every process of it passes the same inputs,
            searches for its part of the queries, and gets the same result.
        progress: show a bar if it takes longer than two seconds.
    """
    distance = checks.one_of("distance", distance, DISTANCES, OWNER)
    if memory_budget is not None:
        checks.count("memory_budget", memory_budget, OWNER)
    rank, world_size = _place_in(group)
    leave_one_out = gallery is None
    if leave_one_out != (gallery_labels is None):
        given, missing = ("labels", "embeddings") if leave_one_out else ("embeddings", "labels")
        raise ValueError(
            f"gallery and gallery_labels must be given together; got the {given} without the "
            f"{missing}. Leave both out to search among the queries."
        )
    items = query if gallery is None else gallery
    where = _device(query, items, device)
    check_embeddings(query, "query", distance)
    if gallery is not None:
        check_embeddings(gallery, "gallery", distance)
        if gallery.shape[1] != query.shape[1]:
            raise ValueError(
                f"query and gallery must have the same number of columns; got {query.shape[1]} "
                f"and {gallery.shape[1]}. Embed both with the same model."
            )
    relevance = Relevance(query_labels, gallery_labels, len(query), len(items), where)
    rows = np.flatnonzero(relevance.num_relevant > 0)
    if not len(rows):
        remedy = "Every class has a single member." if leave_one_out else "Compare the class names."
        raise ValueError(
            "at least one query must have a relevant item in the gallery; none of "
            f"{len(query)} has. {remedy}"
        )
    wanted = _metrics(recall_at, precision_at, map_at)
    depth = max([1, *(k for k, _ in wanted.values())])
    num_neighbours = np.maximum(relevance.num_relevant, depth)

    part = rows[rank::world_size]
    # The last column counts the queries that were compared in full.
    values_QM = torch.zeros(len(query), len(wanted) + 1, dtype=torch.float64, device=where)
    in_full_Q = np.zeros(len(query), dtype=bool)
    relevant_Q = torch.from_numpy(relevance.num_relevant).to(where)
    blocks = nearest_neighbours(
        query,
        items,
        num_neighbours,
        distance=distance,
        leave_one_out=leave_one_out,
        device=where,
        budget=memory_budget or default_budget(where),
        rows=part,
        in_full=in_full_Q,
    )
    steps: Iterator[tuple[int, tuple[Array, Tensor]]] = ((len(b[0]), b) for b in blocks)
    patience = 2.0 if progress and rank == 0 else float("inf")
    for block, index_qk in track(steps, len(part), "searching", delay=patience):
        rows_q = torch.from_numpy(block).to(where)
        hits_qk, relevant_q = relevance.hits(rows_q, index_qk), relevant_Q[rows_q]
        columns = [metric(hits_qk, relevant_q) for _, metric in wanted.values()]
        values_QM[rows_q, :-1] = torch.stack(columns, dim=1)
    if in_full_Q.any():
        values_QM[:, -1] = torch.from_numpy(in_full_Q).to(where)
    if group is not None:
        if torch.distributed.get_backend(group) == "nccl":  # which needs CUDA memory
            values_QM = values_QM.cuda()
        torch.distributed.all_reduce(values_QM, group=group)

    values = values_QM.cpu().numpy()[rows]
    return Retrieval(
        per_query={name: values[:, column] for column, name in enumerate(wanted)},
        query_index=rows,
        query_labels=relevance.query_labels[rows],
        queries_left_out=len(query) - len(rows),
        clustering=_cluster(query, relevance, distance) if clustering else {},
        queries_in_full=int(values[:, -1].sum()),
    )


def concatenate_embeddings(parts: Sequence[Embeddings]) -> Tensor:
    """Put several embeddings of the same items side by side, each scaled to length one.

    This is how the reality-check protocol joins the models of its folds: four embeddings of 128
    dimensions become one of 512, in which each model has the same weight.

    Args:
        parts: ``(N, D_i)`` embeddings of the same N items; all are read into memory.

    Returns:
        ``(N, sum of D_i)``, at least float32.
    """
    if isinstance(parts, Tensor | np.ndarray) or not len(parts):
        raise ValueError(
            "parts must be a list of at least one embedding; got "
            f"{'none' if not len(parts) else type(parts).__name__}. Pass [first, second, ...]."
        )
    for number, part in enumerate(parts):
        check_embeddings(part, f"parts[{number}]", "cosine")
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"all parts must embed the same items; got lengths {lengths}. "
            "Embed one data set with every model, in one order."
        )
    tensors = [take(part, slice(None)) for part in parts]
    return torch.cat([unit(at_least_float32(tensor)) for tensor in tensors], dim=1)


def _metrics(
    recall_at: Iterable[int], precision_at: Iterable[int], map_at: Iterable[int]
) -> dict[str, tuple[int, Metric]]:
    """Return for each metric the number of neighbours it needs, and its function."""
    wanted: dict[str, tuple[int, Metric]] = {
        "precision_at_1": (1, _ignoring_r(metrics.precision_at, 1)),
        "r_precision": (1, metrics.r_precision),
        "map_at_r": (1, metrics.average_precision_at_r),
    }
    for k in _every_k("recall_at", recall_at):
        wanted[f"recall_at_{k}"] = k, _ignoring_r(metrics.recall_at, k)
    for k in _every_k("precision_at", precision_at):
        wanted[f"precision_at_{k}"] = k, _ignoring_r(metrics.precision_at, k)
    for k in _every_k("map_at", map_at):
        wanted[f"map_at_{k}"] = k, partial(metrics.average_precision_at, k=k)
    return wanted


def _ignoring_r(metric: Callable[[Tensor, int], Tensor], k: int) -> Metric:
    return lambda hits_QK, relevant_Q: metric(hits_QK, k)


def _every_k(name: str, given: Iterable[int]) -> list[int]:
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be several k, for example ({given!r},); got {given!r}.")
    return [checks.count(name, k, OWNER) for k in given]


def _device(
    query: Embeddings, items: Embeddings, device: torch.device | str | None
) -> torch.device:
    if device is not None:
        return torch.device(device)
    found = {given.device for given in (query, items) if isinstance(given, Tensor)}
    if len(found) > 1:
        raise ValueError(
            "query and gallery must be on one device; got "
            f"{' and '.join(sorted(map(str, found)))}. Move one, or say device=..."
        )
    return found.pop() if found else torch.device("cpu")


def _cluster(query: Embeddings, relevance: Relevance, distance: str) -> dict[str, float]:
    """Cluster by k-means and compare with the classes."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    if relevance.is_multi_hot:
        raise ValueError("clustering must be False with multi-hot labels: clusters are disjoint.")
    points = at_least_float32(take(query, slice(None)).cpu())
    points = unit(points) if distance == "cosine" else points
    classes = relevance.query_labels
    kmeans = KMeans(len(np.unique(classes)), n_init=1, random_state=0)
    clusters = kmeans.fit_predict(points.float().numpy())
    return {
        "nmi": float(normalized_mutual_info_score(classes, clusters)),
        "ami": float(adjusted_mutual_info_score(classes, clusters)),
    }


def _place_in(group: Any) -> tuple[int, int]:
    """Return the rank of this process in the group and the size of the group."""
    if group is None:
        return 0, 1
    rank = torch.distributed.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"this process must belong to the group for {OWNER}; it does not. "
            "Call it in the processes of the group only."
        )
    return rank, torch.distributed.get_world_size(group)
