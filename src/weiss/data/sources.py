"""Where the items of a table come from: files, arrays, vectors, a Hugging Face data set.

A source is a sequence of items with names. It reads one as an image, uint8
``(height, width, channels)``; it neither resizes nor caches.
"""
# ruff: noqa: D102, D105 - `Source` documents the methods of all of them.

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from weiss._base import images
from weiss._base.arrays import Array


class Source(Protocol):
    """The interface of a source."""

    channels: int
    """3 for RGB, 1 for grey."""

    def __len__(self) -> int:
        """Return the number of items."""

    def name(self, item: int) -> str:
        """Return the name of an item for messages: its path, or its number."""

    def read(self, item: int) -> Array:
        """Return an item as uint8 ``(height, width, channels)``, upright."""

    def take(self, items: Array) -> "Source":
        """Return the source of these items only, in this order."""


class Files:
    """Image files below a folder.

    Args:
        root: the folder.
        paths: paths relative to it (or absolute), one an item.
        channels: 3 reads everything as RGB, 1 as grey.
    """

    def __init__(self, root: str | Path, paths: Sequence[str] | Array, channels: int = 3) -> None:
        self.root = Path(root)
        self.paths = np.asarray(paths, dtype=object)
        self.channels = channels

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, item: int) -> str:
        return str(self.paths[item])

    def file(self, item: int) -> Path:
        """Return the path of the file."""
        return self.root / str(self.paths[item])

    def read(self, item: int) -> Array:
        return images.decode(self.file(item), channels=self.channels)

    def take(self, items: Array) -> "Files":
        return Files(self.root, self.paths[items], self.channels)


class Pixels:
    """Images in memory.

    Args:
        pixels: uint8 ``(N, H, W)`` grey or ``(N, H, W, C)`` with C of 1 or 3.
        names: of the images; ``image 0`` and so on by default.
    """

    def __init__(self, pixels: Array, names: Sequence[str] | None = None) -> None:
        pixels = pixels[..., None] if pixels.ndim == 3 else pixels
        is_batch = pixels.ndim == 4 and pixels.shape[3] in (1, 3) and 0 not in pixels.shape[1:]
        if pixels.dtype != np.uint8 or not is_batch:
            raise ValueError(
                "images must be uint8 of shape (N, height, width) or (N, height, width, 1 or 3); "
                f"got {pixels.dtype} of shape {pixels.shape}. Scale to 0..255 and move the "
                "channels last."
            )
        self.pixels = pixels
        self.names = None if names is None else np.asarray(names, dtype=object)
        self.channels = int(pixels.shape[3])

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, item: int) -> str:
        return f"image {item}" if self.names is None else str(self.names[item])

    def read(self, item: int) -> Array:
        return cast(Array, self.pixels[item])

    def take(self, items: Array) -> "Pixels":
        return Pixels(self.pixels[items], [self.name(item) for item in items])


class Vectors:
    """Precomputed vectors, for the backbone ``features``.

    Args:
        vectors: floating point ``(N, F)``.
    """

    channels = 0

    def __init__(self, vectors: Array) -> None:
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise ValueError(
                f"vectors must be floating point of shape (N, features); got {vectors.dtype} of "
                f"shape {vectors.shape}. Pass one row an item."
            )
        rows = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(rows):
            raise ValueError(
                f"vectors must be finite; {len(rows)} rows are not, the first is row {rows[0]}. "
                "Remove them or compute them again."
            )
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def name(self, item: int) -> str:
        return f"vector {item}"

    def read(self, item: int) -> Array:
        raise TypeError("vectors are no images; use the backbone 'features' for them")

    def take(self, items: Array) -> "Vectors":
        return Vectors(self.vectors[items])


class HubImages:
    """The image column of a Hugging Face data set.

    Args:
        dataset: a ``datasets.Dataset``.
        column: the name of its image column.
        items: which rows; all by default.
    """

    channels = 3

    def __init__(self, dataset: Any, column: str, items: Array | None = None) -> None:
        self.dataset = dataset
        self.column = column
        self.items = np.arange(len(dataset)) if items is None else items

    def __len__(self) -> int:
        return len(self.items)

    def name(self, item: int) -> str:
        return f"row {self.items[item]}"

    def read(self, item: int) -> Array:
        try:
            image = self.dataset[int(self.items[item])][self.column]
            return images.upright(image, self.channels)
        # The library and its decoders raise many kinds of errors.
        except Exception as error:
            raise images.BadImageError(f"{self.name(item)}: cannot be decoded ({error})") from error

    def take(self, items: Array) -> "HubImages":
        return HubImages(self.dataset, self.column, self.items[items])
