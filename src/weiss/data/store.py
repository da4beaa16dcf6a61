"""Every image decoded once, kept as uint8 where it fits: on the GPU, in memory, or on disk.

All images lie one after the other in one run of pixels, each at its own size, so nothing is padded
and nothing is cut before its turn. Reduced to a shorter side of 256, CUB-200-2011 takes 3 GB and
Stanford Online Products about 25 GB.
"""

import hashlib
import json
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from weiss import _check, images
from weiss.data.sources import Files, Pixels
from weiss.data.table import Table
from weiss.decoding import Decoded, Decoders, Sink, usable_cores
from weiss.files import cache_folder, replacing
from weiss.progress import track

Array = np.ndarray[Any, Any]
PLACES = ("gpu", "memory", "disk", "stream")
GPU_SHARE, MEMORY_SHARE, DISK_SHARE = 0.5, 0.5, 0.8
"""How much of what is free a store may take; training needs the rest."""
CHUNK = 16
"""Images a decoding process takes at a time: enough that talking costs little beside decoding."""
SLACK = 2**20
"""Bytes to spare behind the last image, so that a window of any width may be fetched there."""
SAMPLED = 256
"""Headers read to estimate how large a store will be."""
FORMAT = 1
"""Changes when stores on disk are laid out otherwise."""


@dataclass(frozen=True)
class Place:
    """Where images are kept, and why there.

    Args:
        name: ``"gpu"``, ``"memory"``, ``"disk"`` or ``"stream"`` (nowhere: decoded each time).
        why: the reason in words, to be shown.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Store:
    """The decoded images of a table.

    Args:
        pixels: uint8 ``(P, c)``, all images one after the other, row by row.
        starts: ``(N,)`` int64, the first pixel of each image.
        sizes: ``(N, 2)`` int64, height and width of each.
        place: where the pixels are.
    """

    pixels: Tensor
    starts: Array
    sizes: Array
    place: Place

    def num_pixels(self) -> Array:
        """Return ``(N,)``, how many pixels each image has."""
        return np.asarray(self.sizes.prod(axis=1))

    def take(self, items: Array) -> "Store":
        """Return the store of these images only; the pixels stay where they are."""
        return replace(self, starts=self.starts[items], sizes=self.sizes[items])


class BadImagesError(ValueError):
    """Some images of a table cannot be read; ``errors`` says which and why.

    Args:
        errors: the row of the table -> what is wrong with its image.
    """

    def __init__(self, errors: dict[int, str], num_images: int) -> None:
        self.errors = errors
        listed = "\n  ".join(list(errors.values())[:10])
        more = f"\n  and {len(errors) - 10:,} more" if len(errors) > 10 else ""
        super().__init__(
            f"every image must be readable; {len(errors):,} of {num_images:,} are not:\n  {listed}"
            f"{more}\nReplace or remove them, or leave them out with skip_bad=True (on the command "
            "line: --skip-bad)."
        )


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
    disk = shutil.disk_usage(_existing(cache or cache_folder())).free
    needs = f"needs about {gigabytes(size)}"
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The pixels pass through main memory on their way.
        if size <= GPU_SHARE * free and size <= MEMORY_SHARE * memory:
            return Place("gpu", f"{needs}; the GPU has {gigabytes(free)} free")
    if size <= MEMORY_SHARE * memory:
        return Place("memory", f"{needs}; memory has {gigabytes(memory)} free")
    if size <= DISK_SHARE * disk:
        return Place(
            "disk", f"{needs}; memory has {gigabytes(memory)}, disk {gigabytes(disk)} free"
        )
    both = f"memory ({gigabytes(memory)} free) or disk ({gigabytes(disk)} free)"
    return Place("stream", f"{needs}, more than fits {both}")


def build_store(
    table: Table,
    place: Place,
    *,
    short_side: int | None = 256,
    device: torch.device | None = None,
    num_workers: int | None = None,
    cache: Path | None = None,
) -> tuple[Store, dict[int, str]]:
    """Decode every image of a table, on all cores.

    Args:
        table: the images; N of them.
        place: where to keep them: gpu, memory or disk.
        short_side: reduce the shorter side of larger images to this; None keeps them.
        device: the GPU, for the place ``"gpu"``.
        num_workers: decoding processes; one for each usable core by default, 0 for none.
        cache: the folder for stores on disk; a store of the same files is found there again.

    Returns:
        The store, and what is wrong with the images that cannot be read (row -> message); those
        have size 0 x 0 in the store.
    """
    if isinstance(table.source, Pixels):
        return _wrap(table.source, place, device), {}
    if place.name == "disk":
        return _on_disk(table, place, short_side, num_workers, cache or cache_folder())
    memory = Memory(estimated_bytes(table, short_side))
    starts, sizes, errors = _decode_all(memory.add, table, short_side, num_workers)
    pixels = memory.pixels(table.source.channels)
    if place.name == "gpu":
        pixels = pixels.to(device)
    return Store(pixels, starts, sizes, place), errors


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
            height, width = source.read(row).shape[:2]
            if short_side is not None and min(height, width) > short_side:
                width, height = images.reduced_size(width, height, short_side)
            sizes.append(height * width)
    known = [size for size in sizes if size]
    return int(np.mean(known) * len(source) * source.channels) if known else 0


def available_memory() -> int:
    """Return the bytes of memory that are free to use, a container's limit included."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            group = Path("/sys/fs/cgroup")
            free = min(free, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):
            continue  # no such group, or no limit ("max")
    return max(free, 0)


