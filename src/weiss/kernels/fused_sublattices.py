"""Several fields a class in fused kernels: cosines are joined, slopes are spread.

With S fields a class a block has products with all fields of its classes, ``(B, c S)``. `join`
makes one cosine with each class of them, ``(B, c)``, and the programs of `weiss.kernels.fused` take
it as that with a single field: ``1 - cos_c`` is the soft minimum of the distances
(`weiss.theory.sublattices`),

    cos_c = 1/gamma log( 1/S sum_s e^{gamma cos_cs} ).

They find a slope by each. `spread` gives every field its share, in place of the products:

    h_cs = h_c e^{gamma cos_cs} / sum_s e^{gamma cos_cs} / |M_cs|

Dimensions: B batch, c classes of a block, S fields of a class.

(triton only in files of programs; imported when a kernel is first used.)
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from weiss.kernels.fused_programs import EMPTY

ROWS, FIELDS = 8, 256
"""Samples and fields in a program; classes with more fields are taken one at a time."""


def join(products: Tensor, inverse: Tensor, gamma: float, cosines: Tensor) -> None:
    """Write the cosines with classes.

    Args:
        products: ``(B, c S)``, of the directions of the batch and the fields of a block.
        inverse: ``(c S)`` one over the length of each field.
        gamma: of the soft minimum.
        cosines: ``(B, c)``, written.
    """
    _launch(join_cosines, products, inverse, gamma, cosines)


def spread(products: Tensor, inverse: Tensor, gamma: float, slopes: Tensor) -> None:
    """Turn products, in place, into slopes by the cosines with fields, over their lengths.

    Args:
        products: ``(B, c S)``, as `join` took them; overwritten.
        inverse: ``(c S)`` one over the length of each field.
        gamma: of the soft minimum.
        slopes: ``(B, c)``, by the cosines with classes.
    """
    _launch(spread_slopes, products, inverse, gamma, slopes)


def _launch(program: Any, products: Tensor, inverse: Tensor, gamma: float, classes: Tensor) -> None:
    batch, num_classes = classes.shape
    each = products.shape[1] // num_classes
    side = triton.next_power_of_2(each)
    columns = max(FIELDS // side, 1)
    program[(triton.cdiv(num_classes, columns), triton.cdiv(batch, ROWS))](
        products, inverse, classes, batch, num_classes, gamma, EACH=each, SIDE=side, ROWS=ROWS,
        COLUMNS=columns,
    )  # fmt: skip


@triton.jit
def _exponents(
    products, inverse, batch, num_classes, gamma, EACH: tl.constexpr, SIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return a tile: the place of its classes and of their fields, and which of them there are.

    Also one over the lengths of its fields, the largest cosine with each class, and how far those
    with its fields are below, times gamma.
    """
    i = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    s = tl.arange(0, SIDE)
    field = c[:, None] * EACH + s[None, :]
    here = (c < num_classes)[:, None] & (s < EACH)[None, :]
    scale = tl.load(inverse + field, mask=here, other=0.0)[None, :, :]
    at_class = i[:, None] * num_classes + c[None, :]
    at = i[:, None, None] * (num_classes * EACH) + field[None, :, :]
    is_class = (i < batch)[:, None] & (c < num_classes)[None, :]
    is_field = (i < batch)[:, None, None] & here[None, :, :]
    cos = tl.load(products + at, mask=is_field, other=0.0) * scale
    exists = (s < EACH)[None, None, :]
    top = tl.max(tl.where(exists, cos, EMPTY), 2)
    x = gamma * tl.where(exists, cos - top[:, :, None], 0.0)
    return at_class, at, is_class, is_field, scale, top, x


@triton.jit
def _expm1(x):
    """``e^x - 1``, with the digits of small values: up to a quarter by a series."""
    series = x * (1 / 720) + 1 / 120
    series = series * x + 1 / 24
    series = series * x + 1 / 6
    series = series * x + 1 / 2
    series = series * x + 1.0
    return tl.where(tl.abs(x) < 0.25, series * x, tl.exp(x) - 1.0)


@triton.jit
def join_cosines(
    products, inverse, cosines, batch, num_classes, gamma, EACH: tl.constexpr, SIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """See `join`; a program has ROWS samples and COLUMNS classes."""
    at_class, _, is_class, is_field, _, top, x = _exponents(
        products, inverse, batch, num_classes, gamma, EACH, SIDE, ROWS, COLUMNS
    )
    # Measured from the largest, so that nothing overflows and equal cosines stay what they are.
    mean = tl.sum(tl.where(is_field, _expm1(x), 0.0), 2) / EACH
    # The logarithm of 1 + mean, with the digits that this sum loses to rounding.
    kept = (1.0 + mean) - 1.0
    log = tl.log(1.0 + mean) * (mean / tl.where(kept == 0, 1.0, kept))
    log = tl.where(kept == 0, mean, log)
    tl.store(cosines + at_class, top + log / gamma, mask=is_class)


@triton.jit
def spread_slopes(
    products, inverse, slopes, batch, num_classes, gamma, EACH: tl.constexpr, SIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """See `spread`; a program has ROWS samples and COLUMNS classes."""
    at_class, at, is_class, is_field, scale, _, x = _exponents(
        products, inverse, batch, num_classes, gamma, EACH, SIDE, ROWS, COLUMNS
    )
    part = tl.where(is_field, tl.exp(x), 0.0)
    slope = tl.load(slopes + at_class, mask=is_class, other=0.0)
    slope = slope / tl.where(is_class, tl.sum(part, 2), 1.0)
    tl.store(products + at, slope[:, :, None] * part * scale, mask=is_field)
