"""Retrieval metrics of each query from its hits: pure functions, one formula each.

Dimensions: Q queries, K neighbours looked at, nearest first. ``hits_QK`` is ``(Q, K)`` bool:
``rel_i`` is 1 where the i-th neighbour is relevant (a hit). ``relevant_Q`` is ``(Q,)``: R, the
number of relevant items in the gallery, at least 1. ``P_i`` is the precision of the first i
neighbours. A neighbour that does not exist is no hit: for a metric at k, hits may have fewer than k
columns where they hold the whole gallery; for one at R, K must be at least every R. Hits may have
more columns than a metric needs, as many as the block's other queries need: these must not count.

All return ``(Q,)`` float64; the mean over queries is what papers report.
"""

import torch
from torch import Tensor

from weiss._base import checks

TITLES = {"map_at_r": "MAP@R", "precision_at_1": "P@1", "r_precision": "RP"}
"""The metrics that tables, cards, figures and summaries show, in this order, with their titles, and
that ``evaluate.metric`` of a recipe may name."""


def precision_at(hits_QK: Tensor, k: int) -> Tensor:
    """Share of hits among the first k neighbours, ``1/k sum_{i<=k} rel_i``.

    Example:
        >>> precision_at(torch.tensor([[True, False, True, False]]), 4)
        tensor([0.5000], dtype=torch.float64)
    """
    return _first(hits_QK, k).sum(dim=1, dtype=torch.float64) / k


def recall_at(hits_QK: Tensor, k: int) -> Tensor:
    """1 if any of the first k neighbours is a hit, as metric learning uses the word recall."""
    return _first(hits_QK, k).any(dim=1).double()


def average_precision_at(hits_QK: Tensor, relevant_Q: Tensor, k: int) -> Tensor:
    """Average precision of the first k, ``1/min(k, R) sum_{i<=k} P_i rel_i``."""
    precision_QK = _precision_where_hit(_first(hits_QK, k))
    return precision_QK.sum(dim=1) / relevant_Q.clamp_max(k)


def r_precision(hits_QK: Tensor, relevant_Q: Tensor) -> Tensor:
    """Share of hits among the first R neighbours, ``1/R sum_{i<=R} rel_i``."""
    return _within_r(hits_QK, relevant_Q).sum(dim=1, dtype=torch.float64) / relevant_Q


def average_precision_at_r(hits_QK: Tensor, relevant_Q: Tensor) -> Tensor:
    """MAP@R of one query, ``1/R sum_{i<=R} P_i rel_i`` (Musgrave et al., 2020)."""
    precision_QK = _precision_where_hit(_within_r(hits_QK, relevant_Q))
    return precision_QK.sum(dim=1) / relevant_Q


def _first(hits_QK: Tensor, k: int) -> Tensor:
    return hits_QK[:, : checks.count("k", k, "a metric at k")]


def _within_r(hits_QK: Tensor, relevant_Q: Tensor) -> Tensor:
    rank_K = torch.arange(hits_QK.shape[1], device=hits_QK.device)
    return hits_QK & (rank_K < relevant_Q[:, None])


def _precision_where_hit(hits_QK: Tensor) -> Tensor:
    rank_K = torch.arange(1, hits_QK.shape[1] + 1, device=hits_QK.device, dtype=torch.float64)
    return hits_QK.cumsum(dim=1) / rank_K * hits_QK
