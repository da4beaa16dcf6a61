"""Segments: items that were added together, their files, and their thumbnails.

Most thumbnails are JPEG files. Tiny images are kept as pixels, because encoding would take long
compared with their network, and become PNG when they are shown. Pillow is imported when it is used.

Dimensions: b items of a block, n items of a segment, D embedding size.
"""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.files import replacing
from weiss._base.images import encode_png
from weiss.catalogue.index_folder import IndexFolder, Manifest, Segment
from weiss.catalogue.records import Item, damaged

KINDS = ("items", "vectors", "digests", "thumbnails", "places")
"""The files of a segment."""
THUMBNAIL_SIDE, THUMBNAIL_QUALITY = 160, 85
"""The longer side is reduced to this, never enlarged; and the JPEG quality."""
TINY = 4096
"""Bytes up to which an image is kept as pixels."""


def make_thumbnail(pixels: Array) -> tuple[bytes, int, int]:
    """Return the thumbnail of an image, uint8 ``(height, width, 1 or 3)``, as bytes to keep.

    Also their height and width if they are pixels, 0 and 0 for a JPEG file.
    """
    height, width, channels = pixels.shape
    if pixels.nbytes <= TINY and max(height, width) <= THUMBNAIL_SIDE:
        return pixels.tobytes(), height, width
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    if max(height, width) > THUMBNAIL_SIDE:
        scale = THUMBNAIL_SIDE / max(height, width)
        size = max(round(width * scale), 1), max(round(height * scale), 1)
        image = image.resize(size, Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=THUMBNAIL_QUALITY)
    return file.getvalue(), 0, 0


def thumbnail_file(kept: bytes, height: int, width: int) -> bytes:
    """Return a result of `make_thumbnail` as the bytes of a PNG or JPEG file."""
    if not height:
        return kept
    return encode_png(np.frombuffer(kept, dtype=np.uint8).reshape(height, width, -1))


def media_type(height: int) -> str:
    """Return the media type of what `thumbnail_file` returns."""
    return "image/png" if height else "image/jpeg"


@dataclass(frozen=True)
class Block:
    """Embedded items, which are written to a file of their own until the segment is complete.

    Attributes:
        rows: ``(b,)`` int64, their rows in the table.
        vectors: float32 ``(b, D)`` of unit length.
        thumbnails: uint8, one thumbnail after the other.
        places: int64 ``(b, 4)``: first byte and number of bytes of each thumbnail; height and width
            if it is pixels, else zeros.
        digests: uint8 ``(b, 16)``, checksums of the images' content.
        errors: row of the table -> why it could not be embedded.
    """

    rows: Array
    vectors: Array
    thumbnails: Array
    places: Array
    digests: Array
    errors: dict[int, str]

    def write(self, path: Path) -> None:
        """Write the block to a file, atomically."""
        errors = json.dumps({str(row): why for row, why in self.errors.items()})
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                rows=self.rows,
                vectors=self.vectors,
                thumbnails=self.thumbnails,
                places=self.places,
                digests=self.digests,
                errors=np.frombuffer(errors.encode(), dtype=np.uint8),
            )

    @classmethod
    def read(cls, path: Path) -> "Block":
        """Read a block that `write` wrote."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        errors = json.loads(arrays.pop("errors").tobytes())
        return cls(errors={int(row): why for row, why in errors.items()}, **arrays)

    @staticmethod
    def summary(path: Path) -> tuple[int, dict[int, str]]:
        """Return the number of items in a file, and its errors, without reading vectors."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            errors = json.loads(kept["errors"].tobytes())
            return len(kept["rows"]), {int(row): why for row, why in errors.items()}


def write_segment(
    folder: IndexFolder,
    first: int,
    blocks: Iterable[Block],
    count: int,
    embedding_size: int,
    names: Sequence[str],
    classes: Sequence[tuple[str, ...]],
) -> Segment:
    """Write the files of a segment of ``count`` items; return the entry for the manifest.

    Blocks refer by their rows to ``names`` and ``classes``, which have all rows of the table.
    """
    segment = Segment(first, count, *(folder.new_name(kind) for kind in KINDS))
    places, rows, digests = [], [], []
    with (
        replacing(folder.path(segment.thumbnails)) as pictures_path,
        pictures_path.open("wb") as pictures,
        replacing(folder.path(segment.vectors)) as vectors_path,
        vectors_path.open("wb") as vectors,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, embedding_size)}
        np.lib.format.write_array_header_1_0(vectors, header)
        for block in blocks:
            moved = block.places.copy()
            moved[:, 0] += pictures.tell()
            places.append(moved)
            rows.append(block.rows)
            digests.append(block.digests)
            pictures.write(block.thumbnails.data)
            vectors.write(np.ascontiguousarray(block.vectors, dtype="<f4").data)
    with replacing(folder.path(segment.places)) as path, path.open("wb") as file:
        np.save(file, np.concatenate(places), allow_pickle=False)
    with replacing(folder.path(segment.digests)) as path, path.open("wb") as file:
        np.save(file, np.concatenate(digests), allow_pickle=False)
    rows_n = np.concatenate(rows)
    known = sorted({name for row in rows_n for name in classes[row]})
    number = {name: at for at, name in enumerate(known)}
    words = {
        "classes": known,
        "names": [names[row] for row in rows_n],
        "labels": [[number[name] for name in classes[row]] for row in rows_n],
    }
    with replacing(folder.path(segment.items)) as path:
        path.write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    return segment


