"""Digests of content: a run recognises its data by them, and copies of a photo are found.

Dimensions: N items.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.decoding import usable_cores
from weiss.data.sources import Files, HubImages, Pixels, Source, Vectors

SIZE = 16
"""Bytes of a digest."""
TOGETHER = 64
"""Images that a thread reads for one request."""


def digest_of_source(source: Source) -> str:
    """Return a digest of every byte of every item, in order; not of names, folders and times.

    Of a file or a row of a Hugging Face data set it is the encoded bytes, so that another version
    of a decoder changes nothing. Every file is read, also if its decoded image is in a cache; that
    takes 2 to 4 % of the time of decoding it. A process reads a file again only if it has changed.
    """
    digest = hashlib.blake2b(digest_size=SIZE)
    if (digests := _digests_of_encoded(source)) is not None:
        digest.update(_joined(digests, len(source)))
        return digest.hexdigest()
    arrays: Iterable[Array] = map(source.read, range(len(source)))
    if isinstance(source, (Pixels, Vectors)):
        arrays = [source.pixels if isinstance(source, Pixels) else source.vectors]
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def digests_of_items(source: Source) -> Array:
    """Return ``(N, 16)`` uint8, a digest of each item by which it is recognised anywhere."""
    if (digests := _digests_of_encoded(source)) is not None:
        joined = _joined(digests, len(source))
    else:
        joined = b"".join(_of_array(source.read(item)) for item in range(len(source)))
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, SIZE)


def in_several_classes(digests: Array, labels: Array) -> list[Array]:
    """Return the rows of each content that items of different classes have.

    Args:
        digests: ``(N, 16)`` uint8, of the content of the items.
        labels: ``(N,)`` their classes; items of -1 have none and are ignored.

    Returns:
        for each such content the ascending rows of all its items, in the order of the first ones.
    """
    rows = np.flatnonzero(labels >= 0)
    words = np.ascontiguousarray(digests[rows]).view(np.uint64)
    order = np.lexsort((labels[rows], *words.T))
    rows, words = rows[order], words[order]
    is_next = (words[1:] != words[:-1]).any(axis=1)
    content = np.cumsum(np.concatenate([[0], is_next])[: len(rows)])
    # Items of one content are sorted by class: two neighbours differ if any two do.
    found = np.unique(content[1:][~is_next & (labels[rows[1:]] != labels[rows[:-1]])])
    ends = (np.searchsorted(content, found, side) for side in ("left", "right"))
    groups = [np.sort(rows[first:end]) for first, end in zip(*ends, strict=True)]
    return sorted(groups, key=lambda group: int(group[0]))


def _joined(digests: Callable[[Sequence[int]], bytes], count: int) -> bytes:
    parts = [range(i, min(i + TOGETHER, count)) for i in range(0, count, TOGETHER)]
    with ThreadPoolExecutor(usable_cores(), "weiss-digest") as threads:
        return b"".join(threads.map(digests, parts))


def _of_array(array: Array) -> bytes:
    return _of_bytes(f"{array.dtype} {array.shape}\n".encode() + array.tobytes())


def _digests_of_encoded(source: Source) -> Callable[[Sequence[int]], bytes] | None:
    """Return what computes the digests of some items; None for a source of decoded ones."""
    if isinstance(source, Files):
        return lambda rows: b"".join(_of_path(source.file(row)) for row in rows)
    if isinstance(source, HubImages):
        kind: Any = getattr(source.dataset, "features", {}).get(source.column)
        if type(kind).__name__ == "Image":
            only = source.dataset.with_format(None).select_columns([source.column])
            return partial(
                _of_rows, source, only.cast_column(source.column, type(kind)(decode=False))
            )
    return None


def _of_rows(source: HubImages, encoded: Any, rows: Sequence[int]) -> bytes:
    found = encoded[[int(source.items[row]) for row in rows]][source.column]
    return b"".join(map(_of_row, found))


def _of_row(image: dict[str, Any] | None) -> bytes:
    """Return the digest of the bytes of a row, or of its file; of an address, that of its text."""
    if image is None:
        return _of_bytes(b"")
    if image["bytes"] is not None:
        return _of_bytes(image["bytes"])
    path = Path(image["path"])
    return _of_path(path) if path.is_file() else _of_bytes(image["path"].encode())


def _of_path(path: Path) -> bytes:
    state = os.stat(path)
    return _of_file(path, state.st_size, state.st_mtime_ns)


@cache
def _of_file(path: Path, size: int, changed: int) -> bytes:
    """Return the digest of a file, which is read again if its size or its time has changed."""
    return _of_bytes(path.read_bytes())


def _of_bytes(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=SIZE).digest()
