"""Devices, precisions and free memory of this machine."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch

from weiss._base import checks


def refuse_absent_device(asked: str, name: str) -> None:
    """Refuse a device (auto, cpu, cuda, cuda:N or mps) that this machine does not have."""
    kind, colon, number = asked.partition(":")
    number = number if colon else "0"
    there = {"auto": 1, "cpu": 1, "cuda": torch.cuda.device_count()}
    there["mps"] = int(torch.backends.mps.is_available())
    checks.one_of(name, kind, there, "this machine")
    if not number.isdecimal() or int(number) >= there[kind]:
        raise ValueError(
            f"{name} must be a device of this machine; {asked!r} is none ({there['cuda']} CUDA "
            "devices are visible). Choose 'cpu' or 'auto'."
        )


def is_cpu(asked: str) -> bool:
    """Return whether a device (auto, cpu, cuda, cuda:N or mps) is the CPU on this machine."""
    has_other = torch.cuda.is_available() or torch.backends.mps.is_available()
    return asked == "cpu" or (asked == "auto" and not has_other)


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(asked: str, device: torch.device) -> str:
    """Return the precision to compute in; ``"auto"`` is bfloat16 on a GPU that has it."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" and multiplies_bfloat16(device) else "fp32"
    if asked == "fp16" and device.type != "cuda":
        raise ValueError(
            f"train.precision must not be 'fp16' on {device.type}, which has no use for it; choose "
            "'bf16', 'fp32' or 'auto'."
        )
    return asked


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16, with which it is faster."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # Not public, and not in every version: without them the answer is no.
    known = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    has_it = [bool(getattr(torch.cpu, name, lambda: False)()) for name in known]
    return device.type == "cpu" and any(has_it)


def autocast(asked: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes the context a network computes in."""
    precision = resolve_precision(asked, device)
    if precision == "fp32":
        return nullcontext
    # Without a cache: it helps only where a weight is used twice, and CUDA graphs forbid it.
    return lambda: torch.autocast(device.type, DTYPES[precision], cache_enabled=False)


def available_memory() -> int:
    """Return the bytes of memory that are free to use, a container's limit included."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    for limit, used, statistics, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
            # Cached files count as used, but the system frees them when memory is needed.
            rows = (line.split() for line in (group / statistics).read_text().splitlines())
            left += sum(int(value) for key, value in rows if key == cached)
            free = min(free, left)
        except (OSError, ValueError):
            continue  # no such control group, or no limit ("max")
    return max(free, 0)


def gigabytes(size: float) -> str:
    """Return a size as text: 2.9 GB, 45 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