class OpenSegment:
    """A segment with open files: it can be read even after they were deleted.

    Args:
        folder: the index folder.
        segment: the entry of the manifest.
        embedding_size: D.

    Attributes:
        first: the id of its first item.
        vectors: float32 ``(n, D)``, a memory map.
        digests: uint8 ``(n, 16)``, checksums of the images' content, a memory map.
        names: the names of its items.
        class_names: its classes.
        labels: for each item the positions of its classes in ``class_names``.
    """

    def __init__(self, folder: IndexFolder, segment: Segment, embedding_size: int) -> None:
        self.first, self.count = segment.first, segment.count
        words = _read_items(folder.path(segment.items), segment)
        self.names: list[str] = words["names"]
        self.class_names: list[str] = words["classes"]
        self.labels: list[list[int]] = words["labels"]
        self.digests = _array(folder.path(segment.digests), (segment.count, 16), "u1")
        self.vectors = _array(folder.path(segment.vectors), (segment.count, embedding_size), "f4")
        self._places = _array(folder.path(segment.places), (segment.count, 4), "i8")
        self._bytes: Array = np.zeros(0, dtype=np.uint8)
        path = folder.path(segment.thumbnails)
        if path.stat().st_size:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")

    def item(self, row: int) -> Item:
        """Return the item of a row."""
        classes = tuple(self.class_names[label] for label in self.labels[row])
        return Item(self.first + row, self.names[row], classes)

    def thumbnail(self, row: int) -> bytes:
        """Return a thumbnail as the bytes of a PNG or JPEG file."""
        start, length, height, width = (int(number) for number in self._places[row])
        kept = self._bytes[start : start + length].tobytes()
        if start < 0 or len(kept) != length or (height and length % (height * width)):
            raise damaged(f"thumbnail {row}", "it lies outside of its file")
        return thumbnail_file(kept, height, width)

    def thumbnail_type(self, row: int) -> str:
        """Return the media type of a thumbnail."""
        return media_type(int(self._places[row, 2]))


def open_segments(folder: IndexFolder, manifest: Manifest) -> tuple[list[OpenSegment], Array]:
    """Return all segments of an index by ascending ids, and the sorted removed ids."""
    size = int(manifest.model["embedding_size"])
    segments = [OpenSegment(folder, segment, size) for segment in manifest.segments]
    removed = np.zeros(0, dtype=np.int64)
    if manifest.removed is not None:
        removed = np.sort(_array(folder.path(manifest.removed), None, "i8"))
    return segments, removed


def alive_rows(segment: OpenSegment, removed: Array) -> Array:
    """Return the rows of a segment that are not removed."""
    ids = np.arange(segment.first, segment.first + segment.count)
    return np.flatnonzero(~np.isin(ids, removed))


def ids_by_class(segments: Sequence[OpenSegment], removed: Array) -> dict[str, Array]:
    """Return the sorted ids of each class that has items, classes by name."""
    by_class: dict[str, list[int]] = {}
    for segment in segments:
        for row in alive_rows(segment, removed).tolist():
            for label in segment.labels[row]:
                by_class.setdefault(segment.class_names[label], []).append(segment.first + row)
    return {name: np.array(by_class[name], dtype=np.int64) for name in sorted(by_class)}


def all_vectors(segments: Sequence[OpenSegment], removed: Array) -> tuple[Array, Array]:
    """Return ids ``(n,)`` and vectors ``(n, D)`` of all items that are not removed."""
    ids, vectors = [], []
    for segment in segments:
        rows = alive_rows(segment, removed)
        ids.append(segment.first + rows.astype(np.int64))
        whole = len(rows) == segment.count
        vectors.append(segment.vectors if whole else segment.vectors[rows])
    if len(vectors) == 1:
        return ids[0], vectors[0]
    return np.concatenate(ids), np.concatenate(vectors)


def _read_items(path: Path, segment: Segment) -> dict[str, Any]:
    try:
        words: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lengths = {len(words[key]) for key in ("names", "labels")}
        highest = max((max(each, default=-1) for each in words["labels"]), default=-1)
        fits = lengths == {segment.count} and highest < len(words["classes"])
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path.name, error) from error
    if not fits:
        raise damaged(path.name, "it does not fit the manifest")
    return words


def _array(path: Path, shape: tuple[int, ...] | None, kind: str) -> Array:
    """Map an array from a file, and check its shape and type."""
    try:
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise damaged(path.name, error) from error
    if found.dtype != np.dtype(f"<{kind}") or (shape is not None and found.shape != shape):
        why = f"it must hold {kind} of shape {shape}; it holds {found.dtype} of {found.shape}"
        raise damaged(path.name, why)
    return found
