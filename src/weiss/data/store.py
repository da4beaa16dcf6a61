"""Decoded images as uint8, one after the other in one block of memory, each at its own size.

Nothing is padded, and nothing is cropped before it is used. With the shorter side reduced to 256,
CUB-200-2011 takes 3 GB and Stanford Online Products about 25 GB. `weiss.data.cache` decides where
the block is.
"""

import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks, images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.decoding import CHUNK, Decoders, Sink, collect, usable_cores
from weiss._base.images import Reduction
from weiss._base.progress import track
from weiss.data.sources import Files, Source
from weiss.data.table import Table

SLACK = 2**20
"""Unused bytes behind the last image, so that a window of any width may be read there."""


@dataclass(frozen=True)
class Storage:
    """Where decoded images are, and why there."""

    name: str  # "gpu", "memory", "disk" or "stream" (nowhere: decoded each time)
    why: str  # to be shown


@dataclass(frozen=True)
class Store:
    """The decoded images of a table."""

    pixels: Tensor  # uint8 (P, c), all images one after the other, row by row
    starts: Array  # (N,) int64, the first pixel of each image
    sizes: Array  # (N, 2) int64, height and width of each
    storage: Storage  # where the pixels are

    def num_pixels(self) -> Array:
        """Return ``(N,)``, how many pixels each image has."""
        return np.asarray(self.sizes.prod(axis=1))

    def take(self, items: Array) -> "Store":
        """Return the store of these images only; the pixels stay where they are."""
        return replace(self, starts=self.starts[items], sizes=self.sizes[items])

    def gather(self, items: Array) -> "Store":
        """Return a store with copies of these images only, in memory that a GPU copies fast."""
        part = self.take(items)
        flat = self.pixels.numpy()
        spans = zip(part.starts.tolist(), part.num_pixels().tolist(), strict=True)
        pieces = [flat[start : start + length] for start, length in spans]
        return _packed(pieces, part.sizes, self.storage)


STREAMED = Storage("stream", "")


def store_of(decoded: Sequence[Array]) -> Store:
    """Return a store of decoded images, each uint8 ``(height, width, c)``."""
    pieces = [np.ascontiguousarray(pixels).reshape(-1, pixels.shape[2]) for pixels in decoded]
    return _packed(pieces, np.array([pixels.shape[:2] for pixels in decoded]), STREAMED)


def _packed(pieces: list[Array], sizes: Array, storage: Storage) -> Store:
    """Return a store of images, each ``(height * width, c)``, one after the other."""
    lengths = sizes.prod(axis=1)
    pixels = _joined([piece.ravel() for piece in pieces], pieces[0].shape[1])
    return Store(pixels, np.cumsum(lengths) - lengths, sizes, storage)


def begin_store(decoders: Decoders, paths: Sequence[Path], channels: int) -> Callable[[], Store]:
    """Begin to decode files; the function returned waits for them and returns their store."""
    pieces: list[Array] = []
    taken, lock = 0, threading.Lock()

    def add(given: memoryview) -> int:
        nonlocal taken
        piece = np.array(given, dtype=np.uint8)
        with lock:
            pieces.append(piece)
            taken += len(piece)
            return taken - len(piece)

    chunks = decoders.submit_all(paths, add)

    def finish() -> Store:
        decoded = collect(chunks)
        if decoded.errors:
            raise images.BadImageError(
                "images must not change during a run; these changed: "
                f"{some(list(decoded.errors.values()))}. Restore them and resume."
            )
        starts = np.array(decoded.starts) // channels
        sizes = np.array(decoded.sizes)
        return Store(_joined(pieces, channels), starts, sizes, STREAMED)

    return finish


def _joined(pieces: list[Array], channels: int) -> Tensor:
    """Return pieces of bytes as ``(P, channels)``, with unused bytes behind them.

    In one call that releases Python's lock: a loop would block the thread that trains.
    """
    end = sum(len(piece) for piece in pieces)
    joined = torch.empty(end + SLACK, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    np.concatenate(pieces, out=joined[:end].numpy())
    return joined[: end + SLACK - (end + SLACK) % channels].view(-1, channels)


class Memory:
    """A sink: bytes that many threads add, in one block of memory.

    Args:
        expected: about how many there will be. Twice that much address space is reserved at once;
            memory is used as it is written to.
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
        """Return all bytes as ``(P, channels)``, with unused ones behind the last image."""
        end = self._taken + SLACK // 2
        return torch.from_numpy(self._bytes[: end - end % channels]).view(-1, channels)


def _space(size: int) -> Array:
    """Return bytes that use memory only as they are written to."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapped, dtype=np.uint8)


class BadImagesError(ValueError):
    """Some images of a table cannot be read; ``errors`` maps their rows to what is wrong."""

    def __init__(self, errors: dict[int, str], num_images: int) -> None:
        self.errors = errors
        listed = "\n  ".join(list(errors.values())[:10])
        more = f"\n  and {len(errors) - 10:,} more" if len(errors) > 10 else ""
        super().__init__(
            f"every image must be readable; {len(errors):,} of {num_images:,} are not:\n  {listed}"
            f"{more}\nReplace or remove them, or leave them out with skip_bad=True (on the command "
            "line: --skip-bad)."
        )


def workers_for(num_images: int, asked: int | None) -> int:
    """Return how many decoding processes to start: none for a few images."""
    if asked is not None:
        return asked if asked == 0 else checks.count("num_workers", asked, "decoding")
    return min(usable_cores(), num_images // (4 * CHUNK))


def decode_table(
    sink: Sink,
    table: Table,
    reduction: Reduction,
    num_workers: int | None,
    what: str = "decoding",
) -> tuple[Array, Array, dict[int, str]]:
    """Decode the N images of a table into a sink, with a progress bar.

    Returns:
        First pixels ``(N,)``, sizes ``(N, 2)`` and what is wrong with the images that cannot be
        read (row -> message); those have start -1 and size 0 x 0.
    """
    source, channels = table.source, table.source.channels
    what = f"{what} {table.name}"
    num_workers = workers_for(len(source), num_workers)
    if isinstance(source, Files) and num_workers:
        files = [source.file(row) for row in range(len(source))]
        with Decoders(num_workers, channels=channels, reduction=reduction) as decoders:
            chunks = ((CHUNK, chunk) for chunk in decoders.submit_all(files, sink))
            decoded = collect(track(chunks, len(files), what))
        # Reshaped for a table without items.
        sizes = np.array(decoded.sizes, dtype=np.int64).reshape(-1, 2)
        return np.array(decoded.starts, dtype=np.int64) // channels, sizes, decoded.errors
    starts, sizes = np.full(len(source), -1), np.zeros((len(source), 2), dtype=np.int64)
    errors = {}
    for row in track(((1, row) for row in range(len(source))), len(source), what):
        try:
            pixels = _decoded(source, row, reduction)
        except images.BadImageError as error:
            errors[row] = str(error)
            continue
        sizes[row] = pixels.shape[:2]
        starts[row] = sink(np.ascontiguousarray(pixels).data.cast("B")) // channels
    return starts, sizes, errors


def _decoded(source: Source, row: int, reduction: Reduction) -> Array:
    """Return an image of a source, reduced; scaled decoding is for files alone."""
    if isinstance(source, Files):
        side, scaled = reduction.short_side, reduction.scaled
        return images.decode(source.file(row), source.channels, side, scaled=scaled)
    return images.reduced(source.read(row), reduction.short_side)
