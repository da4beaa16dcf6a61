"""Embeddings as tensors, arrays or memory maps: read by rows, checked before use."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array

Embeddings = Tensor | Array

ROWS = 16384
"""How many rows are read at a time."""
FLOATS = ("float16", "bfloat16", "float32", "float64", "f2", "f4", "f8")


def take(embeddings: Embeddings, rows: Any) -> Tensor:
    """Return some rows (a slice, or an array of indices) as a tensor, reading no others."""
    if isinstance(embeddings, Tensor):
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows).to(embeddings.device)
        return embeddings.detach()[rows]
    array = np.ascontiguousarray(embeddings[rows])
    # Torch cannot share read-only memory, other byte orders and reversed rows: they are copied.
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides) < 0:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


def compute_dtype(*embeddings: Embeddings) -> torch.dtype:
    """Return the dtype to compute in: at least float32, and float64 where any input is."""
    dtype = torch.float32
    for given in embeddings:
        dtype = torch.promote_types(dtype, take(given, slice(0, 1)).dtype)
    return dtype


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_embeddings(given: Any, name: str, distance: str) -> None:
    """Refuse wrong types and shapes, NaN, and zero vectors under the cosine distance."""
    if not isinstance(given, Tensor | np.ndarray):
        raise TypeError(
            f"{name} must be a torch.Tensor or numpy array of shape (N, D); "
            f"got {type(given).__name__}. Convert it, for example with torch.as_tensor."
        )
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(
            f"{name} must have shape (N, D), N and D at least 1; "
            f"got {tuple(given.shape)}. Flatten or pool other dimensions first."
        )
    if str(given.dtype).removeprefix("torch.").lstrip("<>=") not in FLOATS:
        raise TypeError(
            f"{name} must be floating point of 16, 32 or 64 bits; got {given.dtype}. "
            "Convert it to float32."
        )
    if isinstance(given, Tensor) and (given.layout != torch.strided or given.is_meta):
        raise TypeError(
            f"{name} must be a dense tensor with values; got {given.layout} on "
            f"{given.device}. Use to_dense()."
        )
    for start in range(0, len(given), ROWS):
        rows = take(given, slice(start, start + ROWS))
        # The largest magnitude in a row is NaN or infinite if any value is, and 0 if all are: one
        # wait for the device answers both questions. The extremes need no copy of all rows.
        largest = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))
        good = largest.isfinite()
        if distance == "cosine":
            good &= largest > 0
        if good.all():
            continue
        bad = ~largest.isfinite()
        if bad.any():
            raise ValueError(
                f"{name} must be finite; got NaN or infinity in {_named(bad, start)}. "
                "Check whether the network diverged, or remove these items."
            )
        raise ValueError(
            f"{name} must have no zero vector under the cosine distance, since it has no "
            f"direction; got zeros in {_named(largest == 0, start)}. Use distance='euclidean', or "
            "check why the network returns zeros."
        )


def _named(bad: Tensor, start: int) -> str:
    rows = (bad.nonzero().flatten() + start).tolist()
    return f"rows {', '.join(map(str, rows[:5]))}{', ...' if len(rows) > 5 else ''}"
