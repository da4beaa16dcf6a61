"""Mean-field losses block by block over the classes, in plain PyTorch; nothing of size B x C stays.

With the classes of the batch apart, a loss of the derivation is a sum of three parts:

1. attraction, between samples and the fields of their classes;
2. two-sided repulsion, between samples and fields of the K classes that are both present, where
   ``N_cc'`` meets ``N_c'c``: a ``(B, K)`` problem, solved whole;
3. one-sided repulsion against every absent class, where a column of distances is all it takes: done
   a block of columns at a time.

Each part gives its derivative by each distance at once, from the links: an average of plain values
has the slope of its weight, and for an average of exponentials

    d/dx_ic  log(1 + N_kc) = w_k e^{x_ic} / (1 + N_kc) = exp(x_ic + log w_k - softplus(log N_kc)).

So the gradients of all vectors are known when the value is, and one block of distances at a time
is alive. What stays is a sum for the batch ``(B, D)`` and the fields' gradient ``(C, D)``. No sizes
depend on values, so a CUDA graph can capture all of it. Only the near pairs of a hinge, on a CPU,
are a list: the sums over it run in a fixed order, one term after the other, so that a pair whose
gradient is zero may be in it or not, and no bit changes.

A shard of the fields (`Shard`) does the same for its own columns. The present classes of other
shards enter through one table of ``N_cc'``, ``(K, K)``, that the shards add up between them.
Several fields a class, ``(C, S, D)``, change the geometry alone: a block then has fewer classes.

Dimensions: B batch, C classes (of the shard), c classes of a block, K slots, P memberships.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import softplus

from weiss.kernels.geometry import CosineGeometry, Geometry, PullBack, geometry_of
from weiss.kernels.problem import Found, Problem, Shard, Task
from weiss.theory.distances import working_dtype
from weiss.theory.interactions import LinearLink, Link, LogLink
from weiss.theory.membership import Membership
from weiss.theory.sublattices import each_of

ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
"""Distances in a block: a block and its few companions fit the cache, or fill a GPU."""

LIST_PAYS = 1 / 32
"""Share of near pairs in a block up to which a list of them is faster than two matrix products."""


def blocks(rows: int, columns: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Cut columns into blocks, of about `ELEMENTS` entries each with so many rows."""
    width = max(ELEMENTS.get(device.type, ELEMENTS["cuda"]) // rows, 1)
    for low in range(0, columns, width):
        yield low, min(low + width, columns)


def stream(task: Task, *, skips: bool = False) -> Found:
    """Compute the loss and its gradients, a block of classes at a time, of a grouped batch.

    With ``skips`` only the near pairs of a hinge, on a CPU.
    """
    problem, embeddings_BD, fields_CD, members, shard, wants_embeddings, wants_fields = task
    assert isinstance(members, Membership)
    dtype = working_dtype(embeddings_BD, fields_CD)
    x_BD = embeddings_BD.detach().to(dtype)
    wanted = wants_embeddings, wants_fields
    geometry = geometry_of(problem.distance, problem.gamma, x_BD, *wanted)
    batch = BatchWeights(problem, members, dtype)
    gradient_CD = torch.empty_like(fields_CD) if wants_fields else None
    column_K, is_here_K = columns_of(members, shard, len(fields_CD))
    # One place more, for the slots of which there is nothing to say here.
    is_absent_C = members.used_K.new_ones(len(fields_CD) + 1)
    is_absent_C.index_fill_(0, column_K.masked_fill(~is_here_K, len(fields_CD)), False)
    value = torch.zeros((), dtype=dtype, device=fields_CD.device)
    visited = torch.zeros((), dtype=torch.long, device=fields_CD.device)
    for low, high in blocks(len(x_BD) * each_of(fields_CD), len(fields_CD), fields_CD.device):
        fields_cD = fields_CD[low:high].detach().to(dtype)
        absent_c = is_absent_C[low:high]
        measured = geometry.measure(fields_cD)
        if skips:
            given = problem, geometry, batch, fields_cD, measured, absent_c
            part, rows_cD, count = _one_sided_near(*given)
            visited += count
        else:
            part, rows_cD = _one_sided(problem, geometry, batch, measured, absent_c)
        value += part
        if gradient_CD is not None and rows_cD is not None:
            gradient_CD[low:high] = rows_cD
        del fields_cD, rows_cD
    here = column_K, is_here_K
    part, rows_KD = _present_classes(problem, geometry, batch, fields_CD, shard, here)
    if gradient_CD is not None and rows_KD is not None:
        # Slots that are not here share a column with others, but add nothing to it.
        gradient_CD.index_add_(0, column_K, rows_KD.to(gradient_CD.dtype))
    gradient_BD = geometry.gradient()
    if skips:
        visited += len(x_BD) * is_here_K.sum()  # all of these
    return Found(value + part, gradient_BD, gradient_CD, visited if skips else None)


class BatchWeights:
    """The weights of a batch's samples in the averages over their classes."""

    def __init__(self, problem: Problem, members: Membership, dtype: torch.dtype) -> None:
        self.members = members
        num_present = members.used_K.sum()
        weight_K = members.count_K.to(dtype).reciprocal()
        if problem.average == "none":
            weight_K = torch.ones_like(weight_K)
        elif problem.average == "samples":
            total = (members.count_K * members.used_K).sum()
            weight_K = (num_present.to(dtype) / total).expand_as(weight_K)
        self.weight_K = weight_K
        self.weight_P = (weight_K * members.used_K).index_select(0, members.slot_P)
        self.scale = 1 / num_present.to(dtype)

    def to_samples(self, x_P: Tensor) -> Tensor:
        """Add up the rows ``(P, ...)`` of each sample, ``(B, ...)``."""
        sample_P = self.members.sample_P
        if sample_P is None:
            return x_P
        return LinearLink().segment_sum(x_P, sample_P, self.members.batch)

    def through(
        self, link: Link, x_Pc: Tensor, other_Kc: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Average energies over classes, add others, apply the link, differentiate.

        All are on the scale of the link. Returns its values ``(K, c)`` and their derivatives by x
        ``(P, c)``, both without the sum over slots that are not used.
        """
        members = self.members
        if members.one_each and x_Pc.ndim == 2 and other_Kc is None:
            # The order of slots does not matter to a sum over them: no sums, no look-ups.
            mean_Kc = x_Pc
        else:
            mean_Kc = link.segment_sum(x_Pc, members.slot_P, members.num_slots)
            shape = (-1, *[1] * (x_Pc.ndim - 1))
            mean_Kc = link.times(mean_Kc, self.weight_K.view(shape))
        total_Kc = mean_Kc if other_Kc is None else link.add(mean_Kc, other_Kc)
        is_used_P = members.used_K.index_select(0, members.slot_P).view(-1, *[1] * (x_Pc.ndim - 1))
        weight_P = self.weight_P.view_as(is_used_P)
        if isinstance(link, LogLink):
            soft_Kc = softplus(total_Kc, threshold=40.0)
            soft_Pc = soft_Kc
            if mean_Kc is not x_Pc:
                soft_Pc = soft_Kc.index_select(0, members.slot_P)
                x_Pc = x_Pc + weight_P.log()  # minus infinity where a slot is not used
            return soft_Kc / link.rate, (x_Pc - soft_Pc).exp_().div_(link.rate)
        return total_Kc, weight_P.expand_as(x_Pc)


def columns_of(members: Membership, shard: Shard, num_here: int) -> tuple[Tensor, Tensor]:
    """Return the column ``(K,)`` of each slot's class among the fields here, and whether it is."""
    column_K = members.class_K - shard.first
    is_here_K = members.used_K & (column_K >= 0) & (column_K < num_here)
    return column_K * is_here_K, is_here_K


def _one_sided(
    problem: Problem,
    geometry: Geometry,
    batch: BatchWeights,
    measured: tuple[Tensor, PullBack],
    is_absent_c: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Return the repulsion from a block of classes, those absent; the gradient of its fields."""
    link = problem.interactions.repulsion_link
    dist_Bc, pull_back = measured
    energy_Bc, slope_Bc = problem.repulsion_and_slope(dist_Bc)
    energy_Bc = energy_Bc.masked_fill(~is_absent_c, link.empty(energy_Bc.dtype))
    members = batch.members
    if isinstance(link, LinearLink):
        weight_B1 = batch.to_samples(batch.weight_P)[:, None]
        value, by_energy_Bc = (energy_Bc * weight_B1).sum(), weight_B1
    else:
        value_Kc, by_energy_Pc = batch.through(link, members.rows(energy_Bc))
        value = value_Kc.masked_fill(~members.used_K[:, None], 0.0).sum()
        by_energy_Bc = batch.to_samples(by_energy_Pc)
    if not (geometry.wants_x or geometry.wants_fields):
        return value * batch.scale, None
    slope_Bc = (by_energy_Bc * batch.scale * slope_Bc).masked_fill(~is_absent_c, 0.0)
    return value * batch.scale, pull_back(slope_Bc)


def _one_sided_near(
    problem: Problem,
    geometry: Geometry,
    batch: BatchWeights,
    fields_cD: Tensor,
    measured: tuple[Tensor, PullBack],
    is_absent_c: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `_one_sided`, over near pairs only where these are few; also how many pairs they are."""
    dist_Bc, _ = measured
    near_Bc = (dist_Bc < problem.reach) & is_absent_c
    count = near_Bc.sum()
    if count > LIST_PAYS * near_Bc.numel():
        part, rows_cD = _one_sided(problem, geometry, batch, measured, is_absent_c)
        return part, rows_cD, len(near_Bc) * is_absent_c.sum()
    sample_N, class_N = near_Bc.nonzero(as_tuple=True)
    dist_N = dist_Bc[sample_N, class_N]
    energy_N, slope_N = problem.repulsion_and_slope(dist_N)
    weight_N = batch.weight_P[sample_N]  # indices, not multi-hot: one membership a sample
    slope_N = slope_N * weight_N * batch.scale
    assert isinstance(geometry, CosineGeometry)
    rows_cD = geometry.pull_back_pairs(fields_cD, sample_N, class_N, dist_N, slope_N)
    return (energy_N * weight_N).sum() * batch.scale, rows_cD, count


def _present_classes(
    problem: Problem,
    geometry: Geometry,
    batch: BatchWeights,
    fields_CD: Tensor,
    shard: Shard,
    here: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Return attraction and two-sided repulsion; the gradient ``(K, D)`` of the fields `here`.

    Of all ordered pairs of present classes this shard counts those whose second class is its own.
    """
    members, dtype = batch.members, geometry.x_BD.dtype
    column_K, is_here_K = here
    dist_BK, pull_back = geometry.measure(fields_CD.detach()[column_K].to(dtype))
    attraction, pull_BK = attraction_of(problem, batch, dist_BK, is_here_K)

    link = problem.interactions.repulsion_link
    own_BK = members.own_slots()
    energy_BK, slope_BK = problem.repulsion_and_slope(dist_BK)
    # A class never repels its own members.
    energy_PK = members.rows(energy_BK.masked_fill(own_BK, link.empty(dtype)))
    mean_KK = link.segment_sum(energy_PK, members.slot_P, members.num_slots)
    mean_KK = link.times(mean_KK, batch.weight_K[:, None])
    mean_KK = shard.add_up(mean_KK.masked_fill(~is_here_K, 0.0))
    counts_KK = members.different() & is_here_K
    value_KK, by_energy_PK = batch.through(link, energy_PK, mean_KK.T)
    repulsion = value_KK.masked_fill(~counts_KK, 0.0).sum() / 2
    value = (attraction + repulsion) * batch.scale
    if not (geometry.wants_x or geometry.wants_fields):
        return value, None

    counts_PK = counts_KK.index_select(0, members.slot_P)
    slope_BK = batch.to_samples(by_energy_PK.masked_fill(~counts_PK, 0.0)) * slope_BK
    slope_BK = slope_BK.masked_fill(own_BK, 0.0)
    slope_BK = (slope_BK + pull_BK).masked_fill(~is_here_K, 0.0) * batch.scale
    return value, pull_back(slope_BK)


def attraction_of(
    problem: Problem, batch: BatchWeights, dist_BK: Tensor, is_here_K: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the attraction of the classes here, and its derivative by the distances ``(B, K)``.

    Both without the division by the number of classes present.
    """
    members = batch.members
    dist_P = members.rows(dist_BK).gather(1, members.slot_P[:, None]).squeeze(1)
    pull_P, slope_P = problem.attraction_and_slope(dist_P)
    pull_K, by_pull_P = batch.through(problem.interactions.attraction_link, pull_P)
    sample_P = members.sample_P
    if sample_P is None:
        sample_P = torch.arange(members.batch, device=dist_BK.device)
    pull_BK = torch.zeros_like(dist_BK)
    pull_BK.index_put_((sample_P, members.slot_P), by_pull_P * slope_P)
    return pull_K.masked_fill(~is_here_K, 0.0).sum(), pull_BK
