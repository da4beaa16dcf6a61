"""One-sided repulsion over those pairs of sample and class that repel at all.

Beyond the reach of a hinge the gradient is exactly zero, and an exponential's falls below rounding
(`Problem.reach` says by how much). For a hinge nearly all pairs are beyond, in training too; for an
exponential only while fields are far apart. The distances must still be computed to know it; what
is left of the two other matrix products is a short list.

The list is in a fixed order and summed in that order, one term after the other, so a pair whose
coefficient is zero may be in it or not: the sums are the same to the last bit.

Dimensions: B batch, c classes of a block, D embedding size, N pairs.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from weiss.kernels.problem import Problem
from weiss.kernels.slopes import repulsion_and_slope
from weiss.theory.interactions import LinearLink

CHUNK = 2**22
"""Entries of the vectors that are gathered at a time."""


class Samples(NamedTuple):
    """What pairs need to know of the batch.

    Attributes:
        slot_B: ``(B,)`` the slot of each sample.
        weight_B: ``(B,)`` the weight of a sample in its class's average, ``1 / n_c``.
        num_slots: K.
        scale: what the loss is multiplied by in the end, ``1 / |C_B|``.
    """

    slot_B: Tensor
    weight_B: Tensor
    num_slots: int
    scale: Tensor


def coefficients(
    problem: Problem, samples: Samples, sample_N: Tensor, class_N: Tensor, dist_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the value of a list of pairs, and the loss's derivative by each of their distances.

    Args:
        problem: the loss; its interactions have a closed form.
        samples: the batch.
        sample_N: the sample of each pair; no pair twice.
        class_N: its class, absent from the batch.
        dist_N: its distance.
    """
    link = problem.interactions.repulsion_link
    energy_N, slope_N = repulsion_and_slope(problem, dist_N)
    weight_N = samples.weight_B[sample_N]
    if isinstance(link, LinearLink):
        return (energy_N * weight_N).sum() * samples.scale, slope_N * weight_N * samples.scale
    if len(sample_N) == 0:
        return energy_N.sum(), energy_N
    rate = float(getattr(link, "rate", 1.0))
    key_N = class_N * samples.num_slots + samples.slot_B[sample_N]
    sorted_N, order_N = key_N.sort(stable=True)
    _, counts_S = torch.unique_consecutive(sorted_N, return_counts=True)
    exponent_N = (energy_N + weight_N.log())[order_N]
    segment_N = torch.repeat_interleave(counts_S, output_size=len(key_N))
    top_S = torch.segment_reduce(exponent_N, "max", lengths=counts_S)
    total_S = torch.segment_reduce((exponent_N - top_S[segment_N]).exp(), "sum", lengths=counts_S)
    soft_S = softplus(total_S.log() + top_S, threshold=40.0)
    share_N = torch.empty_like(exponent_N)
    share_N[order_N] = (exponent_N - soft_S[segment_N]).exp() / rate
    return soft_S.sum() / rate * samples.scale, share_N * slope_N * samples.scale


def add_rows(
    total_ND: Tensor, into_N: Tensor, vectors_ND: Tensor, from_N: Tensor, weight_N: Tensor
) -> None:
    """Add ``weight * vectors[from]`` to ``total[into]``, pair after pair, in order.

    On a CPU, where adding up by index is sequential.
    """
    step = max(CHUNK // total_ND.shape[1], 1)
    for low in range(0, len(into_N), step):
        part = slice(low, low + step)
        total_ND.index_add_(0, into_N[part], weight_N[part, None] * vectors_ND[from_N[part]])
