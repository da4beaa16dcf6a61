"""One function for all kernels: a problem in, a loss out that autograd can go back through."""

import torch
from torch import Tensor

from weiss.kernels.constraint import constraint
from weiss.kernels.function import Scale, differentiable, scale_in_place
from weiss.kernels.problem import Found, Problem, Shard, working_dtype
from weiss.kernels.streaming import stream
from weiss.membership import Membership


def compute(
    problem: Problem,
    impl: str,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    members: Membership,
    shard: Shard,
) -> tuple[Tensor, Tensor | None]:
    """Compute a mean-field loss, its soft constraint included.

    Args:
        problem: the loss.
        impl: ``"streaming"`` or ``"triton"``.
        embeddings_BD: the batch.
        fields_CD: the fields, or a shard of them.
        members: the classes of the batch.
        shard: where the fields belong.

    Returns:
        The loss, as ``shard.sum_parts`` makes it of the shards' parts, and so the gradient of the
        embeddings; how many pairs of this shard the gradient visited, None if all.
    """
    if torch.compiler.is_compiling():
        # Not for a compiler to look into: it works on blocks, in place.
        uncompiled = torch.compiler.disable(_compute)
        return uncompiled(problem, impl, embeddings_BD, fields_CD, members, shard)
    return _compute(problem, impl, embeddings_BD, fields_CD, members, shard)


def _compute(
    problem: Problem,
    impl: str,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    members: Membership,
    shard: Shard,
) -> tuple[Tensor, Tensor | None]:
    visited: Tensor | None = None
    kernel, scale = stream, scale_in_place
    if impl == "triton":
        from weiss.kernels import fused

        kernel, scale = fused.fuse, fused.scale_in_place

    def work(x_BD: Tensor, y_CD: Tensor, wants_x: bool, wants_fields: bool) -> Found:
        nonlocal visited
        solve = kernel if len(y_CD) else _nothing
        found = solve(
            problem, x_BD, y_CD, members, shard, wants_embeddings=wants_x, wants_fields=wants_fields
        )
        visited = found.visited
        if problem.reg_weight:
            found = found._replace(
                value=found.value + constraint(problem, y_CD, shard, found.fields_CD)
            )
        gradient_BD = found.embeddings_BD
        if gradient_BD is not None:
            gradient_BD = shard.sum_parts(gradient_BD)
        return found._replace(value=shard.sum_parts(found.value), embeddings_BD=gradient_BD)

    value = differentiable(work, scale, embeddings_BD, fields_CD)
    return value, visited


def _nothing(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    members: Membership,
    shard: Shard,
    *,
    wants_embeddings: bool,
    wants_fields: bool,
) -> Found:
    """Speak for a shard without a class: it adds nothing, but the others wait for its word."""
    dtype, device = working_dtype(embeddings_BD, fields_CD), fields_CD.device
    shard.add_up(torch.zeros(members.num_slots, members.num_slots, dtype=dtype, device=device))
    return Found(
        torch.zeros((), dtype=dtype, device=device),
        torch.zeros_like(embeddings_BD) if wants_embeddings else None,
        torch.zeros_like(fields_CD) if wants_fields else None,
        torch.zeros((), dtype=torch.long, device=device) if problem.skips else None,
    )
