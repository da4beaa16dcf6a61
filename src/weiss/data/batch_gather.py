"""The images of one batch brought together, in memory that a GPU copies fast."""

import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from weiss._base import images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.decoding import Decoders
from weiss.data.cache_choice import Place
from weiss.data.store import CHUNK, SLACK, Store

T = TypeVar("T")


class Coming:
    """A batch that is being decoded, straight into memory that a GPU copies fast.

    Args:
        decoders: who decodes.
        paths: the images.
        channels: of the images.
    """

    def __init__(self, decoders: Decoders, paths: list[Path], channels: int) -> None:
        self._channels, self._lock = channels, threading.Lock()
        self._pieces: list[Array] = []
        self._taken = 0
        self._parts = [
            decoders.submit(paths[i : i + CHUNK], self._add) for i in range(0, len(paths), CHUNK)
        ]

    def _add(self, given: memoryview) -> int:
        piece = np.array(given, dtype=np.uint8)
        with self._lock:
            start = self._taken
            self._taken += len(piece)
            self._pieces.append(piece)
        return start

    def store(self) -> Store:
        """Wait for all of them."""
        decoded = [part.result() for part in self._parts]
        broken = [message for part in decoded for message in part.errors.values()]
        if broken:
            raise images.BadImageError(
                f"images must stay as they were when the run began; these changed: {some(broken)}. "
                "Restore them and resume."
            )
        starts = np.array([start for part in decoded for start in part.starts]) // self._channels
        sizes = np.array([size for part in decoded for size in part.sizes])
        return Store(_joined(self._pieces, self._channels), starts, sizes, Place("stream", ""))


def begun_ahead(jobs: Iterator[T], ahead: int) -> Iterator[T]:
    """Pass jobs on, each made this many before it is asked for."""
    waiting = deque(islice(jobs, ahead))
    while waiting:
        waiting.extend(islice(jobs, 1))
        yield waiting.popleft()


def _joined(pieces: list[Array], channels: int) -> Tensor:
    """Return pieces of bytes as ``(P, channels)``, with some to spare behind them.

    In one call that leaves Python's lock alone: a loop would make the training thread wait.
    """
    end = sum(len(piece) for piece in pieces)
    pinned = torch.cuda.is_available()
    joined = torch.empty(end + SLACK, dtype=torch.uint8, pin_memory=pinned)
    np.concatenate(pieces, out=joined[:end].numpy())
    return joined[: end + SLACK - (end + SLACK) % channels].view(-1, channels)


def gather(store: Store, items: Array) -> Store:
    """Return a store of these images alone, one after the other in memory a GPU copies fast."""
    part = store.take(items)
    lengths = part.num_pixels()
    channels = store.pixels.shape[1]
    flat = store.pixels.view(-1).numpy()
    pieces = [
        flat[start * channels : (start + length) * channels]
        for start, length in zip(part.starts.tolist(), lengths.tolist(), strict=True)
    ]
    starts = np.cumsum(lengths) - lengths
    return Store(_joined(pieces, channels), starts, part.sizes, store.place)


def laid_out(decoded: list[Array]) -> Store:
    """Return a store of some decoded images."""
    sizes = np.array([pixels.shape[:2] for pixels in decoded])
    lengths = sizes.prod(axis=1)
    channels = decoded[0].shape[2]
    flat = _joined([np.ascontiguousarray(pixels).ravel() for pixels in decoded], channels)
    return Store(flat, np.cumsum(lengths) - lengths, sizes, Place("stream", ""))