def gigabytes(size: float) -> str:
    """Return a size in words: 2.9 GB, 45 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def refuse_bad(errors: dict[int, str], num_images: int) -> None:
    """Refuse a table with unreadable images."""
    if errors:
        raise BadImagesError(errors, num_images)


class Memory:
    """Bytes that are added from many threads and end up as one run.

    Args:
        expected: about how many there will be. Twice that much address space is taken at once;
            memory is taken as it is written to.
    """

    def __init__(self, expected: int) -> None:
        self._taken, self._writing = 0, 0
        self._settled = threading.Condition()
        self._bytes = _space(2 * expected + SLACK)

    def add(self, given: memoryview) -> int:
        """Copy bytes to the end; return where they begin."""
        with self._settled:
            if self._taken + len(given) + SLACK > len(self._bytes):
                self._settled.wait_for(lambda: self._writing == 0)
                larger = _space(2 * (self._taken + len(given)) + SLACK)
                larger[: self._taken] = self._bytes[: self._taken]
                self._bytes = larger
            start = self._taken
            self._taken += len(given)
            self._writing += 1
        self._bytes[start : start + len(given)] = np.frombuffer(given, dtype=np.uint8)
        with self._settled:
            self._writing -= 1
            self._settled.notify_all()
        return start

    def pixels(self, channels: int) -> Tensor:
        """Return all bytes as ``(P, channels)``, with some to spare behind the last image."""
        end = self._taken + SLACK // 2
        return torch.from_numpy(self._bytes[: end - end % channels]).view(-1, channels)


def _space(size: int) -> Array:
    """Return bytes in pages as large as the system gives: a tenth of the faults, or none."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, dtype=np.uint8)


def decode_files(
    decoders: Decoders, files: Sequence[Path], sink: Sink, what: str
) -> tuple[Array, Array, dict[int, str]]:
    """Decode files with a bar; return first bytes ``(N,)``, sizes ``(N, 2)`` and errors."""
    waiting: dict[Future[Decoded], int] = {
        decoders.submit(files[first : first + CHUNK], sink): first
        for first in range(0, len(files), CHUNK)
    }
    starts, sizes = np.full(len(files), -1), np.zeros((len(files), 2), dtype=np.int64)
    errors: dict[int, str] = {}
    steps = ((CHUNK, future) for future in as_completed(waiting))
    for future in track(steps, len(files), what):
        first, decoded = waiting[future], future.result()
        rows = slice(first, first + len(decoded.starts))
        starts[rows], sizes[rows] = decoded.starts, decoded.sizes
        errors.update({first + at: message for at, message in decoded.errors.items()})
    return starts, sizes, dict(sorted(errors.items()))


