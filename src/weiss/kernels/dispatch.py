"""Execute a plan: a problem in, a loss out that autograd can differentiate.

A kernel returns the loss together with its gradients. They are stored; the backward pass
multiplies them in place by the incoming gradient, so that no second copy of the fields' gradient
is ever made. That works once; if a graph is kept for another backward pass, that pass computes
them again. Borrowed buffers (see `weiss.kernels.cuda_graphs`) are copied when they are multiplied,
and computed again if they were overwritten.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weiss.kernels.constraint import constraint
from weiss.kernels.cuda_graphs import CudaGraphs
from weiss.kernels.one_against_rest import stream_rest, totals_of_all
from weiss.kernels.plan import Plan
from weiss.kernels.problem import BorrowedBuffers, Counts, Found, Task
from weiss.kernels.streaming import stream
from weiss.theory.distances import working_dtype
from weiss.theory.interactions import LogLink

Kernel = Callable[[Tensor, Tensor, bool, bool], Found]
"""From embeddings, fields, and which of their gradients are wanted."""
Gradients = tuple[Tensor | None, Tensor | None]
"""Of embeddings and fields; None where not wanted."""
Scale = Callable[[list[Tensor], Tensor], None]
"""Multiplies tensors, in place, by a number on their device."""


def compute(
    plan: Plan, task: Task, graphs: CudaGraphs
) -> tuple[Tensor, Counts | None, Tensor | None]:
    """Compute a mean-field loss, its soft constraint included.

    Args:
        plan: how; not ``"reference"``.
        task: what; which gradients are wanted is found here.
        graphs: the CUDA graphs of this loss.

    Returns:
        The loss of all shards. The counts of wrong values that a fused kernel made, else None. How
        many pairs of this shard were computed, if far ones were skipped, else None.
    """
    if torch.compiler.is_compiling():
        # A compiler cannot trace it: it works on blocks, in place.
        uncompiled = torch.compiler.disable(_compute)  # type: ignore[no-untyped-call]
        return uncompiled(plan, task, graphs)  # type: ignore[no-any-return]
    return _compute(plan, task, graphs)


def _compute(
    plan: Plan, task: Task, graphs: CudaGraphs
) -> tuple[Tensor, Counts | None, Tensor | None]:
    counts: Counts | None = None
    visited: Tensor | None = None
    scale = scale_in_place
    if plan.is_fused:
        from weiss.kernels import fused

        scale = fused.scale_in_place
    problem, embeddings_BD, fields_CD, classes, shard, *_ = task

    def run(x_BD: Tensor, y_CD: Tensor, wants_x: bool, wants_fields: bool) -> Found:
        nonlocal counts, visited
        wanted = Task(problem, x_BD, y_CD, classes, shard, wants_x, wants_fields)
        # Triton launches on the current device; for a CPU this does nothing.
        with torch.cuda.device_of(y_CD):  # type: ignore[no-untyped-call]
            found, counts = _execute(plan, wanted, graphs)
            visited = found.visited
            if problem.reg_weight:
                soft = constraint(problem, y_CD, shard, found.fields_CD)
                found = found._replace(value=found.value + soft)
            part_BD = found.embeddings_BD
            whole_BD = None if part_BD is None else shard.add_up(part_BD)
            return found._replace(value=shard.add_up(found.value), embeddings_BD=whole_BD)

    # The kernel reads the labels too: autograd notices if they are overwritten in between.
    labels = classes if isinstance(classes, Tensor) else None
    apply: Callable[..., Tensor] = _KnownGradients.apply
    value = apply(run, scale, embeddings_BD, fields_CD, torch.is_grad_enabled(), labels)
    return value, counts, visited


def _execute(plan: Plan, task: Task, graphs: CudaGraphs) -> tuple[Found, Counts | None]:
    """Run the kernel of the plan; return what it found, and its counts of wrong values."""
    if task.fields_CD.shape[0] == 0:
        return _empty_shard(plan, task), None
    if not plan.is_fused:
        if task.problem.interactions.sharing is not None:
            return stream_rest(task), None
        return stream(task, skips=plan.skips), None
    if plan.skips:
        from weiss.kernels.near_pairs import near_pairs

        return near_pairs(plan.kernel, task)
    if plan.captured:
        return graphs.fuse(task)
    from weiss.kernels.fused import fuse

    return fuse(plan.kernel, task)


def _empty_shard(plan: Plan, task: Task) -> Found:
    """Compute a shard without a class: it adds zeros, but the other processes wait for them."""
    x_BD, fields_CD, classes = task.embeddings_BD, task.fields_CD, task.classes
    dtype, device = working_dtype(x_BD, fields_CD), fields_CD.device
    num_slots = len(classes) if isinstance(classes, Tensor) else classes.num_slots
    link, sharing = task.problem.interactions.repulsion_link, task.problem.interactions.sharing
    if sharing is not None:
        if sharing.keeps == "full":
            nothing_K = torch.zeros(num_slots, dtype=dtype, device=device)
            totals_of_all(link, task.shard, nothing_K, nothing_K + link.empty(dtype))
    elif not plan.is_fused or isinstance(link, LogLink):
        task.shard.add_up(torch.zeros(num_slots, num_slots, dtype=dtype, device=device))
    return Found(
        torch.zeros((), dtype=dtype, device=device),
        torch.zeros_like(x_BD, dtype=dtype) if task.wants_embeddings else None,
        torch.zeros_like(fields_CD) if task.wants_fields else None,
        torch.zeros((), dtype=torch.long, device=device) if plan.skips else None,
    )


def scale_in_place(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply by a factor. On a CPU, where reading it is free, a factor of 1 is skipped."""
    if factor.device.type != "cpu" or factor.item() != 1.0:
        for gradient in gradients:
            # A factor for half precision may be too large for half precision itself.
            gradient.copy_(gradient * factor.to(torch.promote_types(factor.dtype, torch.float32)))


class _KnownGradients(torch.autograd.Function):
    """The loss as autograd sees it: a kernel's value, and the gradients that came with it."""

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
