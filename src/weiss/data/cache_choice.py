"""Where decoded images may be kept, and which place they fit."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from weiss._base import images
from weiss._base.files import cache_folder
from weiss.data.sources import Files, Pixels, Source
from weiss.data.table import Table

PLACES = ("gpu", "memory", "disk", "stream")
GPU_SHARE, MEMORY_SHARE, DISK_SHARE = 0.5, 0.5, 0.8
"""How much of what is free decoded images may take; training needs the rest."""
SAMPLED = 256
"""Headers read to estimate how much they will take."""


@dataclass(frozen=True)
class Place:
    """Where images are kept, and why there.

    Args:
        name: ``"gpu"``, ``"memory"``, ``"disk"`` or ``"stream"`` (nowhere: decoded each time).
        why: the reason in words, to be shown.
    """

    name: str
    why: str


def choose_place(
    table: Table, short_side: int | None, device: torch.device, cache: Path | None = None
) -> Place:
    """Return the fastest place that a table's decoded images fit.

    Args:
        table: the images.
        short_side: what the shorter side of larger images will be reduced to.
        device: where they will be used.
        cache: the folder for stores on disk.

    Returns:
        The place, with the numbers that decided.
    """
    size = estimated_bytes(table, short_side)
    memory = available_memory()
    folder = cache or cache_folder()
    disk = shutil.disk_usage(_existing(folder)).free
    needs = f"needs about {gigabytes(size)}"
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The pixels pass through main memory on their way.
        if size <= GPU_SHARE * free and size <= MEMORY_SHARE * memory:
            return Place("gpu", f"{needs}; the GPU has {gigabytes(free)} free")
    if size <= MEMORY_SHARE * memory:
        return Place("memory", f"{needs}; memory has {gigabytes(memory)} free")
    if isinstance(table.source, Files) and fits_disk(size, folder):
        both = f"memory has {gigabytes(memory)}, disk {gigabytes(disk)} free"
        return Place("disk", f"{needs}; {both}")
    both = f"memory ({gigabytes(memory)} free) or disk ({gigabytes(disk)} free)"
    return Place("stream", f"{needs}, more than fits {both}")


def fits_disk(size: int, folder: Path) -> bool:
    """Return whether a folder, there or to be made, can be written to and has room for images.

    Args:
        size: the bytes they take.
        folder: where they would lie.
    """
    there = _existing(folder)
    return size <= DISK_SHARE * shutil.disk_usage(there).free and os.access(there, os.W_OK)


def estimated_bytes(table: Table, short_side: int | None) -> int:
    """Return about how many bytes the decoded images will take, from the headers of some."""
    source = table.source
    if isinstance(source, Pixels):
        return int(source.pixels.nbytes)
    rows = np.unique(np.linspace(0, len(source) - 1, SAMPLED).astype(int))
    if isinstance(source, Files):
        sizes = [images.stored_size(source.file(row), short_side) for row in rows]
    else:
        sizes = []
        for row in rows[:: max(len(rows) // 16, 1)]:
            if not readable(source, row):
                continue
            height, width = source.read(row).shape[:2]
            if short_side is not None and min(height, width) > short_side:
                width, height = images.reduced_size(width, height, short_side)
            sizes.append(height * width)
    known = [size for size in sizes if size]
    return int(np.mean(known) * len(source) * source.channels) if known else 0


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
            # Files that were read count as used, and make room when it is needed.
            rows = (line.split() for line in (group / statistics).read_text().splitlines())
            left += sum(int(value) for key, value in rows if key == cached)
            free = min(free, left)
        except (OSError, ValueError):
            continue  # no such group, or no limit ("max")
    return max(free, 0)


def gigabytes(size: float) -> str:
    """Return a size in words: 2.9 GB, 45 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def readable(source: Source, row: int) -> bool:
    """Return whether an item can be read."""
    try:
        source.read(row)
    except images.BadImageError:
        return False
    return True


def _existing(folder: Path) -> Path:
    """Return a folder or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
