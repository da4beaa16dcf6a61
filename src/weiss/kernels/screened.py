"""Mean-field losses over a short list of pairs, for CUDA devices.

The plan. `screen` computes all cosines of batch and fields, as the first of three matrix products,
and writes down only those that are within reach (`Problem.reach`): for each sample a list of
classes. While it runs, the present classes are dealt with as in `streaming`. Then the host asks how
long the lists are; they are put in order, by sample and by class, and their
coefficients found (`pairs`). What would have been two more matrix products is a sum over each list.
Every field without a list gets a gradient of zeros in the same launch.

If too many pairs are near, by the look of a few thousand fields before anything else or by the
length of a list in the end, the problem is not one for this file: nothing is returned, and whoever
asked takes all pairs.

Dimensions: B batch, C classes of the shard, D embedding size, N pairs.
"""

import torch
from torch import Tensor

from weiss.kernels import pair_programs, programs
from weiss.kernels.fused import precision
from weiss.kernels.geometry import CosineGeometry
from weiss.kernels.near import share_near
from weiss.kernels.pairs import Samples, coefficients
from weiss.kernels.problem import Found, Problem, Shard, working_dtype
from weiss.kernels.streaming import BatchWeights, absent_classes, present_classes
from weiss.theory.membership import Membership

LISTS_PAY = 5e-4
"""Share of the pairs that may be near; with more of them a matrix product is faster than lists."""
SHARE = 64
"""A sample may have one in so many classes on its list."""
LEAST_ROOM = 1024
TILE = (128, 256, 32)
"""Samples, classes and dimensions of a step of `screen`; best of those tried on an H200."""


def screened(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    members: Membership,
    shard: Shard,
    *,
    wants_embeddings: bool,
    wants_fields: bool,
) -> Found | None:
    """Compute the loss and its gradients; arguments as of `weiss.kernels.streaming.stream`.

    Returns:
        What was found; None if too many pairs are near.
    """
    dtype = working_dtype(embeddings_BD, fields_CD)
    fields = fields_CD.detach().contiguous()
    x_BD = embeddings_BD.detach().to(dtype).contiguous()  # the programs count on it
    geometry = CosineGeometry(x_BD, wants_embeddings, wants_fields)
    weights = BatchWeights(problem, members, dtype)
    batch, num_here, size = len(embeddings_BD), *fields.shape
    width = 1 << (size - 1).bit_length()

    inverse = torch.empty(num_here, dtype=dtype, device=fields.device)
    programs.lengths[(-(-num_here // 8),)](
        fields, inverse, fields, num_here, 0, D=size, WIDTH=width, ROWS=8, COPIES=False,
        NORMALISED=False,
    )  # fmt: skip
    room = max(num_here // SHARE, LEAST_ROOM)
    counts = torch.zeros(batch, dtype=torch.int32, device=fields.device)
    classes = torch.empty(batch, room, dtype=torch.int32, device=fields.device)
    cosines = torch.empty(batch, room, dtype=dtype, device=fields.device)
    # What rounding loses at the edge has a coefficient as small as what is left out anyway.
    least = 1.0 - problem.reach(shard.num_classes) - 1e-6
    if float(share_near(geometry.unit_BD, fields, least)) > LISTS_PAY:
        return None
    rows, columns, step = TILE
    is_absent = absent_classes(members, shard, num_here).view(torch.uint8)
    pair_programs.screen[(-(-batch // rows) * -(-num_here // columns),)](
        geometry.unit_BD, fields, inverse, is_absent, counts, classes, cosines, batch, num_here,
        room, least, D=size, ROWS=rows, COLUMNS=columns, STEP=step,
        PRECISION=precision(), num_warps=8, num_stages=3,
    )  # fmt: skip
    part, rows_KD, column_K = present_classes(problem, geometry, weights, fields, shard, dtype)

    longest = int(counts.max())
    if longest > room:
        return None
    is_taken = torch.arange(longest, device=fields.device) < counts[:, None]
    sample_N, place_N = is_taken.nonzero(as_tuple=True)
    class_N = classes[sample_N, place_N].long()
    by_sample_N = (sample_N * num_here + class_N).argsort()
    sample_N, class_N = sample_N[by_sample_N], class_N[by_sample_N]
    cos_N = cosines[sample_N, place_N[by_sample_N]]
    samples = Samples(members.slot_P, weights.weight_P, members.num_slots, weights.scale)
    value, slope_N = coefficients(problem, samples, sample_N, class_N, 1.0 - cos_N)
    by_cos_N = -slope_N * inverse[class_N]
    if geometry.total_BD is not None:
        start_B = torch.zeros(batch + 1, dtype=torch.long, device=fields.device)
        start_B[1:] = counts.cumsum(0)
        total_BD = torch.empty_like(geometry.total_BD)
        pair_programs.add_lists[(batch,)](
            total_BD, start_B, class_N, by_cos_N, cos_N, fields, inverse, fields,
            D=size, WIDTH=width, PROJECTS=False,
        )  # fmt: skip
        geometry.total_BD += total_BD
    gradient_CD = None
    if wants_fields:
        gradient_CD = torch.empty_like(fields)
        sorted_N, by_class_N = class_N.sort(stable=True)
        every = torch.arange(num_here + 1, device=fields.device)
        start_C = torch.searchsorted(sorted_N, every)
        pair_programs.add_lists[(num_here,)](
            gradient_CD, start_C, sample_N[by_class_N], by_cos_N[by_class_N], cos_N[by_class_N],
            geometry.unit_BD, inverse, fields, D=size, WIDTH=width, PROJECTS=True, num_warps=1,
        )  # fmt: skip
        assert rows_KD is not None
        gradient_CD.index_add_(0, column_K, rows_KD)
    visited = counts.sum() + batch * (num_here - is_absent.sum())
    return Found(value + part, geometry.gradient(), gradient_CD, visited)
