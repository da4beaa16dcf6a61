"""Execute a plan: a problem in, a loss out that autograd can differentiate.

A kernel returns the loss together with its gradients. They wait for the backward pass, which
multiplies them by what arrives and returns them, so that no second copy of the fields' gradient
is ever made. That works once; if a graph is kept for another backward pass, that pass computes
them again. Borrowed buffers (see `weiss.kernels.cuda_graphs`) are copied when they are multiplied,
and computed again if they were overwritten.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weiss.kernels.constraint import constraint
from weiss.kernels.cuda_graphs import BorrowedBuffers, CudaGraphs
from weiss.kernels.plan import Plan
from weiss.kernels.problem import Counts, Found, Problem, Shard, Task, working_dtype
from weiss.kernels.streaming import stream
from weiss.theory.interactions import LogLink
from weiss.theory.membership import Membership

Kernel = Callable[[Tensor, Tensor, bool, bool], Found]
"""From embeddings, fields, and which of their gradients are wanted."""
Gradients = tuple[Tensor | None, Tensor | None]
"""Of embeddings and fields; None where not wanted."""
Scale = Callable[[list[Tensor], Tensor], None]
"""Multiplies tensors, in place, by a number on their device."""


def compute(
    plan: Plan,
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    classes: Membership | Tensor,
    shard: Shard,
    graphs: CudaGraphs,
) -> tuple[Tensor, Counts | None, Tensor | None]:
    """Compute a mean-field loss, its soft constraint included.

    Args:
        plan: how; not ``"reference"``.
        problem: the loss.
        embeddings_BD: the batch.
        fields_CD: the fields, or a shard of them.
        classes: of the batch: plain indices ``(B,)`` where the kernel groups the batch
            (`Plan.groups_batch`), otherwise grouped.
        shard: which classes the fields belong to.
        graphs: the CUDA graphs of this loss.

    Returns:
        The loss, as ``shard.sum_parts`` makes it of the shards' parts. The counts of wrong values
        that a fused kernel made, else None. How many pairs of this shard were computed, if far
        ones were skipped, else None.
    """
    given = plan, problem, embeddings_BD, fields_CD, classes, shard, graphs
    if torch.compiler.is_compiling():
        # A compiler cannot trace it: it works on blocks, in place.
        uncompiled = torch.compiler.disable(_compute)  # type: ignore[no-untyped-call]
        return uncompiled(*given)  # type: ignore[no-any-return]
    return _compute(*given)


def _compute(
    plan: Plan,
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    classes: Membership | Tensor,
    shard: Shard,
    graphs: CudaGraphs,
) -> tuple[Tensor, Counts | None, Tensor | None]:
    counts: Counts | None = None
    visited: Tensor | None = None
    scale = scale_in_place
    if plan.is_fused:
        from weiss.kernels import fused

        scale = fused.scale_in_place

    def run(x_BD: Tensor, y_CD: Tensor, wants_x: bool, wants_fields: bool) -> Found:
        nonlocal counts, visited
        task = Task(problem, x_BD, y_CD, classes, shard, wants_x, wants_fields)
        # Triton launches on the current device; for a CPU this does nothing.
        with torch.cuda.device_of(y_CD):  # type: ignore[no-untyped-call]
            found, counts = _execute(plan, task, graphs)
            visited = found.visited
            if problem.reg_weight:
                soft = constraint(problem, y_CD, shard, found.fields_CD)
                found = found._replace(value=found.value + soft)
            return found if shard.parts == 1 else _of_all_shards(found, shard)

    labels = classes if isinstance(classes, Tensor) else None
    value = differentiable(run, scale, embeddings_BD, fields_CD, labels)
    return value, counts, visited


def _execute(plan: Plan, task: Task, graphs: CudaGraphs) -> tuple[Found, Counts | None]:
    """Run the kernel of the plan; return what it found, and its counts of wrong values."""
    if task.fields_CD.shape[0] == 0:
        return _empty_shard(plan, task), None
    if not plan.is_fused:
        return stream(task, skips=plan.skips), None
    if plan.skips:
        from weiss.kernels.near_pairs import near_pairs

        return near_pairs(plan.kernel, task)
    if plan.captured:
        return graphs.fuse(task)
    from weiss.kernels.fused import fuse

    return fuse(plan.kernel, task)


def _of_all_shards(found: Found, shard: Shard) -> Found:
    gradient_BD = found.embeddings_BD
    if gradient_BD is not None:
        gradient_BD = shard.sum_parts(gradient_BD)
    return found._replace(value=shard.sum_parts(found.value), embeddings_BD=gradient_BD)


def _empty_shard(plan: Plan, task: Task) -> Found:
    """Compute a shard without a class: it adds zeros, but the other processes wait for them."""
    x_BD, fields_CD, classes = task.embeddings_BD, task.fields_CD, task.classes
    dtype, device = working_dtype(x_BD, fields_CD), fields_CD.device
    num_slots = len(classes) if isinstance(classes, Tensor) else classes.num_slots
    has_log = isinstance(task.problem.interactions.repulsion_link, LogLink)
    if not plan.groups_batch or has_log:
        task.shard.add_up(torch.zeros(num_slots, num_slots, dtype=dtype, device=device))
    return Found(
        torch.zeros((), dtype=dtype, device=device),
        torch.zeros_like(x_BD, dtype=dtype) if task.wants_embeddings else None,
        torch.zeros_like(fields_CD) if task.wants_fields else None,
        torch.zeros((), dtype=torch.long, device=device) if plan.skips else None,
    )


def differentiable(
    kernel: Kernel, scale: Scale, embeddings: Tensor, fields: Tensor, labels: Tensor | None = None
) -> Tensor:
    """Return the loss as autograd sees it.

    Args:
        kernel: computes the loss and its gradients.
        scale: multiplies a gradient by a number.
        embeddings: ``(B, D)``.
        fields: ``(C, D)``.
        labels: what `kernel` also reads, so that autograd notices if it is overwritten before
            it is read again.
    """
    apply: Callable[..., Tensor] = _KnownGradients.apply
    value = apply(kernel, scale, embeddings, fields, torch.is_grad_enabled(), labels)
    return value


def scale_in_place(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply by a number; on a CPU, where reading it costs nothing, not by one."""
    if factor.device.type != "cpu" or factor.item() != 1.0:
        for gradient in gradients:
            # A factor for half precision may be too large for half precision itself.
            gradient.copy_(gradient * factor.to(torch.promote_types(factor.dtype, torch.float32)))


