"""Distances between two sets of vectors; small is close.

Shapes: N and M rows, D columns. Where the true gradient does not exist (a vector of length zero
under cosine, two equal points under Euclidean distance) it is zero. In float32 the cosine is right
for vectors of lengths from 1e-15 to 1e15; squares of much longer or shorter ones leave its range.

On CUDA the products follow ``torch.set_float32_matmul_precision``: whoever allows TF32 there allows
it here, and gets cosines good to about three digits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Distance = Callable[[Tensor, Tensor], Tensor]


def working_dtype(x_ND: Tensor, y_MD: Tensor) -> torch.dtype:
    """Return the dtype to compute in: that of both, but at least float32."""
    return torch.promote_types(torch.promote_types(x_ND.dtype, y_MD.dtype), torch.float32)


def unit(x_ND: Tensor) -> Tensor:
    """Scale every row of ``(N, D)`` to length one; one of zeros stays zero, without a gradient."""
    return x_ND * inverse_length(x_ND)[:, None]


def inverse_length(x_ND: Tensor) -> Tensor:
    """Return ``(N,)`` one over the length of each row; 0, with gradient 0, for a row of zeros."""
    length_N: Tensor = torch.linalg.vector_norm(x_ND, dim=1)
    is_zero_N = length_N == 0
    return length_N.masked_fill(is_zero_N, 1.0).reciprocal().masked_fill(is_zero_N, 0.0)


def cosine_distance(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """One minus the cosine of the angle, ``d(x, y) = 1 - x.y / (|x| |y|)``, in [0, 2].

    Args:
        x_ND: ``(N, D)`` vectors, normalised or not.
        y_MD: ``(M, D)`` vectors, normalised or not.

    Returns:
        ``(N, M)`` distances; a zero vector has no direction and is at distance 1 from everything.
    """
    # The second argument holds the fields, which may be many: no normalised copy of them is made.
    return 1.0 - (unit(x_ND) @ y_MD.T) * inverse_length(y_MD)


def euclidean_distance(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """Length of the difference, ``d(x, y) = |x - y|``.

    Formed from differences, not from a matrix product: ``|x|^2 + |y|^2 - 2 x.y`` loses half of
    the digits where points are close, which is where the losses look. It can be differentiated
    once, not twice.

    Args:
        x_ND: ``(N, D)`` vectors.
        y_MD: ``(M, D)`` vectors.

    Returns:
        ``(N, M)`` distances; between equal points the gradient is zero.
    """
    return torch.cdist(x_ND, y_MD, compute_mode="donot_use_mm_for_euclid_dist")


DISTANCES: dict[str, Distance] = {"cosine": cosine_distance, "euclidean": euclidean_distance}
