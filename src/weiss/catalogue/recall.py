"""How much of the truth an approximate search finds; the truth by comparing everything.

Dimensions: q queries, n items, D embedding size.
"""

from collections.abc import Sequence

import numpy as np
import torch

from weiss._base.arrays import Array

BLOCK = 16_000_000
"""Similarities held at a time, 64 MB of them."""
ROUNDING = 1e-6
"""By how much one similarity differs when it is computed in another order."""


def sample(size: int, most: int) -> Array:
    """Return at most ``most`` row numbers below ``size``, the same every time, in order."""
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, most, replace=False))


def similarity_at(queries: Array, vectors: Array, ranks: Sequence[int]) -> dict[int, Array]:
    """Return how similar the item of each rank is, ``(q,)``, rank 1 being the most similar.

    Args:
        queries: ``(q, D)``.
        vectors: ``(n, D)``, all items.
        ranks: between 1 and n.
    """
    found = {rank: np.empty(len(queries), np.float32) for rank in ranks}
    rows = max(1, BLOCK // len(vectors))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        sim_QN = torch.from_numpy(queries[block] @ vectors.T)
        best = sim_QN.topk(max(ranks)).values.numpy()  # six times as fast as numpy's partition
        for rank, values in found.items():
            values[block] = best[:, rank - 1]
    return found


def share_found(similarities: Array, is_counted: Array, worst: Array, k: int) -> float:
    """Return the share of the k nearest items that were found.

    An item as similar as the k-th nearest is one of them, so that copies do no harm.

    Args:
        similarities: ``(q, m)`` of what was found.
        is_counted: bool ``(q, m)``, false for nothing and for the query itself.
        worst: ``(q,)``, how similar the k-th nearest is.
        k: how many there are to find.
    """
    is_right = is_counted & (similarities >= worst[:, None] - ROUNDING)
    return float(np.minimum(is_right.sum(1), k).mean() / k)
