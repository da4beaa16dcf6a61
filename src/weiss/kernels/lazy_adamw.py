"""A step of `weiss.losses.lazy_adamw` in one pass over the gradient, for CUDA devices.

A program looks at a few rows of the gradient, loads the rest of those that have one, and writes
them back; of the others nothing but the gradient is read. What a step depends on is read on the
device, so the host never waits, and a CUDA graph can replay it.

Dimensions: C classes (rows), D embedding size, R rows of a program.
"""

# Annotations stay words: those of a kernel name a module that is loaded with it.
from __future__ import annotations

import functools
import math
from typing import Any, no_type_check

import torch
from torch import Tensor

ELEMENTS = 2048
"""Entries of the gradient that one program looks at, unless a single row has more."""
MOST_ROWS = 32
tl: Any = None
"""Triton's language, which its kernels must find by a global name; loaded with the first kernel."""


def update_rows(
    parameter_CD: Tensor,
    gradient_CD: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    touches: Tensor,
    decayed: Tensor,
    decay: Tensor,
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update the rows that have a gradient, all in place.

    Args:
        parameter_CD: ``(C, D)`` contiguous, as are both moments.
        gradient_CD: ``(C, D)``.
        exp_avg: ``(C, D)`` the mean of gradients.
        exp_avg_sq: ``(C, D)`` that of their squares.
        touches: ``(C,)`` int32, how many steps have touched a row.
        decayed: ``(C,)`` float64, how much of ``decay`` a row has paid.
        decay: a float64 scalar, the logarithm of the weight decay of all steps, this one included.
        lr: learning rate; a tensor where a recorded step is to follow it.
        betas: of the moments.
        eps: added to the denominator.
    """
    rows, columns = parameter_CD.shape
    if rows == 0 or columns == 0:
        return
    device = parameter_CD.device
    # By a tensor, since a number would be rounded to float32, and stand still in a CUDA graph.
    if isinstance(lr, Tensor):
        rate = lr.to(device=device, dtype=torch.float64)
    else:
        rate = torch.full((), lr, dtype=torch.float64, device=device)
    width = 1 << (columns - 1).bit_length()
    height = min(max(ELEMENTS // width, 1), MOST_ROWS)
    kernel = _kernel()
    with torch.cuda.device_of(parameter_CD):  # type: ignore[no-untyped-call]
        kernel[((rows + height - 1) // height,)](
            parameter_CD,
            gradient_CD.contiguous(),
            exp_avg,
            exp_avg_sq,
            touches,
            decayed,
            decay,
            rate,
            rows,
            columns,
            BETA2=betas[1],
            REST1=1 - betas[0],
            REST2=1 - betas[1],
            LOG1=_log(betas[0]),
            LOG2=_log(betas[1]),
            EPS=eps,
            WORK=tl.float64 if parameter_CD.dtype == torch.float64 else tl.float32,
            HEIGHT=height,
            WIDTH=width,
        )


def _log(beta: float) -> float:
    """Return the logarithm; of zero a number whose exponential is zero."""
    return math.log(beta) if beta > 0 else -1e4


@functools.cache
def _kernel() -> Any:
    global tl
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as language  # type: ignore[import-not-found,import-untyped,unused-ignore]

    tl = language
    return triton.jit(_update_rows)


@no_type_check
def _update_rows(
    parameter,
    gradient,
    exp_avg,
    exp_avg_sq,
    touches,
    decayed,
    decay,
    rate,
    rows,
    columns,
    BETA2: tl.constexpr,
    REST1: tl.constexpr,
    REST2: tl.constexpr,
    LOG1: tl.constexpr,
    LOG2: tl.constexpr,
    EPS: tl.constexpr,
    WORK: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # A million rows of a few thousand entries have more places than 32 bits can count.
    row_R = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    column_D = tl.arange(0, WIDTH)
    place_RD = row_R[:, None] * columns + column_D[None, :]
    inside_RD = (row_R < rows)[:, None] & (column_D < columns)[None, :]
    gradient_RD = tl.load(gradient + place_RD, mask=inside_RD, other=0.0).to(WORK)
    # NaN is not equal to zero, -0.0 is.
    some_R = tl.max((gradient_RD != 0.0).to(tl.int32), axis=1)
    if tl.max(some_R, axis=0) > 0:
        touched_R = some_R > 0
        touched_RD = inside_RD & touched_R[:, None]
        # What belongs to a row, in float64: bias corrections are differences of numbers near 1.
        count_R = tl.load(touches + row_R, mask=touched_R, other=0) + 1
        paid_R = tl.load(decayed + row_R, mask=touched_R, other=0.0)
        due = tl.load(decay)
        factor_R = tl.exp(due - paid_R)
        bias1_R = 1.0 - tl.exp(count_R.to(tl.float64) * LOG1)
        bias2_R = 1.0 - tl.exp(count_R.to(tl.float64) * LOG2)
        step_R = tl.load(rate) / bias1_R
        root2_R = tl.sqrt(bias2_R).to(WORK)
        tl.store(touches + row_R, count_R, mask=touched_R)
        tl.store(decayed + row_R, due, mask=touched_R)
        # The rows themselves.
        mean_RD = tl.load(exp_avg + place_RD, mask=touched_RD, other=0.0).to(WORK)
        square_RD = tl.load(exp_avg_sq + place_RD, mask=touched_RD, other=0.0).to(WORK)
        value_RD = tl.load(parameter + place_RD, mask=touched_RD, other=0.0).to(WORK)
        mean_RD = mean_RD + (gradient_RD - mean_RD) * REST1
        square_RD = square_RD * BETA2 + gradient_RD * gradient_RD * REST2
        root_RD = tl.sqrt(square_RD) / root2_R[:, None] + EPS
        value_RD = value_RD * factor_R.to(WORK)[:, None]
        value_RD = value_RD - step_R.to(WORK)[:, None] * (mean_RD / root_RD)
        tl.store(exp_avg + place_RD, mean_RD, mask=touched_RD)
        tl.store(exp_avg_sq + place_RD, square_RD, mask=touched_RD)
        tl.store(parameter + place_RD, value_RD, mask=touched_RD)
