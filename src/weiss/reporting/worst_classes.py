"""A network looked at again: which classes it finds worst."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from weiss._base.arrays import Array


@dataclass(frozen=True, eq=False)
class Looked:
    """What looking at a run's network again gives: enough to show what it finds.

    Args:
        embeddings: ``(N, D)`` of all items that were searched or searched for.
        labels: their classes, ``(N,)`` indices or ``(N, C)`` multi-hot.
        class_names: the C names.
        read: gives the i-th image, uint8 ``(height, width, 1 or 3)``.
        per_query: for each metric ``(n,)`` values; ``"map_at_r"`` must be among them.
        query_index: ``(n,)`` which rows of the embeddings these are.
        candidates: which rows may be found, as indices; None for all.
    """

    embeddings: Tensor
    labels: Array
    class_names: Sequence[str]
    read: Callable[[int], Array]
    per_query: Mapping[str, Array]
    query_index: Array
    candidates: Array | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not those of the queries."""
        values = self.per_query.get("map_at_r")
        if values is None or not len(values) == len(self.query_index) > 0:
            raise ValueError(
                "per_query must hold 'map_at_r' with a value for each of the queries, at least "
                f"one; got {None if values is None else len(values)} for "
                f"{len(self.query_index)} queries. Pass what evaluate_retrieval found."
            )


@dataclass(frozen=True)
class ClassScore:
    """How well the queries of a class did.

    Attributes:
        name: of the class.
        mean: of their MAP@R, a fraction.
        num_queries: how many they are.
        worst: the row of the embeddings of the query with the lowest value, the first of equals.
        worst_value: that value.
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
            own = values[places]
            worst = int(own.argmin())
            found.append(
                ClassScore(
                    name=name,
                    mean=float(own.mean()),
                    num_queries=len(places),
                    worst=int(rows[places[worst]]),
                    worst_value=float(own[worst]),
                )
            )
    return sorted(found, key=lambda score: score.mean)
