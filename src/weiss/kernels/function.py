"""Gradients that are known when the value is: how autograd is told.

A kernel returns the loss together with its gradients. They wait for the backward pass, which
multiplies them by what arrives and hands them on, so that no second copy of the fields' gradient
is ever made. They can be handed on once; if a graph is kept for another backward pass, that pass
computes them again. Gradients that are only lent (see `weiss.kernels.replay`) are copied when they
are multiplied, and computed again if they are gone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weiss.kernels.problem import Found, Loan

Compute = Callable[[Tensor, Tensor, bool, bool], Found]
"""From embeddings, fields, and which of their gradients are wanted."""
Gradients = tuple[Tensor | None, Tensor | None]
"""Of embeddings and fields; None where not wanted."""
Scale = Callable[[list[Tensor], Tensor], None]
"""Multiplies tensors, in place, by a number on their device."""


def differentiable(
    compute: Compute, scale: Scale, embeddings: Tensor, fields: Tensor, labels: Tensor | None = None
) -> Tensor:
    """Return the loss as autograd sees it.

    Args:
        compute: the kernel.
        scale: multiplies a gradient by a number.
        embeddings: ``(B, D)``.
        fields: ``(C, D)``.
        labels: what `compute` reads beside these, so that autograd notices if somebody writes to it
            before it is read again.
    """
    apply: Callable[..., Tensor] = _Taken.apply
    value = apply(compute, scale, embeddings, fields, torch.is_grad_enabled(), labels)
    return value


def scale_in_place(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply by a number; on a CPU, where looking costs nothing, not by one."""
    if factor.device.type != "cpu" or factor.item() != 1.0:
        for gradient in gradients:
            # A factor for half precision may be larger than half precision can say.
            gradient.copy_(gradient * factor.to(torch.promote_types(factor.dtype, torch.float32)))


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compute: Compute, scale: Scale, x_BD: Tensor, fields_CD: Tensor, learns: bool,
        labels: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.wants = tuple(learns and wanted for wanted in ctx.needs_input_grad[2:4])
        found = compute(x_BD, fields_CD, *ctx.wants)
        ctx.compute, ctx.scale, ctx.dtype = compute, scale, x_BD.dtype
        # Not the value: the graph would hold what holds the graph.
        ctx.gradients, ctx.lent = (found.embeddings_BD, found.fields_CD), found.lent
        ctx.save_for_backward(x_BD, fields_CD, labels)
        return found.value

    @staticmethod
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # Somebody wants to differentiate what is returned here, and would get nothing.
            raise RuntimeError(
                "this loss can be differentiated once, not twice (create_graph=True): its gradient "
                "is put together by hand. For second derivatives build it with impl='reference'."
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is not None:
            gradients = _scaled(gradients, ctx.lent, ctx.scale, by_value)
        if gradients is None:
            x_BD, fields_CD, _ = ctx.saved_tensors
            with torch.autocast(x_BD.device.type, enabled=False):  # as in the forward pass
                found = ctx.compute(x_BD, fields_CD, *ctx.wants)
            again = found.embeddings_BD, found.fields_CD
            gradients = _scaled(again, found.lent, ctx.scale, by_value)
        by_x_BD, by_fields_CD = gradients
        if by_x_BD is not None:
            by_x_BD = by_x_BD.to(ctx.dtype)
        return None, None, by_x_BD, by_fields_CD, None, None


def _scaled(
    gradients: Gradients, lent: Loan | None, scale: Scale, factor: Tensor
) -> Gradients | None:
    """Return gradients times a number: copies of those that are lent; None if these are gone."""
    wanted = [gradient for gradient in gradients if gradient is not None]
    if not wanted:
        return gradients
    if lent is None:
        scale(wanted, factor)
        return gradients
    copies = lent.times(wanted, factor)
    if copies is None:
        return None
    of = iter(copies)
    by_x_BD, by_fields_CD = (None if gradient is None else next(of) for gradient in gradients)
    return by_x_BD, by_fields_CD
