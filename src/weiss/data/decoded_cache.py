"""Decoded images that outlive their pipeline, for whoever trains many runs on the same data.

A comparison builds a pipeline for each of its runs, nearly always on the same files. Inside
`stores_kept` the decoded images of the last one stay, and the next one that wants these files, or
some of them, as the test set of an ensemble, finds them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from weiss.data.cache_choice import Place, choose_place, readable
from weiss.data.sources import Files, Pixels
from weiss.data.store import Store, build_store, file_states
from weiss.data.table import Table

Key = tuple[int | None, int, torch.device, Path | None]
"""What decoded images depend on beside their files: shorter side, channels, device, cache."""


@dataclass(frozen=True)
class _Kept:
    """A store that stays.

    Args:
        store: N images, those that cannot be read among them.
        errors: what is wrong with these: row -> message.
        rows: for each file as it was when decoded (`file_states`) its row.
        key: what else the pixels depend on.
        keep: the place that was asked for, perhaps ``"auto"``.
    """

    store: Store
    errors: dict[int, str]
    rows: dict[bytes, int]
    key: Key
    keep: str

    def part(
        self, table: Table, states: Sequence[bytes], key: Key, keep: str
    ) -> tuple[Store, dict[int, str]] | None:
        """Return the store and the errors of a table if its images are all here, else None.

        Args:
            table: n images.
            states: n, what its files are now.
            key: what else is asked for.
            keep: the place. Images that were put where they fit are there for whoever asks for
                that again: to choose anew would count the room they take themselves as taken.
        """
        place = self.store.place
        if key != self.key or keep not in (self.keep, place.name):
            return None
        found = [self.rows.get(state, -1) for state in states]
        if -1 in found:
            return None
        errors = {at: self.errors[row] for at, row in enumerate(found) if row in self.errors}
        # What failed once, and not because of the file, must not be left out for ever.
        if any(readable(table.source, at) for at in errors):
            return None
        place = place if keep == "auto" else Place(keep, "as asked")
        return replace(self.store.take(np.array(found, dtype=int)), place=place), errors


@dataclass
class _Shelf:
    """Room for one store.

    Args:
        shared: decode onto the disk, where other processes find it.
        kept: what stands there.
    """

    shared: bool
    kept: _Kept | None = None

    def clear(self) -> None:
        """Let go of the store, and of the room that it takes."""
        was_on_gpu = self.kept is not None and self.kept.store.pixels.is_cuda
        self.kept = None
        if was_on_gpu:
            # To torch it is free now; to whoever asks the GPU how much is free it is not yet.
            torch.cuda.empty_cache()


# Of this context, and so of this thread: nobody else can replace a store in between.
_shelf: ContextVar[_Shelf | None] = ContextVar("_shelf", default=None)


@contextmanager
def stores_kept(*, shared: bool = False) -> Iterator[None]:
    """Keep the decoded images of a pipeline for those that follow.

    Images of files are kept, those of one pipeline at a time: other files, files that have changed
    or another size replace them. They go at the end. Inside of another one it changes nothing.

    Args:
        shared: other processes on this machine want the same images. One of them decodes, into the
            cache folder, and each takes them from there to where it keeps them. Where that folder
            cannot be written to, or its disk has no room, each decodes for itself.
    """
    if _shelf.get() is not None:
        yield
        return
    shelf = _Shelf(shared)
    token = _shelf.set(shelf)
    try:
        yield
    finally:
        _shelf.reset(token)
        shelf.clear()


def open_store(
    table: Table,
    keep: str,
    *,
    short_side: int | None,
    device: torch.device,
    num_workers: int | None = None,
    cache: Path | None = None,
) -> tuple[Place, Store | None, dict[int, str]]:
    """Return the decoded images of a table: those that were kept, or decode them now.

    Args:
        table: the images; N of them.
        keep: gpu, memory, disk, stream, or auto, the first of these that they fit.
        short_side: reduce the shorter side of larger images to this; None keeps them.
        device: where they will be used.
        num_workers: decoding processes, as `build_store` takes it.
        cache: the folder for stores on disk.

    Returns:
        Where the images are; the store of N images, None where they are kept nowhere; and what is
        wrong with those that cannot be read (row -> message).
    """
    decode = partial(_decode, table, keep, short_side, device, num_workers, cache)
    shelf = _shelf.get()
    if shelf is None or keep == "stream" or not isinstance(table.source, Files):
        return decode()
    states = file_states(table.source)
    key = (short_side, table.source.channels, device, cache)
    found = None if shelf.kept is None else shelf.kept.part(table, states, key, keep)
    if found is not None:
        return found[0].place, *found
    # First of all, for the room it takes decides where others fit.
    shelf.clear()
    place, store, errors = decode(shared=shelf.shared)
    if store is not None:
        rows = {state: row for row, state in enumerate(states)}
        shelf.kept = _Kept(store, errors, rows, key, keep)
    return place, store, errors


def _decode(
    table: Table,
    keep: str,
    short_side: int | None,
    device: torch.device,
    num_workers: int | None,
    cache: Path | None,
    shared: bool = False,
) -> tuple[Place, Store | None, dict[int, str]]:
    """Choose a place if none is given and decode; see `open_store`."""
    if keep == "auto":
        place = choose_place(table, short_side, device, cache)
    else:
        place = Place(keep, "as asked")
    if place.name == "stream" and not isinstance(table.source, Pixels):
        return place, None, {}
    store, errors = build_store(
        table,
        place,
        short_side=short_side,
        device=device,
        num_workers=num_workers,
        cache=cache,
        shared=shared,
    )
    return store.place, store, errors
