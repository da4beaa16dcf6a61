"""Every image decoded once, kept as uint8 where it fits: on the GPU, in memory, or on disk.

All images lie one after the other in one run of pixels, each at its own size, so nothing is padded
and nothing is cut before its turn. Reduced to a shorter side of 256, CUB-200-2011 takes 3 GB and
Stanford Online Products about 25 GB.
"""

import hashlib
import json
import mmap
import shutil
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
import torch
from torch import Tensor

from weiss import _check, images
from weiss.data.sources import Files, Pixels
from weiss.data.table import Table
from weiss.decoding import Decoded, Decoders, memory_file, usable_cores, write_at
from weiss.files import cache_folder, replacing
from weiss.progress import track

Array = np.ndarray[Any, Any]
PLACES = ("gpu", "memory", "disk", "stream")
GPU_SHARE, MEMORY_SHARE, DISK_SHARE = 0.5, 0.5, 0.8
"""How much of what is free a store may take; training needs the rest."""
CHUNK = 32
"""Images a decoding process takes at a time: enough that talking costs nothing beside decoding."""
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
    with memory_file() as file:
        starts, sizes, errors = _decode_into(file, table, short_side, num_workers)
        pixels = _mapped(file, table.source.channels)
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


def decode_files(
    decoders: Decoders, files: Sequence[Path], what: str
) -> tuple[Array, Array, dict[int, str]]:
    """Decode files with a bar; return first bytes ``(N,)``, sizes ``(N, 2)`` and errors."""
    waiting: dict[Future[Decoded], int] = {
        decoders.submit(files[first : first + CHUNK]): first
        for first in range(0, len(files), CHUNK)
    }
    starts, sizes = np.full(len(files), -1), np.zeros((len(files), 2), dtype=np.int64)
    errors: dict[int, str] = {}

    def finished() -> Any:
        pending = set(waiting)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield CHUNK, future

    for future in track(finished(), len(files), what):
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


def _decode_into(
    file: IO[bytes], table: Table, short_side: int | None, num_workers: int | None
) -> tuple[Array, Array, dict[int, str]]:
    """Decode all images into a file; return first pixels, sizes, errors."""
    source, channels = table.source, table.source.channels
    what = f"decoding {table.name}"
    num_workers = workers_for(len(source), num_workers)
    if isinstance(source, Files) and num_workers:
        files = [source.file(row) for row in range(len(source))]
        with Decoders(num_workers, [file], channels=channels, short_side=short_side) as decoders:
            starts, sizes, errors = decode_files(decoders, files, what)
        return starts // channels, sizes, errors
    starts, sizes = np.full(len(source), -1), np.zeros((len(source), 2), dtype=np.int64)
    errors, end = {}, 0
    for row in track(((1, row) for row in range(len(source))), len(source), what):
        try:
            pixels = images.reduced(source.read(row), short_side)
        except images.BadImageError as error:
            errors[row] = str(error)
            continue
        starts[row], sizes[row] = end // channels, pixels.shape[:2]
        end += write_at(file.fileno(), np.ascontiguousarray(pixels), end)
    return starts, sizes, errors


def _mapped(file: IO[bytes], channels: int) -> Tensor:
    """Return what a file holds as ``(P, channels)``, without reading it."""
    size = file.seek(0, 2)
    if size == 0:
        return torch.zeros((0, channels), dtype=torch.uint8)
    # A private map: torch wants memory it may write to, and nothing written reaches the file.
    mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE)
    return torch.frombuffer(mapped, dtype=torch.uint8).view(-1, channels)


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
        with replacing(folder / "pixels.bin") as temporary, temporary.open("w+b") as file:
            starts, sizes, errors = _decode_into(file, table, short_side, num_workers)
        # The index comes last: where it is, the pixels are whole.
        found = {"starts": starts.tolist(), "sizes": sizes.tolist(), "errors": errors}
        with replacing(index) as temporary:
            temporary.write_text(json.dumps(found))
    found = json.loads(index.read_text())
    with (folder / "pixels.bin").open("rb") as file:
        pixels = _mapped(file, table.source.channels)
    errors = {int(row): message for row, message in found["errors"].items()}
    store = Store(pixels, np.array(found["starts"]), np.array(found["sizes"]), place)
    return store, errors


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