class _KnownGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, scale: Scale, x_BD: Tensor, fields_CD: Tensor, learns: bool,
        labels: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.wants = tuple(learns and wanted for wanted in ctx.needs_input_grad[2:4])
        found = kernel(x_BD, fields_CD, *ctx.wants)
        ctx.kernel, ctx.scale, ctx.dtype = kernel, scale, x_BD.dtype
        # Not the value, which holds the autograd graph: that would be a cycle.
        ctx.gradients, ctx.borrowed = (found.embeddings_BD, found.fields_CD), found.borrowed
        ctx.save_for_backward(x_BD, fields_CD, labels)
        return found.value

    @staticmethod
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # Gradients of what is returned here would be wrong without a message.
            raise RuntimeError(
                "this loss can be differentiated once, not twice (create_graph=True): its gradient "
                "is put together by hand. For second derivatives build it with impl='reference'."
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is not None:
            gradients = _scaled(gradients, ctx.borrowed, ctx.scale, by_value)
        if gradients is None:
            x_BD, fields_CD, _ = ctx.saved_tensors
            with torch.autocast(x_BD.device.type, enabled=False):  # as in the forward pass
                found = ctx.kernel(x_BD, fields_CD, *ctx.wants)
            again = found.embeddings_BD, found.fields_CD
            gradients = _scaled(again, found.borrowed, ctx.scale, by_value)
        by_x_BD, by_fields_CD = gradients
        if by_x_BD is not None:
            by_x_BD = by_x_BD.to(ctx.dtype)
        return None, None, by_x_BD, by_fields_CD, None, None


def _scaled(
    gradients: Gradients, borrowed: BorrowedBuffers | None, scale: Scale, factor: Tensor
) -> Gradients | None:
    """Return gradients times a number, copies of borrowed ones; None if these were overwritten."""
    wanted = [gradient for gradient in gradients if gradient is not None]
    if not wanted:
        return gradients
    if borrowed is None:
        scale(wanted, factor)
        return gradients
    copies = borrowed.times(wanted, factor)
    if copies is None:
        return None
    of = iter(copies)
    by_x_BD, by_fields_CD = (None if gradient is None else next(of) for gradient in gradients)
    return by_x_BD, by_fields_CD
