"""Where decoded images are kept: on the GPU, in memory or on disk; and when they are reused.

A table is decoded once for a pipeline, into the first storage that it fits. A comparison builds a
pipeline for each of its runs, nearly always on the same files: inside `reuse_decoded_images` the
images of the last pipeline stay, and the next one that needs these files, or some of them, reuses
them.
"""

import errno
import hashlib
import json
import mmap
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weiss._base import images
from weiss._base.decoding import Sink
from weiss._base.devices import available_memory, gigabytes
from weiss._base.files import alone, cache_folder, replacing
from weiss._base.images import Reduction
from weiss.data.sources import Files, Pixels, Source
from weiss.data.store import SLACK, Memory, Storage, Store, decode_table
from weiss.data.table import Table

STORAGES = ("gpu", "memory", "disk", "stream")
GPU_SHARE, MEMORY_SHARE, DISK_SHARE = 0.5, 0.5, 0.8
"""How much of what is free decoded images may take; training needs the rest."""
SAMPLED = 256
"""Headers read to estimate how much they will take."""
LEFTOVER_SECONDS = 3600
"""Age of an unused temporary file from which it is removed."""
FORMAT = 1
"""Changes with the layout of stores on disk."""


def choose_storage(
    table: Table, short_side: int | None, device: torch.device, cache: Path | None = None
) -> Storage:
    """Return the fastest storage that a table's decoded images fit, and the numbers why.

    What they take is among the numbers only if they are not kept: of kept images it is known.
    """
    size = estimated_bytes(table, short_side)
    memory = available_memory()
    folder = cache or cache_folder()
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The pixels pass through main memory on their way.
        if size <= GPU_SHARE * free and size <= MEMORY_SHARE * memory:
            return Storage("gpu", f"it has {gigabytes(free)} free")
    if size <= MEMORY_SHARE * memory:
        return Storage("memory", f"it has {gigabytes(memory)} free")
    fits_disk = isinstance(table.source, Files) and _fits_disk(size, folder)
    disk = shutil.disk_usage(_existing(folder)).free
    rest = f"memory has {gigabytes(memory)}, disk {gigabytes(disk)} free"
    if fits_disk:
        return Storage("disk", rest)
    return Storage("stream", f"needs about {gigabytes(size)}; {rest}")


def _fits_disk(size: int, folder: Path) -> bool:
    """Return whether a folder, existing or not, can be written to and has room for these bytes."""
    there = _existing(folder)
    return size <= DISK_SHARE * shutil.disk_usage(there).free and os.access(there, os.W_OK)


