"""The exact nearest of vectors that are read in blocks; equal vectors come by their ids.

Dimensions: q queries, m vectors of a block, k neighbours, D embedding size.
"""

from collections.abc import Iterable

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.records import damaged
from weiss.catalogue.stores import MOST, ROUNDING

EPSILON = float(np.finfo(np.float32).eps)


def cosines(vectors: Array, query: Array) -> Array:
    """Return the cosine of each vector ``(m, D)`` with a query ``(D,)``, all of unit length.

    Not by a matrix product, which may round equal rows differently.
    """
    found: Array = np.einsum("md,d->m", vectors, query)
    return found


def nearest(blocks: Iterable[tuple[Array, Array]], queries: Array, k: int) -> tuple[Array, Array]:
    """Return the ids and cosines ``(q, k)`` of the k nearest; fewer columns if there are fewer.

    Args:
        blocks: ids int64 ``(m,)`` and vectors float32 ``(m, D)`` of unit length; the ids ascend,
            from block to block too.
        queries: float32 ``(q, D)`` of unit length.
        k: how many.

    Raises:
        DamagedIndexError: a vector has not unit length.
    """
    best_ids = [np.empty(0, np.int64)] * len(queries)
    best = [np.empty(0, np.float32)] * len(queries)
    for ids, vectors in blocks:
        # A matrix product is several times as fast. It leaves those out that cannot be among the k
        # nearest however both are rounded: two roundings differ by at most D epsilon.
        with np.errstate(invalid="ignore", over="ignore"):  # of damaged vectors, refused below
            rough = queries @ vectors.T
        if not (np.abs(rough) <= MOST + ROUNDING).all():
            raise damaged("a file of vectors", "one of them has not unit length")
        least = np.full(len(queries), -np.inf)
        if len(ids) > k:
            kth = -np.partition(-rough, k - 1, axis=1)[:, k - 1]
            least = kth - 3 * queries.shape[1] * EPSILON
        for row, query in enumerate(queries):
            near = np.flatnonzero(rough[row] >= least[row])
            every_id = np.concatenate([best_ids[row], ids[near]])
            every = np.concatenate([best[row], cosines(vectors[near], query)])
            order = np.argsort(-every, kind="stable")[:k]  # equal ones stay in the order of ids
            best_ids[row], best[row] = every_id[order], every[order]
    return np.stack(best_ids), np.stack(best)