def workers_for(num_images: int, asked: int | None) -> int:
    """Return how many decoding processes to start: none for a handful of images."""
    if asked is not None:
        return asked if asked == 0 else _check.count("num_workers", asked, "decoding")
    return min(usable_cores(), num_images // (4 * CHUNK))


def _decode_all(
    sink: Sink, table: Table, short_side: int | None, num_workers: int | None
) -> tuple[Array, Array, dict[int, str]]:
    """Decode all images into a sink; return first pixels, sizes, errors."""
    source, channels = table.source, table.source.channels
    what = f"decoding {table.name}"
    num_workers = workers_for(len(source), num_workers)
    if isinstance(source, Files) and num_workers:
        files = [source.file(row) for row in range(len(source))]
        with Decoders(num_workers, channels=channels, short_side=short_side) as decoders:
            starts, sizes, errors = decode_files(decoders, files, sink, what)
        return starts // channels, sizes, errors
    starts, sizes = np.full(len(source), -1), np.zeros((len(source), 2), dtype=np.int64)
    errors = {}
    for row in track(((1, row) for row in range(len(source))), len(source), what):
        try:
            pixels = images.reduced(source.read(row), short_side)
        except images.BadImageError as error:
            errors[row] = str(error)
            continue
        sizes[row] = pixels.shape[:2]
        starts[row] = sink(np.ascontiguousarray(pixels).data.cast("B")) // channels
    return starts, sizes, errors


def _wrap(source: Pixels, place: Place, device: torch.device | None) -> Store:
    """Return the store of images that are in memory already, without a copy there."""
    count, height, width, channels = source.pixels.shape
    pixels = torch.from_numpy(np.ascontiguousarray(source.pixels)).view(-1, channels)
    if place.name == "gpu":
        pixels = pixels.to(device)
    else:
        place = Place("memory", "the images are in memory already")
    sizes = np.tile(np.array([height, width]), (count, 1))
    return Store(pixels, np.arange(count) * height * width, sizes, place)


def _on_disk(
    table: Table, place: Place, short_side: int | None, num_workers: int | None, cache: Path
) -> tuple[Store, dict[int, str]]:
    """Return the store of a table from the cache folder, made there if it is not yet."""
    folder = cache / "images" / fingerprint(table, short_side)
    index = folder / "index.json"
    if not index.exists():
        with replacing(folder / "pixels.bin") as temporary, temporary.open("wb") as file:
            sink = _append_to(file.fileno())
            starts, sizes, errors = _decode_all(sink, table, short_side, num_workers)
            file.truncate(os.fstat(file.fileno()).st_size + SLACK)
        # The index comes last: where it is, the pixels are whole.
        found = {"starts": starts.tolist(), "sizes": sizes.tolist(), "errors": errors}
        with replacing(index) as temporary:
            temporary.write_text(json.dumps(found))
    found = json.loads(index.read_text())
    with (folder / "pixels.bin").open("rb") as file:
        # A private map: torch wants memory it may write to, and nothing written reaches the file.
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    channels = table.source.channels
    end = len(mapped) - len(mapped) % channels
    pixels = torch.frombuffer(mapped, dtype=torch.uint8, count=end).view(-1, channels)
    errors = {int(row): message for row, message in found["errors"].items()}
    store = Store(pixels, np.array(found["starts"]), np.array(found["sizes"]), place)
    return store, errors


def _append_to(file: int) -> Callable[[memoryview], int]:
    """Return a sink that writes to an open file."""
    lock = threading.Lock()

    def append(given: memoryview) -> int:
        with lock:
            start, written = os.fstat(file).st_size, 0
            while written < len(given):
                written += os.write(file, given[written:])
        return start

    return append


def fingerprint(table: Table, short_side: int | None) -> str:
    """Return a name for the decoded images of a table: it changes when any file does."""
    source = table.source
    if not isinstance(source, Files):
        raise ValueError(
            f"images must be files to be kept on disk; those of {table.name} are not. "
            "Keep them in memory."
        )
    digest = hashlib.sha256(f"{FORMAT} {short_side} {source.channels}".encode())
    for row in range(len(source)):
        file = source.file(row)
        try:
            status = file.stat()
            digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{file} missing\n".encode())
    return digest.hexdigest()[:24]


def _existing(folder: Path) -> Path:
    """Return a folder or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