def _existing(folder: Path) -> Path:
    """Return a folder or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


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
            with suppress(images.BadImageError):
                height, width = source.read(row).shape[:2]
                sizes.append(int(np.prod(images.reduced_size(width, height, short_side))))
    known = [size for size in sizes if size]
    return int(np.mean(known) * len(source) * source.channels) if known else 0


def _is_readable(source: Source, row: int) -> bool:
    try:
        source.read(row)
    except images.BadImageError:
        return False
    return True


def build_store(
    table: Table,
    storage: Storage,
    *,
    reduction: Reduction,
    device: torch.device | None = None,
    num_workers: int | None = None,
    cache: Path | None = None,
    shared: bool = False,
) -> tuple[Store, dict[int, str]]:
    """Decode the N images of a table, on all cores.

    Args:
        table: the images.
        storage: where to keep them: gpu, memory or disk.
        reduction: how files are made smaller.
        device: the GPU, for the storage ``"gpu"``.
        num_workers: decoding processes; one for each usable core by default, 0 for none.
        cache: the folder for stores on disk; a store of the same files is reused.
        shared: other processes need the same images: one of them decodes onto the disk, whatever
            the storage, and all read them from there. Without room there, each one decodes.

    Returns:
        The store, and what is wrong with the images that cannot be read (row -> message); those
        have size 0 x 0 in the store.
    """
    if isinstance(table.source, Pixels):
        return _without_copy(table.source, storage, device), {}
    folder = cache or cache_folder()
    if storage.name == "disk":
        return _on_disk(table, storage, reduction, num_workers, folder)
    if shared and isinstance(table.source, Files):
        # The caller did not ask for the disk, so an error of the disk is no reason to stop.
        with suppress(OSError):
            store, errors = _on_disk(
                table, storage, reduction, num_workers, folder, if_it_fits=True
            )
            # For "memory" the mapped file serves: the system keeps one copy for all processes.
            pixels = store.pixels.to(device) if storage.name == "gpu" else store.pixels
            return replace(store, pixels=pixels), errors
    memory = Memory(estimated_bytes(table, reduction.short_side))
    starts, sizes, errors = decode_table(memory.add, table, reduction, num_workers)
    pixels = memory.pixels(table.source.channels)
    if storage.name == "gpu":
        pixels = pixels.to(device)
    return Store(pixels, starts, sizes, storage), errors


def _without_copy(source: Pixels, storage: Storage, device: torch.device | None) -> Store:
    """Return the store of images that are in memory already."""
    count, height, width, channels = source.pixels.shape
    pixels = torch.from_numpy(np.ascontiguousarray(source.pixels)).view(-1, channels)
    if storage.name == "gpu":
        pixels = pixels.to(device)
    else:
        storage = Storage("memory", "the images are in memory already")
    sizes = np.tile(np.array([height, width]), (count, 1))
    return Store(pixels, np.arange(count) * height * width, sizes, storage)


def _on_disk(
    table: Table,
    storage: Storage,
    reduction: Reduction,
    num_workers: int | None,
    cache: Path,
    *,
    if_it_fits: bool = False,
) -> tuple[Store, dict[int, str]]:
    """Return the store of a table from the cache folder, written there if it is not there yet.

    With ``if_it_fits`` it raises OSError if it is not there and there is no room for it.
    """
    folder = cache / "images" / fingerprint(table, reduction)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.json"
    with alone(index):
        found = _read_index(index, table)
        if found is None:
            # Checked under the lock: a store that exists needs no more room.
            if if_it_fits and not _fits_disk(estimated_bytes(table, reduction.short_side), folder):
                raise OSError(errno.ENOSPC, "no room for decoded images", str(folder))
            _write_store(index, table, reduction, num_workers)
            found = json.loads(index.read_text())
            _remove_leftovers(folder, found["pixels"])
        # Under the lock: afterwards another process may replace the file.
        with (folder / found["pixels"]).open("rb") as file:
            # A private map: torch needs memory it may write to; nothing written reaches the file.
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    channels = table.source.channels
    end = len(mapped) - len(mapped) % channels
    pixels = torch.frombuffer(mapped, dtype=torch.uint8, count=end).view(-1, channels)
    errors = {int(row): message for row, message in found["errors"].items()}
    store = Store(pixels, np.array(found["starts"]), np.array(found["sizes"]), storage)
    return store, errors


def _remove_leftovers(folder: Path, used: str) -> None:
    """Remove pixels that no index names, and temporary files of processes that were killed.

    Only old ones: on a file system without locks another process may be writing them.
    """
    for path in folder.glob("*pixels-*.bin*"):
        with suppress(OSError):
            if path.name != used and time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                path.unlink()


def _read_index(index: Path, table: Table) -> dict[str, Any] | None:
    """Return the index of a store; None if there is none, or it is damaged or outdated."""
    try:
        found: dict[str, Any] = json.loads(index.read_text())
        whole = (index.parent / found["pixels"]).stat().st_size == found["bytes"]
        whole = whole and len(found["starts"]) == len(found["sizes"]) == len(table)
        # An image that failed once, because of a disk or a network, must not be left out for ever.
        repaired = any(_is_readable(table.source, int(row)) for row in found["errors"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if whole and not repaired else None


def _write_store(index: Path, table: Table, reduction: Reduction, num_workers: int | None) -> None:
    """Decode all images into a file beside the index, and write the index.

    The order of the images in the file depends on timing, so an index is valid for its own file
    only: it names it, and is written last.
    """
    path = index.with_name(f"pixels-{uuid.uuid4().hex[:8]}.bin")
    with replacing(path) as temporary, temporary.open("wb") as file:
        sink = _appending_to(file.fileno())
        starts, sizes, errors = decode_table(sink, table, reduction, num_workers)
        file.truncate(os.fstat(file.fileno()).st_size + SLACK)
    found = {
        "pixels": path.name,
        "bytes": path.stat().st_size,
        "starts": starts.tolist(),
        "sizes": sizes.tolist(),
        "errors": errors,
    }
    with replacing(index) as temporary:
        temporary.write_text(json.dumps(found))


def _appending_to(file: int) -> Sink:
    """Return a sink that writes to an open file."""
    lock = threading.Lock()

    def append(given: memoryview) -> int:
        with lock:
            start, written = os.fstat(file).st_size, 0
            while written < len(given):
                written += os.write(file, given[written:])
        return start

    return append


def fingerprint(table: Table, reduction: Reduction) -> str:
    """Return a name for the decoded images of a table that changes when any file changes."""
    source = table.source
    if not isinstance(source, Files):
        raise ValueError(
            f"images must be files to be kept on disk; those of {table.name} are not. "
            "Keep them in memory."
        )
    digest = hashlib.sha256(f"{FORMAT} {reduction} {source.channels}".encode())
    for state in file_states(source):
        digest.update(state)
    return digest.hexdigest()[:24]


def file_states(source: Files) -> list[bytes]:
    """Return for each file a line that changes when it does: its path, size and time."""
    states = []
    for row in range(len(source)):
        file = source.file(row).absolute()
        try:
            status = file.stat()
            state = f" {status.st_size} {status.st_mtime_ns}\n"
        except OSError:
            state = " missing\n"
        states.append(os.fsencode(file) + state.encode())
    return states


Settings = tuple[Reduction, int, torch.device, Path | None]
"""What decoded images depend on beside their files: reduction, channels, device, cache."""


@dataclass
class _Cache:
    """Room for one store; with `shared` it is decoded onto the disk, for other processes."""

    shared: bool
    store: Store | None = None
    errors: dict[int, str] = field(default_factory=dict)  # row -> why it cannot be read
    rows: dict[bytes, int] = field(default_factory=dict)  # of each file when decoded: `file_states`
    settings: Settings | None = None
    keep: str = ""  # the storage that was asked for, perhaps "auto"

    def part(
        self, table: Table, states: Sequence[bytes], settings: Settings, keep: str
    ) -> tuple[Store, dict[int, str]] | None:
        """Return the store and the errors of a table if all its images are here, else None.

        For ``"auto"`` the images stay where they are: to choose again would count the memory that
        they use themselves as taken.
        """
        if self.store is None or settings != self.settings:
            return None
        storage = self.store.storage
        found = [self.rows.get(state, -1) for state in states]
        if keep not in (self.keep, storage.name) or -1 in found:
            return None
        errors = {at: self.errors[row] for at, row in enumerate(found) if row in self.errors}
        # An image that failed once, not because of the file, must not be left out for ever.
        if any(_is_readable(table.source, at) for at in errors):
            return None
        storage = storage if keep == "auto" else Storage(keep, "as asked")
        return replace(self.store.take(np.array(found, dtype=int)), storage=storage), errors

    def clear(self) -> None:
        """Release the store and its memory."""
        was_on_gpu = self.store is not None and self.store.pixels.is_cuda
        self.store = None
        if was_on_gpu:
            # Otherwise torch keeps the memory, and the GPU does not report it as free.
            torch.cuda.empty_cache()


# Each thread has its own: no other thread can replace the store.
_cache: ContextVar[_Cache | None] = ContextVar("_cache", default=None)


@contextmanager
def reuse_decoded_images(*, shared: bool = False) -> Iterator[None]:
    """Keep the decoded images of a pipeline for the pipelines that follow.

    Images of files are kept, those of one pipeline at a time: other files, changed files or another
    size replace them. They are released at the end. Inside another one it changes nothing.

    Args:
        shared: other processes on this machine need the same images. One of them decodes, into the
            cache folder, and all read them from there. Where that folder cannot be written to, or
            its disk has no room, each one decodes.
    """
    if _cache.get() is not None:
        yield
        return
    cache = _Cache(shared)
    token = _cache.set(cache)
    try:
        yield
    finally:
        _cache.reset(token)
        cache.clear()


def open_store(
    table: Table,
    keep: str,
    *,
    reduction: Reduction,
    device: torch.device,
    num_workers: int | None = None,
    cache: Path | None = None,
) -> tuple[Storage, Store | None, dict[int, str]]:
    """Return the decoded images of a table: reused ones, or decode them now by `build_store`.

    `keep` is gpu, memory, disk, stream, or auto, the first of these that they fit; `device` is
    where they will be used. For the other arguments see `build_store`.

    Returns:
        Where the images are; their store, None where they are not kept; and what is wrong with
        those that cannot be read (row -> message).
    """
    source, room, states = table.source, None, []
    settings = (reduction, source.channels, device, cache)
    if isinstance(source, Files) and keep != "stream" and (room := _cache.get()) is not None:
        states = file_states(source)
        found = room.part(table, states, settings, keep)
        if found is not None:
            return found[0].storage, *found
        # First, because the memory it uses decides where the others fit.
        room.clear()
    if keep == "auto":
        storage = choose_storage(table, reduction.short_side, device, cache)
    else:
        storage = Storage(keep, "as asked")
    if storage.name == "stream" and not isinstance(source, Pixels):
        return storage, None, {}
    store, errors = build_store(
        table,
        storage,
        reduction=reduction,
        device=device,
        num_workers=num_workers,
        cache=cache,
        shared=room is not None and room.shared,
    )
    if room is not None:
        room.store, room.errors, room.settings, room.keep = store, errors, settings, keep
        room.rows = {state: row for row, state in enumerate(states)}
    return store.storage, store, errors
