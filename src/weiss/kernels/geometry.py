"""Distances to a block of fields, and their gradients put together by hand.

A geometry holds the batch. `measure` gives the distances to some fields and a function that, from
the loss's derivative by each distance, adds up the gradient of the batch and returns that of the
fields. Normalisation is part of it: no normalised copy of the fields is ever made, since

    cos_ic = x_i . M_c / |M_c|      (x_i of length one)
    dL/dM_c = sum_i h_ic x_i - (sum_i h_ic cos_ic / |M_c|) M_c,   h_ic = dL/dcos_ic / |M_c|,

and the same h gives the batch's gradient, ``sum_c h_ic M_c``, up to the projection that belongs to
the normalisation of x.

With several fields a class (`JoinedGeometry`) a block has the rows of all fields of its classes,
and the distances to the fields of a class are joined.

Dimensions: B batch, c classes of a block, S fields of a class, D embedding size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from weiss.theory.distances import euclidean_distance, inverse_length
from weiss.theory.sublattices import by_class, rows_of, shares, soft_minimum

PullBack = Callable[[Tensor], Tensor | None]

GATHERED_NUMBERS = 2**22
"""Entries of the vectors that are gathered at a time."""


class Geometry(ABC):
    """A batch, in the dtype to compute in: its distances to fields, and the wanted gradients."""

    def __init__(self, x_BD: Tensor, wants_x: bool, wants_fields: bool) -> None:
        self.x_BD, self.wants_x, self.wants_fields = x_BD, wants_x, wants_fields
        self.total_BD = torch.zeros_like(x_BD) if wants_x else None

    @abstractmethod
    def measure(self, fields_cD: Tensor) -> tuple[Tensor, PullBack]:
        """Return distances ``(B, c)``, and what takes their derivative back to the vectors."""

    @abstractmethod
    def gradient(self) -> Tensor | None:
        """Return the gradient ``(B, D)`` of the batch, all blocks together; None if not wanted."""


class CosineGeometry(Geometry):
    """``d = 1 - cos``."""

    def __init__(self, x_BD: Tensor, wants_x: bool, wants_fields: bool) -> None:
        super().__init__(x_BD, wants_x, wants_fields)
        self.inverse_B1 = inverse_length(x_BD)[:, None]
        self.unit_BD = x_BD * self.inverse_B1

    def measure(self, fields_cD: Tensor) -> tuple[Tensor, PullBack]:
        """See `Geometry`."""
        inverse_c = inverse_length(fields_cD)
        cos_Bc = (self.unit_BD @ fields_cD.T).mul_(inverse_c)

        def pull_back(slope_Bc: Tensor) -> Tensor | None:
            by_cos_Bc = slope_Bc * -inverse_c
            if self.total_BD is not None:
                self.total_BD.addmm_(by_cos_Bc, fields_cD)
            if not self.wants_fields:
                return None
            along_c = (by_cos_Bc * cos_Bc).sum(0).mul_(inverse_c)
            return torch.addcmul(by_cos_Bc.T @ self.unit_BD, fields_cD, along_c[:, None], value=-1)

        return 1.0 - cos_Bc, pull_back

    def pull_back_pairs(
        self, fields_cD: Tensor, sample_N: Tensor, class_N: Tensor, dist_N: Tensor, slope_N: Tensor
    ) -> Tensor | None:
        """Do what the function of `measure` does, for a list of N pairs only.

        ``class_N`` is counted from the start of the block, ``slope_N`` the derivative by distances.
        """
        inverse_c = inverse_length(fields_cD)
        by_cos_N = slope_N * -inverse_c[class_N]
        if self.total_BD is not None:
            _add_rows(self.total_BD, sample_N, fields_cD, class_N, by_cos_N)
        if not self.wants_fields:
            return None
        along_c = torch.zeros_like(inverse_c)
        along_c.index_add_(0, class_N, by_cos_N * (1.0 - dist_N)).mul_(inverse_c)
        rows_cD = torch.zeros_like(fields_cD)
        _add_rows(rows_cD, class_N, self.unit_BD, sample_N, by_cos_N)
        near_c = along_c.nonzero().squeeze(1)
        rows_cD[near_c] -= fields_cD[near_c] * along_c[near_c, None]
        return rows_cD

    def gradient(self) -> Tensor | None:
        """See `Geometry`."""
        if self.total_BD is None:
            return None
        along_B1 = (self.total_BD * self.unit_BD).sum(1, keepdim=True)
        return (self.total_BD - self.unit_BD * along_B1) * self.inverse_B1


class EuclideanGeometry(Geometry):
    """``d = |x - y|``, by differences as in `weiss.theory.distances`, and so are its gradients."""

    def measure(self, fields_cD: Tensor) -> tuple[Tensor, PullBack]:
        """See `Geometry`."""
        x_BD = self.x_BD.detach().requires_grad_(self.wants_x)
        y_cD = fields_cD.detach().requires_grad_(self.wants_fields)
        with torch.enable_grad():
            dist_Bc = euclidean_distance(x_BD, y_cD)

        def pull_back(slope_Bc: Tensor) -> Tensor | None:
            wanted = [tensor for tensor in (x_BD, y_cD) if tensor.requires_grad]
            found = list(torch.autograd.grad(dist_Bc, wanted, slope_Bc))
            if self.total_BD is not None:
                self.total_BD += found.pop(0)
            return found.pop() if self.wants_fields else None

        return dist_Bc.detach(), pull_back

    def gradient(self) -> Tensor | None:
        """See `Geometry`."""
        return self.total_BD


class JoinedGeometry(Geometry):
    """The soft minimum of the distances to the S fields of a class, given as ``(c, S, D)``.

    The distances to all fields of a block, ``(B, c S)``, live as long as the block.
    """

    def __init__(self, inner: Geometry, gamma: float) -> None:
        self.inner, self.gamma = inner, gamma
        self.x_BD, self.wants_x, self.wants_fields = inner.x_BD, inner.wants_x, inner.wants_fields

    def measure(self, fields_cD: Tensor) -> tuple[Tensor, PullBack]:
        """See `Geometry`; the fields are ``(c, S, D)``, and so is their gradient."""
        each, gamma = fields_cD.shape[1], self.gamma
        dist_BF, pull_back = self.inner.measure(rows_of(fields_cD))
        dist_BcS = by_class(dist_BF, each)

        def pull_back_all(slope_Bc: Tensor) -> Tensor | None:
            slope_BcS = shares(dist_BcS, gamma).mul_(slope_Bc[:, :, None])
            rows_FD = pull_back(slope_BcS.flatten(1))
            return None if rows_FD is None else rows_FD.view_as(fields_cD)

        return soft_minimum(dist_BcS, gamma), pull_back_all

    def gradient(self) -> Tensor | None:
        """See `Geometry`."""
        return self.inner.gradient()


def _add_rows(
    total_ND: Tensor, into_N: Tensor, vectors_ND: Tensor, from_N: Tensor, weight_N: Tensor
) -> None:
    """Add ``weight * vectors[from]`` to ``total[into]``, pair after pair, in order.

    On a CPU, where adding by index is sequential: a pair whose weight is zero changes no bit.
    """
    step = max(GATHERED_NUMBERS // total_ND.shape[1], 1)
    for low in range(0, len(into_N), step):
        part = slice(low, low + step)
        total_ND.index_add_(0, into_N[part], weight_N[part, None] * vectors_ND[from_N[part]])


GEOMETRIES: dict[str, type[Geometry]] = {"cosine": CosineGeometry, "euclidean": EuclideanGeometry}


def geometry_of(
    distance: str, gamma: float | None, x_BD: Tensor, wants_x: bool, wants_fields: bool
) -> Geometry:
    """Return the geometry of a loss; ``gamma`` is None for one field a class."""
    inner = GEOMETRIES[distance](x_BD, wants_x, wants_fields)
    return inner if gamma is None else JoinedGeometry(inner, gamma)
