"""Several fields for one class: the distance to a class is the soft minimum of those to its fields.

A class of S groups (the sublattices of a magnet) has S fields, and a sample stands under one of
them. Which one is summed out at the inverse temperature gamma, all S equally likely before:

    d_c(F) = -1/gamma log( 1/S sum_s e^{-gamma d(F, M_cs)} )

a free energy. It lies between the distance to the nearest field, its limit for a large gamma, and
log(S) / gamma above that, and never above the mean distance, its limit for a small one. S equal
fields have the distance of one, because of the mean. Its derivative by each distance is the share
of that field, ``softmax(-gamma d)``.

The distance between two classes, for the soft constraint, sums out both fields. A loss takes
these distances for those to single fields and changes in nothing else. docs/theory.md derives it.

Dimensions: N rows, C classes, S fields of a class, D embedding size.
"""

import torch
from torch import Tensor

DEFAULT_GAMMA = 80.0
"""With it a sample on one field is at most ``log(S) / 80`` from its class, below the margins."""


def rows_of(fields: Tensor) -> Tensor:
    """Return fields ``(C, D)`` as they are, and ``(C, S, D)`` as ``(C S, D)``, class by class."""
    return fields if fields.ndim == 2 else fields.flatten(0, 1)


def each_of(fields: Tensor) -> int:
    """Return S, the number of fields of a class."""
    return 1 if fields.ndim == 2 else fields.shape[1]


def soft_minimum(dist: Tensor, gamma: float) -> Tensor:
    """Return ``-1/gamma log mean e^{-gamma d}`` over the last dimension.

    Measured from the smallest, so that no exponential overflows and equal distances give exactly
    themselves, for any gamma.
    """
    # The result does not depend on where it is measured from, so neither does its gradient.
    least = dist.detach().amin(-1, keepdim=True)
    mean = torch.expm1(gamma * (least - dist)).mean(-1)
    return least.squeeze(-1) - torch.log1p(mean) / gamma


def shares(dist: Tensor, gamma: float) -> Tensor:
    """Return the derivative of `soft_minimum` by each distance; they add up to 1."""
    return torch.softmax(-gamma * dist, dim=-1)


def by_class(dist_NF: Tensor, each: int) -> Tensor:
    """Return distances ``(N, C S)`` to all fields as ``(N, C, S)``."""
    return dist_NF.reshape(len(dist_NF), dist_NF.shape[1] // each, each)


def by_pair(dist_FF: Tensor, each: int) -> Tensor:
    """Return distances ``(B S, C S)`` between fields as ``(B, C, S S)``, by pairs of classes."""
    left, right = (size // each for size in dist_FF.shape)
    return dist_FF.reshape(left, each, right, each).permute(0, 2, 1, 3).flatten(2)


def from_pairs(pairs: Tensor, each: int) -> Tensor:
    """Return ``(B, C, S S)`` as `by_pair` found it, ``(B S, C S)``."""
    left, right, _ = pairs.shape
    rows = pairs.reshape(left, right, each, each).permute(0, 2, 1, 3)
    return rows.reshape(left * each, right * each)
