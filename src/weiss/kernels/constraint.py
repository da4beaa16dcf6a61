"""The soft constraint on the fields, tile by tile: never C x C of anything.

    lambda / C  sum_{c != c'} psi(r(d(M_c, M_c')))^2

Every ordered pair is computed with its first field, whose gradient is then twice that of the
pairs it is first in, since both orders count. So the second field may lie in another process: only
its vector is needed. With several fields a class, ``(C, S, D)``, the distance of two classes is the
soft minimum over all pairs of their fields.

Dimensions: C fields of this process, b and c rows of two blocks, D embedding size.
"""

import torch
from torch import Tensor

from weiss.kernels.geometry import GEOMETRIES
from weiss.kernels.problem import Problem, Shard
from weiss.theory.interactions import LogLink
from weiss.theory.sublattices import by_pair, each_of, from_pairs, rows_of, shares, soft_minimum

WIDTH = {"cpu": 1024, "cuda": 8192}
"""Fields in a block."""


def constraint(
    problem: Problem, fields_CD: Tensor, shard: Shard, gradient_CD: Tensor | None
) -> Tensor:
    """Return the constraint of the fields of this process; add its gradient to theirs, if wanted.

    The shard gives the fields of the other processes.
    """
    dtype = torch.promote_types(fields_CD.dtype, torch.float32)
    factor = problem.reg_weight / shard.num_classes
    link = problem.interactions.repulsion_link
    divides = link.rate if isinstance(link, LogLink) and problem.reg_scale == "released" else 1.0
    value = torch.zeros((), dtype=dtype, device=fields_CD.device)
    each, gamma = each_of(fields_CD), problem.gamma
    width = max(WIDTH.get(fields_CD.device.type, WIDTH["cuda"]) // each, 1)
    sums_CD = torch.zeros_like(fields_CD, dtype=dtype) if gradient_CD is not None else None
    for first, other_cD in shard.all_blocks(fields_CD.detach(), width):
        other_cD = other_cD.to(dtype)
        for low in range(0, len(fields_CD), width):
            rows_bD = fields_CD[low : low + width].detach().to(dtype)
            # These rows are the batch of this geometry, so their gradient is added up.
            geometry = GEOMETRIES[problem.distance](rows_of(rows_bD), sums_CD is not None, False)
            dist_bc, pull_back = geometry.measure(rows_of(other_cD))
            if gamma is not None:
                dist_bcS = by_pair(dist_bc, each)
                dist_bc = soft_minimum(dist_bcS, gamma)
            energy_bc, slope_bc = problem.repulsion_and_slope(dist_bc)
            if isinstance(link, LogLink):
                slope_bc = slope_bc * energy_bc.sigmoid() / divides
            psi_bc = link.undivided(energy_bc) / divides  # a fresh tensor
            offset = shard.first + low - first
            if -psi_bc.shape[0] < offset < psi_bc.shape[1]:
                psi_bc.diagonal(offset).zero_()  # a field does not meet itself
            value += psi_bc.square().sum() * factor
            if sums_CD is not None:
                by_dist_bc = psi_bc * slope_bc * (4 * factor)
                if gamma is not None:
                    by_dist_bcS = shares(dist_bcS, gamma).mul_(by_dist_bc[:, :, None])
                    by_dist_bc = from_pairs(by_dist_bcS, each)
                pull_back(by_dist_bc)
                part_bD = geometry.gradient()
                assert part_bD is not None
                sums_CD[low : low + width] += part_bD.view_as(rows_bD)
    if gradient_CD is not None and sums_CD is not None:
        gradient_CD += sums_CD.to(gradient_CD.dtype)
    return value
