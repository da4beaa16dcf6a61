"""Every image decoded once, kept as uint8 where it fits: on the GPU, in memory, or on disk.

All images lie one after the other in one run of pixels, each at its own size, so nothing is padded
and nothing is cut before its turn. Reduced to a shorter side of 256, CUB-200-2011 takes 3 GB and
Stanford Online Products about 25 GB.
"""

import errno
import hashlib
import json
import mmap
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks, images
from weiss._base.arrays import Array
from weiss._base.decoding import Decoded, Decoders, Sink, usable_cores
from weiss._base.files import alone, cache_folder, replacing
from weiss._base.progress import track
from weiss.data.cache_choice import Place, estimated_bytes, fits_disk, readable
from weiss.data.sources import Files, Pixels
from weiss.data.table import Table

CHUNK = 16
"""Images a decoding process takes at a time: enough that talking costs little beside decoding."""
SLACK = 2**20
"""Bytes to spare behind the last image, so that a window of any width may be fetched there."""
LEFTOVER_SECONDS = 3600
"""How long a file must have been left alone before it counts as forgotten."""
FORMAT = 1
"""Changes when stores on disk are laid out otherwise."""


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


def build_store(
    table: Table,
    place: Place,
    *,
    short_side: int | None = 256,
    device: torch.device | None = None,
    num_workers: int | None = None,
    cache: Path | None = None,
    shared: bool = False,
) -> tuple[Store, dict[int, str]]:
    """Decode every image of a table, on all cores.

    Args:
        table: the images; N of them.
        place: where to keep them: gpu, memory or disk.
        short_side: reduce the shorter side of larger images to this; None keeps them.
        device: the GPU, for the place ``"gpu"``.
        num_workers: decoding processes; one for each usable core by default, 0 for none.
        cache: the folder for stores on disk; a store of the same files is found there again.
        shared: other processes want the same: let one of them decode onto the disk, whatever the
            place, and take the images from there. Without room there, decode as ever.

    Returns:
        The store, and what is wrong with the images that cannot be read (row -> message); those
        have size 0 x 0 in the store.
    """
    if isinstance(table.source, Pixels):
        return _wrap(table.source, place, device), {}
    if place.name == "disk":
        return _on_disk(table, place, short_side, num_workers, cache or cache_folder())
    if shared and isinstance(table.source, Files):
        # A disk that fails or is full is no reason to stop: nobody has asked for it.
        with suppress(OSError):
            store, errors = _on_disk(
                table, place, short_side, num_workers, cache or cache_folder(), if_it_fits=True
            )
            # In memory they are already: a map of the file is the system's one copy for everybody.
            pixels = store.pixels.to(device) if place.name == "gpu" else store.pixels
            return replace(store, pixels=pixels), errors
    memory = Memory(estimated_bytes(table, short_side))
    starts, sizes, errors = _decode_all(memory.add, table, short_side, num_workers)
    pixels = memory.pixels(table.source.channels)
    if place.name == "gpu":
        pixels = pixels.to(device)
    return Store(pixels, starts, sizes, place), errors


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
    """Return bytes that take memory only as they are written to."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
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
        return asked if asked == 0 else checks.count("num_workers", asked, "decoding")
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
    """Return the store of images that are in memory already, as they are and without a copy."""
    count, height, width, channels = source.pixels.shape
    pixels = torch.from_numpy(np.ascontiguousarray(source.pixels)).view(-1, channels)
    if place.name == "gpu":
        pixels = pixels.to(device)
    else:
        place = Place("memory", "the images are in memory already")
    sizes = np.tile(np.array([height, width]), (count, 1))
    return Store(pixels, np.arange(count) * height * width, sizes, place)


def _on_disk(
    table: Table,
    place: Place,
    short_side: int | None,
    num_workers: int | None,
    cache: Path,
    *,
    if_it_fits: bool = False,
) -> tuple[Store, dict[int, str]]:
    """Return the store of a table from the cache folder, made there if it is not yet.

    With ``if_it_fits`` an OSError says that it is not there, nor room for it.
    """
    folder = cache / "images" / fingerprint(table, short_side)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.json"
    with alone(index):
        found = _index(index, table)
        if found is None:
            # Asked only now, alone: one that is there, or was being written, needs no more room.
            if if_it_fits and not fits_disk(estimated_bytes(table, short_side), folder):
                raise OSError(errno.ENOSPC, "no room for decoded images", str(folder))
            found = _write_store(folder, index, table, short_side, num_workers)
            _remove_leftovers(folder, found["pixels"])
    with (folder / found["pixels"]).open("rb") as file:
        # A private map: torch wants memory it may write to, and nothing written reaches the file.
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    channels = table.source.channels
    end = len(mapped) - len(mapped) % channels
    pixels = torch.frombuffer(mapped, dtype=torch.uint8, count=end).view(-1, channels)
    errors = {int(row): message for row, message in found["errors"].items()}
    store = Store(pixels, np.array(found["starts"]), np.array(found["sizes"]), place)
    return store, errors


def _remove_leftovers(folder: Path, used: str) -> None:
    """Remove pixels that no index names, and what was being written when its process was killed.

    Only what nobody has written to for a while: without locks another may be at it.
    """
    for path in folder.glob("*pixels-*.bin*"):
        with suppress(OSError):
            if path.name != used and time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                path.unlink()


def _index(index: Path, table: Table) -> dict[str, Any] | None:
    """Return the index of a store, or None if there is none to rely on."""
    try:
        found: dict[str, Any] = json.loads(index.read_text())
        whole = (index.parent / found["pixels"]).stat().st_size == found["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A disk or a network that failed once must not leave an image out for ever.
    mended = any(readable(table.source, int(row)) for row in found["errors"])
    return found if whole and not mended else None


def _write_store(
    folder: Path, index: Path, table: Table, short_side: int | None, num_workers: int | None
) -> dict[str, Any]:
    """Decode all images into a file, and write an index of it.

    Images lie there in the order in which they were ready, so an index is good for its own file
    only: it names it, and comes last.
    """
    name = f"pixels-{uuid.uuid4().hex[:8]}.bin"
    with replacing(folder / name) as temporary, temporary.open("wb") as file:
        sink = _append_to(file.fileno())
        starts, sizes, errors = _decode_all(sink, table, short_side, num_workers)
        file.truncate(os.fstat(file.fileno()).st_size + SLACK)
    found = {
        "pixels": name,
        "bytes": (folder / name).stat().st_size,
        "starts": starts.tolist(),
        "sizes": sizes.tolist(),
        "errors": errors,
    }
    with replacing(index) as temporary:
        temporary.write_text(json.dumps(found))
    # JSON has no whole numbers for keys: read back what the next one will read.
    return dict(json.loads(index.read_text()))


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
    for state in file_states(source):
        digest.update(state)
    return digest.hexdigest()[:24]


def file_states(source: Files) -> list[bytes]:
    """Return for each file a line that changes when it does: its path, its size, when written."""
    states = []
    for row in range(len(source)):
        file = source.file(row).absolute()
        try:
            status = file.stat()
            said = f" {status.st_size} {status.st_mtime_ns}\n"
        except OSError:
            said = " missing\n"
        states.append(os.fsencode(file) + said.encode())
    return states
