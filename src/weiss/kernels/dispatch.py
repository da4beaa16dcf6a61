"""One function for all kernels: a problem in, a loss out that autograd can go back through."""

from dataclasses import replace

import torch
from torch import Tensor

from weiss.kernels.constraint import constraint
from weiss.kernels.function import differentiable, scale_in_place
from weiss.kernels.problem import Found, Noticed, Problem, Shard, working_dtype
from weiss.kernels.replay import Recordings
from weiss.kernels.streaming import stream
from weiss.theory.interactions import LogLink
from weiss.theory.membership import Membership


def compute(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    classes: Membership | Tensor,
    shard: Shard,
    recordings: Recordings | None = None,
) -> tuple[Tensor, Noticed | None, Tensor | None]:
    """Compute a mean-field loss, its soft constraint included.

    Args:
        problem: the loss.
        embeddings_BD: the batch.
        fields_CD: the fields, or a shard of them.
        classes: of the batch: grouped, for the streaming kernels, or plain indices ``(B,)`` for
            the fused ones, which group them themselves; those that skip know only hinges.
        shard: where the fields belong.
        recordings: what this loss has recorded (`weiss.kernels.replay`); None to record nothing.

    Returns:
        The loss, as ``shard.sum_parts`` makes it of the shards' parts, and so the gradient of the
        embeddings. What the fused kernels noticed about the batch, else None. How many pairs of
        this shard the gradient visited, if some were skipped, else None.
    """
    if torch.compiler.is_compiling():
        # Not for a compiler to look into: it works on blocks, in place.
        uncompiled = torch.compiler.disable(_compute)  # type: ignore[no-untyped-call]
        return uncompiled(problem, embeddings_BD, fields_CD, classes, shard, recordings)  # type: ignore[no-any-return]
    return _compute(problem, embeddings_BD, fields_CD, classes, shard, recordings)


def _compute(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    classes: Membership | Tensor,
    shard: Shard,
    recordings: Recordings | None,
) -> tuple[Tensor, Noticed | None, Tensor | None]:
    noticed: Noticed | None = None
    visited: Tensor | None = None
    scale = scale_in_place
    if isinstance(classes, Tensor) or (problem.skips and fields_CD.device.type != "cpu"):
        from weiss.kernels import fused

        scale = fused.scale_in_place

    def work(x_BD: Tensor, y_CD: Tensor, wants_x: bool, wants_fields: bool) -> Found:
        # Where Triton launches; for a CPU this does nothing.
        with torch.cuda.device_of(y_CD):  # type: ignore[no-untyped-call]
            return work_there(x_BD, y_CD, wants_x, wants_fields)

    def work_there(x_BD: Tensor, y_CD: Tensor, wants_x: bool, wants_fields: bool) -> Found:
        nonlocal noticed, visited
        wanted = {"wants_embeddings": wants_x, "wants_fields": wants_fields}
        if y_CD.shape[0] == 0:
            found = _nothing(problem, x_BD, y_CD, classes, shard, **wanted)
        elif isinstance(classes, Tensor) and problem.skips:
            from weiss.kernels.near import near

            found, noticed = near(problem, x_BD, y_CD, classes, shard, **wanted)
        elif isinstance(classes, Tensor):
            # What is added to a recording's gradient would be in its memory.
            fuse = fused.fuse if recordings is None or problem.reg_weight else recordings.fuse
            found, noticed = fuse(problem, x_BD, y_CD, classes, shard, **wanted)
        else:
            found = _listed(problem, x_BD, y_CD, classes, shard, **wanted)
        visited = found.visited
        if problem.reg_weight:
            soft = constraint(problem, y_CD, shard, found.fields_CD)
            found = found._replace(value=found.value + soft)
        return found if shard.parts == 1 else _of_all_shards(found, shard)

    labels = classes if isinstance(classes, Tensor) else None
    value = differentiable(work, scale, embeddings_BD, fields_CD, labels)
    return value, noticed, visited


def _of_all_shards(found: Found, shard: Shard) -> Found:
    gradient_BD = found.embeddings_BD
    if gradient_BD is not None:
        gradient_BD = shard.sum_parts(gradient_BD)
    return found._replace(value=shard.sum_parts(found.value), embeddings_BD=gradient_BD)


def _listed(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    members: Membership,
    shard: Shard,
    **wanted: bool,
) -> Found:
    """Stream, or on a GPU list the pairs that are near, where some may be skipped."""
    if not problem.skips or fields_CD.device.type == "cpu":
        return stream(problem, embeddings_BD, fields_CD, members, shard, **wanted)
    from weiss.kernels import fused, screened

    found = screened.screened(problem, embeddings_BD, fields_CD, members, shard, **wanted)
    if found is None:
        asked = replace(problem, skips=False), embeddings_BD, fields_CD, members.class_P, shard
        found, _ = fused.fuse(*asked, **wanted)  # type: ignore[arg-type]
        all_pairs = len(embeddings_BD) * len(fields_CD)
        found = found._replace(visited=torch.full((), all_pairs, device=fields_CD.device))
    return found


def _nothing(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    classes: Membership | Tensor,
    shard: Shard,
    *,
    wants_embeddings: bool,
    wants_fields: bool,
) -> Found:
    """Speak for a shard without a class: it adds nothing, but the others wait for its word."""
    dtype, device = working_dtype(embeddings_BD, fields_CD), fields_CD.device
    is_fused = isinstance(classes, Tensor)
    num_slots = len(classes) if isinstance(classes, Tensor) else classes.num_slots
    if not is_fused or isinstance(problem.interactions.repulsion_link, LogLink):
        shard.add_up(torch.zeros(num_slots, num_slots, dtype=dtype, device=device))
    return Found(
        torch.zeros((), dtype=dtype, device=device),
        torch.zeros_like(embeddings_BD, dtype=dtype) if wants_embeddings else None,
        torch.zeros_like(fields_CD) if wants_fields else None,
        torch.zeros((), dtype=torch.long, device=device) if problem.skips else None,
    )
