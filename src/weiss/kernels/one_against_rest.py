"""Mean-field losses of which all repulsions of a class share a link, block by block over classes.

With ``N`` on the scale of the link, a class's sum has two parts,

    total_c = sum_{c'} N_c'c  +  sum_{c'} N_cc',

and a value ``phi(total_c)``. The first part, samples of others against its field, is a sum over the
rows of one column of distances: a block of classes holds whole columns. The second part, its own
samples against all other fields, is a sum over all columns, known only after the last block. So the
gradient of ``keeps="full"`` takes a second pass over the blocks, with the totals known:

    d/dx_ic  sum_c phi(total_c)  =  w_i e^{x_ic} [phi'(total_c) + phi'(total_{y_i})]

for a sample i of class ``y_i``, here for averages of exponentials; plain ones have no ``e^x``. What
stays between the passes is a number for each class and one for each sample. ``keeps="half"`` drops
the second part and needs one pass. With ``over="present"`` the sum over c has the classes of the
batch alone, and the first term in the bracket is there for these columns only.

A shard of the fields has whole columns too. Of the second part every shard knows its own columns;
one table ``(shards + 1, K)`` brings these together.

Dimensions: B batch, C classes (of the shard), c classes of a block, K slots, P memberships.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from weiss.kernels.geometry import Geometry, PullBack, geometry_of
from weiss.kernels.problem import Found, Problem, Shard, Task
from weiss.kernels.streaming import BatchWeights, attraction_of, blocks, columns_of
from weiss.theory.distances import working_dtype
from weiss.theory.interactions import Link, LogLink
from weiss.theory.membership import Membership
from weiss.theory.sublattices import each_of


def stream_rest(task: Task) -> Found:
    """Compute the loss and its gradients, a block of classes at a time, of a grouped batch."""
    problem, embeddings_BD, fields_CD, members, shard, wants_embeddings, wants_fields = task
    assert isinstance(members, Membership)
    sharing, link = problem.interactions.sharing, problem.interactions.repulsion_link
    assert sharing is not None
    dtype, num_here = working_dtype(embeddings_BD, fields_CD), len(fields_CD)
    x_BD = embeddings_BD.detach().to(dtype)
    wanted = wants_embeddings, wants_fields
    geometry = geometry_of(problem.distance, problem.gamma, x_BD, *wanted)
    rows = len(x_BD) * each_of(fields_CD)  # of a column: distances to all fields of a class
    batch = BatchWeights(problem, members, dtype)
    scale = batch.scale if sharing.divides_by == "present" else 1 / shard.num_classes
    is_full, wants = sharing.keeps == "full", wants_embeddings or wants_fields
    gradient_CD = torch.empty_like(fields_CD) if wants_fields else None
    column_K, is_here_K = columns_of(members, shard, num_here)
    # One place more, for the slots whose class is not here.
    place_K = column_K.masked_fill(~is_here_K, num_here)
    counted_C = torch.full((num_here + 1,), float(sharing.over == "all"), device=fields_CD.device)
    counted_C = counted_C.to(dtype).index_fill_(0, place_K, 1.0)[:num_here]
    total_C = torch.empty(num_here, dtype=dtype, device=fields_CD.device)
    rows_P = x_BD.new_full((len(members.slot_P),), link.empty(dtype))
    only = None

    for low, high in blocks(rows, num_here, fields_CD.device):
        block = _measured(problem, geometry, batch, fields_CD[low:high], shard.first + low)
        total_C[low:high] = link.sum(link.times(block.energy_Pc, batch_weights(batch)), dim=0)
        if is_full:
            rows_P = link.add(rows_P, link.sum(block.energy_Pc, dim=1))
            only = block if high - low == num_here else None
        elif wants:
            total_c, counted_c = total_C[low:high], counted_C[low:high]
            rows_cD = _pulled_back(block, link, batch, total_c, counted_c, None, scale)
            if gradient_CD is not None and rows_cD is not None:
                gradient_CD[low:high] = rows_cD
        del block

    total_K = None
    if is_full:
        own_K = link.segment_sum(rows_P, members.slot_P, members.num_slots)
        own_K = link.times(own_K, batch.weight_K)
        total_K = totals_of_all(link, shard, total_C[column_K] * is_here_K, own_K)
        total_C = torch.cat([total_C, total_C.new_zeros(1)])
        total_C[place_K] = total_K
        total_C = total_C[:num_here]
        for low, high in blocks(rows, num_here, fields_CD.device) if wants else ():
            fields_cD, first = fields_CD[low:high], shard.first + low
            block = only or _measured(problem, geometry, batch, fields_cD, first)
            total_c, counted_c = total_C[low:high], counted_C[low:high]
            rows_cD = _pulled_back(block, link, batch, total_c, counted_c, total_K, scale)
            if gradient_CD is not None and rows_cD is not None:
                gradient_CD[low:high] = rows_cD
            del block
    repulsion = (link.apply(total_C) * counted_C).sum() * scale

    dist_BK, pull_back = geometry.measure(fields_CD.detach()[column_K].to(dtype))
    attraction, slope_BK = attraction_of(problem, batch, dist_BK, is_here_K)
    if wants:
        rows_KD = pull_back(slope_BK.masked_fill(~is_here_K, 0.0) * batch.scale)
        if gradient_CD is not None and rows_KD is not None:
            gradient_CD.index_add_(0, column_K, rows_KD.to(gradient_CD.dtype))
    return Found(attraction * batch.scale + repulsion, geometry.gradient(), gradient_CD)


def totals_of_all(link: Link, shard: Shard, here_K: Tensor, own_K: Tensor) -> Tensor:
    """Return the totals ``(K,)`` of the classes present, from the parts that each shard has.

    Args:
        link: of the repulsion, on whose scale all are.
        shard: this one.
        here_K: the first part for classes whose field is here, 0 for others.
        own_K: the second part, over the columns here.
    """
    table_SK = own_K.new_zeros(shard.parts + 1, len(own_K))
    table_SK[shard.index], table_SK[-1] = own_K, here_K
    table_SK = shard.add_up(table_SK)
    return link.sum(table_SK, dim=0)


def batch_weights(batch: BatchWeights) -> Tensor:
    """Return the weight ``(P, 1)`` of each membership; 1 for padding, whose energy is empty."""
    is_used_P = batch.members.used_K.index_select(0, batch.members.slot_P)
    return batch.weight_P.masked_fill(~is_used_P, 1.0)[:, None]


class _Block(NamedTuple):
    """Energies of all memberships against a block of classes, and what their gradient needs."""

    energy_Pc: Tensor
    slope_Bc: Tensor | float
    own_Bc: Tensor
    pull_back: PullBack


def _measured(
    problem: Problem, geometry: Geometry, batch: BatchWeights, fields_cD: Tensor, first: int
) -> _Block:
    """Measure a block of fields, of the classes from ``first`` on."""
    members, dtype = batch.members, geometry.x_BD.dtype
    dist_Bc, pull_back = geometry.measure(fields_cD.detach().to(dtype))
    energy_Bc, slope_Bc = problem.repulsion_and_slope(dist_Bc)
    empty = problem.interactions.repulsion_link.empty(dtype)
    own_Bc = members.own_block(first, first + len(fields_cD))
    # A class never repels its own members.
    energy_Pc = members.rows(energy_Bc.masked_fill(own_Bc, empty))
    is_used_P = members.used_K.index_select(0, members.slot_P)
    energy_Pc = energy_Pc.masked_fill(~is_used_P[:, None], empty)
    return _Block(energy_Pc, slope_Bc, own_Bc, pull_back)


def _pulled_back(
    block: _Block,
    link: Link,
    batch: BatchWeights,
    total_c: Tensor,
    counted_c: Tensor,
    total_K: Tensor | None,
    scale: Tensor | float,
) -> Tensor | None:
    """Add a block's gradient to that of the batch; return that of its fields, ``(c, D)``.

    ``counted_c`` is 1 for the classes that are summed over, else 0; ``total_K`` are the totals of
    the classes present, None if their samples' part is dropped.
    """
    weight_P1 = batch_weights(batch)
    if isinstance(link, LogLink):
        exponent_Pc = link.times(block.energy_Pc, weight_P1)
        by_energy_Pc = (exponent_Pc - softplus(total_c, threshold=40.0)).exp_() * counted_c
        if total_K is not None:
            soft_P = softplus(total_K, threshold=40.0).index_select(0, batch.members.slot_P)
            by_energy_Pc += (exponent_Pc - soft_P[:, None]).exp_()
        by_energy_Pc /= link.rate
    else:
        by_energy_Pc = batch.weight_P[:, None] * (counted_c + (total_K is not None))
    slope_Bc = batch.to_samples(by_energy_Pc) * block.slope_Bc * scale
    return block.pull_back(slope_Bc.masked_fill(block.own_Bc, 0.0))
