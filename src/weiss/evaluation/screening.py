"""Products in low precision, and a proven bound on how far they are from the exact ones.

Rows are rounded to half precision, and how much that changes them is measured. With
``x = x' + dx`` and ``y = y' + dy``

    |x.y - x'.y'| = |dx.y + x'.dy| <= |dx| |y| + |x'| |dy|              (Cauchy and Schwarz)

and the sum of the products ``x'_i y'_i``, computed in float32 in any order, is off by at most
``E 2^-22 |x'| |y'|``: each of E products and of E sums loses less than ``2^-23`` of the sum of all
magnitudes, which is at most ``|x'| |y'|``. (Tensor cores cut off where others round, hence not
``2^-24``.) Products of two numbers of half precision are exact in float32. docs/evaluating.md has
the derivation, and how the search uses it.

Euclidean distances compare ``x.y - |y|^2 / 2``: the last term is three more columns of y, which
add up to it, and x has ones there.

Dimensions: n rows, D embedding size, E columns of rounded rows; q queries and g items of a block.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from weiss.evaluation.embeddings import ROWS
from weiss.kernels.plan import why_no_triton

ALIGNED = {"cuda": 64, "cpu": 1}
"""Rounded rows have a multiple of so many columns; CUDA kernels are fastest then."""
WORTHWHILE = {"cuda": 2**35, "cpu": 2**30}
"""Multiplications of a search from which it is screened; smaller ones take a few milliseconds."""
FASTER = 1.5
"""How much faster than float32 half precision must be on a CPU to be used."""
SAFE = 1 + 2.0**-8
"""Covers the rounding of the bound's own norms and sums."""
BIAS_COLUMNS = 3
"""Three numbers of half precision have the digits of a float32."""
TINY = 2.0**-40
"""Covers numbers so small that a processor takes them for 0. Rows are about of length 1."""


class Rounded(NamedTuple):
    """Rows in half precision, and the lengths in the bound.

    Attributes:
        rows: ``(n, E)``, of a gallery with further rows of padding after them.
        length: ``(n,)`` length of the exact rows, ``|x|``.
        rounded_length: ``(n,)`` that of the rounded rows, ``|x'|``.
        error: ``(n,)`` length of what rounding took away, ``|dx|``.
    """

    rows: Tensor
    length: Tensor
    rounded_length: Tensor
    error: Tensor


def low_precision(device: torch.device, multiplications: float) -> torch.dtype | None:
    """Return the dtype in which a search is screened on a device; None if that does not pay."""
    if multiplications < WORTHWHILE.get(device.type, math.inf):
        return None
    if device.type == "cuda" or why_no_triton(device) is None:
        return torch.float16  # as fast as bfloat16, with a bound eight times smaller
    return torch.bfloat16 if _bfloat16_is_faster() else None


@cache
def _bfloat16_is_faster() -> bool:
    """Whether this CPU multiplies bfloat16 much faster than float32, by trying it once."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.ones(512, 512, dtype=dtype), torch.ones(4096, 512, dtype=dtype)
        seconds[dtype] = math.inf
        for _ in range(4):
            start = time.perf_counter()
            left @ right.T
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    return seconds[torch.bfloat16] * FASTER < seconds[torch.float32]


def round_rows(
    rows_nD: Tensor, dtype: torch.dtype, bias: Tensor | float | None = None, *, padding: int = 0
) -> Rounded:
    """Round rows to half precision, and measure what that changes.

    Args:
        rows_nD: float32 or float64, at most about 1 long.
        dtype: to round to.
        bias: ``(n,)`` a term that is added to every product with an item, from -1/2 to 0; 1.0 for
            queries that meet such items.
        padding: further rows of zeros in the result.
    """
    (num_rows, size), device = rows_nD.shape, rows_nD.device
    aligned = ALIGNED.get(device.type, 1)
    width = -(-(size + (0 if bias is None else BIAS_COLUMNS)) // aligned) * aligned
    low_nE = torch.zeros(num_rows + padding, width, dtype=dtype, device=device)
    length_n, rounded_n, error_n = rows_nD.new_empty(3, num_rows)
    for start in range(0, num_rows, ROWS):
        part = slice(start, min(start + ROWS, num_rows))
        low_nE[part, :size] = rows_nD[part]
        # What rounding takes away has no rounding of its own: it is a multiple of the last digit.
        error_n[part] = _length(rows_nD[part] - low_nE[part, :size])
        length_n[part] = _length(rows_nD[part])
        rounded_n[part] = _length(low_nE[part, :size].to(rows_nD.dtype))
    if bias is not None:
        missing: Tensor | float = bias
        for column in range(size, size + BIAS_COLUMNS):
            low_nE[:num_rows, column] = missing
            if isinstance(missing, Tensor):
                missing = missing - low_nE[:num_rows, column]
            rounded_n = torch.hypot(rounded_n, low_nE[:num_rows, column].to(rows_nD.dtype))
        length_n = torch.hypot(length_n, torch.as_tensor(bias, dtype=rows_nD.dtype, device=device))
        if isinstance(missing, Tensor):
            error_n = torch.hypot(error_n, missing)
    return Rounded(low_nE, length_n, rounded_n, error_n)


def _length(rows_nD: Tensor) -> Tensor:
    length_n: Tensor = torch.linalg.vector_norm(rows_nD, dim=1)
    return length_n


def slack(query: Rounded, items: Rounded) -> Tensor:
    """Return ``(q,)`` float64: how far low and full precision may differ, for any of the items.

    Full precision stands for what a product in the precision of the rows comes to, with its own
    rounding. NaN or infinity where half precision cannot hold a query: nothing is proven then.
    """
    length, rounded, error = (
        lengths.max().double() for lengths in (items.length, items.rounded_length, items.error)
    )
    columns, eps = query.rows.shape[1], torch.finfo(query.length.dtype).eps
    rounding_q = query.error.double() * length + query.rounded_length.double() * error
    summing_q = columns * 2.0**-22 * query.rounded_length.double() * rounded
    exact_q = columns * eps * query.length.double() * length
    return SAFE * (rounding_q + summing_q + exact_q) + TINY


def before_rounding(score_q: Tensor) -> Tensor:
    """Return float64 numbers that no number exceeds which rounds to these scores or lower."""
    info = torch.finfo(score_q.dtype)
    score_q = score_q.double()
    return score_q + score_q.abs() * info.eps * 0.5 + info.tiny


def product(query_qE: Tensor, items_gE: Tensor, out: Tensor) -> Tensor:
    """Return ``query @ items.T`` in half precision, summed in float32 and rounded once."""
    with _sums_in_float32():
        torch.mm(query_qE, items_gE.T, out=out)
    return out


@contextmanager
def _sums_in_float32() -> Iterator[None]:
    """Keep float32 sums on CUDA, whatever a training script has allowed."""
    allowed = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",  # torch 2.7
    )
    before = {name: getattr(allowed, name) for name in names if _is_known(name)}
    for name in before:
        setattr(allowed, name, False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(allowed, name, value)


@cache
def _is_known(name: str) -> bool:
    try:
        getattr(torch.backends.cuda.matmul, name)
    except (AttributeError, AssertionError):  # the latter is torch's for unknown names
        return False
    return True
