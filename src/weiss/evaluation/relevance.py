"""Which gallery items are relevant to which queries, for any kind of label.

Class labels may be integers of any size, whole floats or strings: an item is relevant to a query of
the same class. Multi-hot labels ``(N, C)`` make an item relevant when it shares a class.
"""

import math
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array

Labels = Tensor | Array | list[Any] | tuple[Any, ...]
DENSE = 8
"""Up to so many numbers for each item, labels serve as numbers of classes as they are."""
CELLS = 4_000_000
"""How many label comparisons are made at a time: some ten megabytes."""


class Relevance:
    """Relevance of gallery items to queries.

    Args:
        query_labels: labels of the Q queries.
        gallery_labels: labels of the G gallery items; None if the gallery is the query set, where
            no item is relevant to itself.
        num_queries: Q, to check the length.
        num_items: G, likewise.
        device: where neighbours will be.

    Attributes:
        num_relevant: ``(Q,)`` R, the number of relevant gallery items of each query.
    """

    def __init__(
        self,
        query_labels: Labels,
        gallery_labels: Labels | None,
        num_queries: int,
        num_items: int,
        device: torch.device,
    ) -> None:
        itself = gallery_labels is None
        self.query_labels = _as_array(query_labels, "query_labels", num_queries)
        query = self.query_labels
        gallery = query if itself else _as_array(gallery_labels, "gallery_labels", num_items)
        if query.ndim != gallery.ndim or (query.ndim == 2 and query.shape[1] != gallery.shape[1]):
            raise ValueError(
                "query_labels and gallery_labels must be of one kind, both classes or both "
                f"multi-hot of one width; got shapes {query.shape} and {gallery.shape}."
            )
        self.is_multi_hot = query.ndim == 2
        if not self.is_multi_hot:
            query, gallery = _as_class_ids(query, gallery)
        self._query = torch.from_numpy(query).to(device)
        self._gallery = self._query if itself else torch.from_numpy(gallery).to(device)
        if self.is_multi_hot:
            self.num_relevant = self._count(itself).cpu().numpy()
        else:  # on the CPU, where the labels are: counts on a device would have to be waited for
            size_C = np.bincount(gallery, minlength=int(query.max()) + 1)
            self.num_relevant = size_C[query] - int(itself)

    def _count(self, itself: bool) -> Tensor:
        """Count items that share a class with each query, of multi-hot labels."""
        # Neither the labels of a block nor the matrix of shared classes may be large.
        height = max(min(CELLS // (4 * self._query.shape[1]), math.isqrt(CELLS)), 1)
        count_Q = torch.zeros(len(self._query), dtype=torch.int64, device=self._query.device)
        for start in range(0, len(self._query), height):
            query_qC = self._query[start : start + height].float()
            for items_gC in torch.split(self._gallery, height):
                shared_qg = query_qC @ items_gC.float().T > 0
                count_Q[start : start + height] += shared_qg.sum(dim=1)
        # A query without any class is relevant to nothing, itself included.
        return count_Q - (self._query.any(dim=1).long() if itself else 0)

    def hits(self, rows_q: Tensor, index_qk: Tensor) -> Tensor:
        """Return ``(q, k)`` bool: is this neighbour of this query relevant?

        Args:
            rows_q: ``(q,)`` which queries, on the device of the neighbours.
            index_qk: ``(q, k)`` gallery indices, negative where there is no neighbour.
        """
        query_q = self._query[rows_q]
        exists_qk, index_qk = index_qk >= 0, index_qk.clamp_min(0)
        if not self.is_multi_hot:
            return (self._gallery[index_qk] == query_q[:, None]) & exists_qk
        height = max(CELLS // (index_qk.shape[1] * query_q.shape[1]), 1)
        shared = [
            (self._gallery[index] & query[:, None]).any(dim=2)
            for index, query in zip(
                torch.split(index_qk, height), torch.split(query_q, height), strict=True
            )
        ]
        return torch.cat(shared) & exists_qk


def _as_array(labels: Any, name: str, length: int) -> Array:
    """Return classes ``(N,)`` as int64 or strings, or multi-hot ``(N, C)`` as bool."""
    largest = 2.0**53
    if isinstance(labels, Tensor):
        if labels.is_floating_point():  # beyond this, neighbouring integers share one float
            largest = 2 / torch.finfo(labels.dtype).eps
            labels = labels.double()
        labels = labels.detach().cpu().numpy()
    elif not isinstance(labels, np.ndarray):
        labels = list(labels)
        kinds = {isinstance(label, str) for label in labels}
        if len(kinds) > 1:
            raise TypeError(
                f"{name} must all be integers or all be strings; got a mixture. "
                "Convert them, for example to str."
            )
    array = np.asarray(labels)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        largest = min(largest, 2 / float(np.finfo(array.dtype).eps))
        array = array.astype(np.float64)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{name} must be classes of shape (N,) or multi-hot of shape (N, C); "
            f"got {array.shape}. Flatten class labels."
        )
    if len(array) != length:
        raise ValueError(
            f"{name} must have one row for each of the {length} embeddings; got {len(array)}. "
            "Pass the labels of these embeddings, in their order."
        )
    if array.ndim == 2:
        if array.shape[1] == 1:
            raise ValueError(
                f"{name} must be classes of shape (N,) or multi-hot with several columns; "
                f"got {array.shape}. Flatten them, for example with reshape(-1)."
            )
        if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
            raise ValueError(
                f"multi-hot {name} must be 0 or 1; got other values. "
                "For one class a row pass shape (N,)."
            )
        return array.astype(bool)
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array):
        return array.astype(str)
    if array.dtype.kind in "US":
        return array.astype(str)
    if array.dtype.kind in "biuf":
        return _as_integers(array, name, largest)
    if array.dtype.kind == "O" and all(isinstance(label, Integral) for label in array):
        if all(abs(int(label)) < 2**63 for label in array):
            return array.astype(np.int64)
        raise ValueError(
            f"{name} must fit 64-bit signed integers; got larger ones. Pass them as strings."
        )
    raise TypeError(
        f"{name} must be integers or strings; got {array.dtype}. Convert them, for example to str."
    )


def _as_integers(array: Array, name: str, largest: float) -> Array:
    if array.dtype.kind == "f" and not (
        np.isfinite(array).all() and (array == np.rint(array)).all()
    ):
        raise ValueError(
            f"{name} must be whole numbers; got floats with other values. "
            "Pass class indices as integers, or names as strings."
        )
    if array.dtype.kind == "f" and np.abs(array).max() > largest:
        raise ValueError(
            f"{name} given as floats must be at most {largest:.0f}, beyond which this dtype cannot "
            f"tell classes apart; got {np.abs(array).max():.0f}. Pass integers."
        )
    if array.dtype.kind == "u" and len(array) and array.max() > np.iinfo(np.int64).max:
        raise ValueError(
            f"{name} must fit 64-bit signed integers; got {array.max()}. Pass them as strings."
        )
    return array.astype(np.int64)


def _as_class_ids(query: Array, gallery: Array) -> tuple[Array, Array]:
    """Number the classes of both from 0; numbers may be left out."""
    if query.dtype.kind != gallery.dtype.kind:
        raise TypeError(
            "query_labels and gallery_labels must both be integers or both be strings; "
            f"got {query.dtype} and {gallery.dtype}."
        )
    if query.dtype.kind == "i":
        # Numbers that are dense already, most data sets', need no sorting.
        both = (query,) if gallery is query else (query, gallery)
        lowest = min(int(labels.min()) for labels in both)
        if max(int(labels.max()) for labels in both) - lowest < DENSE * len(gallery):
            shifted = query - lowest
            return shifted, shifted if gallery is query else gallery - lowest
    if gallery is query:
        ids = np.unique(query, return_inverse=True)[1].astype(np.int64)
        return ids, ids
    ids = np.unique(np.concatenate([query, gallery]), return_inverse=True)[1].astype(np.int64)
    return ids[: len(query)], ids[len(query) :]
