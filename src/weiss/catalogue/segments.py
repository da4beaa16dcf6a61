"""Segments: items that were added together, their files, and their thumbnails.

Items that are removed leave the files: their segment is written anew without them. Many small
segments become one, so that an index of n items has at most log2(n) + 1 of them (`compacted`).

Most thumbnails are JPEG files. Tiny images are kept as pixels, because encoding would take long
compared with their network, and become PNG when they are shown. Pillow is imported when it is used.

Dimensions: b items of a block, n items of a segment, D embedding size.
"""

import gc
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
)

from weiss._base.arrays import Array
from weiss._base.files import replacing
from weiss._base.images import encode_png
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import Manifest, Segment, first_error
from weiss.catalogue.open_file import OpenFile
from weiss.catalogue.records import Item, UnknownItemError, damaged, printable, shown
from weiss.data.list_columns import MOST_DIGITS, Columns, Value

KINDS = ("items", "vectors", "digests", "thumbnails", "places")
"""The files of a segment."""
THUMBNAIL_SIDE, THUMBNAIL_QUALITY = 160, 85
"""The longer side is reduced to this, never enlarged; and the JPEG quality."""
ROWS_AT_ONCE = 2048
"""Items whose thumbnails are in memory while a segment is written anew."""
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

    def counted_from(self, first: int) -> "Block":
        """Return the block with rows that count from another one."""
        errors = {row - first: why for row, why in self.errors.items()}
        return replace(self, rows=self.rows - first, errors=errors)

    def write(self, path: Path) -> None:
        """Write the block to a file, atomically."""
        errors = json.dumps({str(row): why for row, why in self.errors.items()})
        arrays = {**vars(self), "errors": np.frombuffer(errors.encode(), dtype=np.uint8)}
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def read(cls, path: Path) -> "Block":
        """Read a block that `write` wrote."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        errors = json.loads(arrays.pop("errors").tobytes())
        return cls(errors={int(row): why for row, why in errors.items()}, **arrays)


def write_segment(
    folder: IndexFolder,
    ids: Array,
    embedding_size: int,
    names: Sequence[str],
    classes: Sequence[Sequence[str]],
    columns: Columns,
    blocks: Iterable[Block],
) -> Segment:
    """Write the files of a segment; return the entry for the manifest.

    The ids ``(n,)`` ascend; names, classes, the values of each column and the items of all blocks
    are in the same order.
    """
    shape = len(ids), embedding_size
    segment = Segment(int(ids[0]), len(ids), *(folder.new_name(kind) for kind in KINDS))
    places, digests = [], []
    with (
        replacing(folder.path(segment.thumbnails)) as pictures_path,
        pictures_path.open("wb") as pictures,
        replacing(folder.path(segment.vectors)) as vectors_path,
        vectors_path.open("wb") as vectors,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(vectors, header)
        for block in blocks:
            moved = block.places.copy()
            moved[:, 0] += pictures.tell()
            places.append(moved)
            digests.append(block.digests)
            pictures.write(block.thumbnails.data)
            vectors.write(np.ascontiguousarray(block.vectors, dtype="<f4").data)
    with replacing(folder.path(segment.places)) as path, path.open("wb") as file:
        numbers = np.column_stack([np.concatenate(places), ids]).astype("<i8")
        np.save(file, numbers, allow_pickle=False)
    with replacing(folder.path(segment.digests)) as path, path.open("wb") as file:
        np.save(file, np.concatenate(digests), allow_pickle=False)
    known = sorted({name for each in classes for name in each})
    number = {name: at for at, name in enumerate(known)}
    labels = [[number[name] for name in each] for each in classes]
    words = {"classes": known, "names": list(names), "labels": labels, "columns": {**columns}}
    with replacing(folder.path(segment.items)) as path:
        text = json.dumps(words, ensure_ascii=False, allow_nan=False)
        path.write_text(text, encoding="utf-8")
    return segment


class OpenSegment:
    """A segment with open files: it can be read even after they were deleted.

    Attributes:
        ids: ``(n,)`` int64, ascending.
        vectors: float32 ``(n, D)``, a memory map, which nobody may cut off while it is read.
        digests: uint8 ``(n, 16)``, checksums of the images' content.
        names: the names of its items.
        class_names: its classes.
        labels: for each item the positions of its classes in ``class_names``.
        columns: for each further column of a list the values of all items, None where one is
            missing.
    """

    def __init__(self, folder: IndexFolder, segment: Segment, embedding_size: int) -> None:
        self.count = segment.count
        words = _read_items(folder.path(segment.items), segment)
        self.names, self.class_names, self.labels = words.names, words.classes, words.labels
        self.columns = words.columns
        self.digests = _array(folder.path(segment.digests), (segment.count, 16), "u1")
        shape = (segment.count, embedding_size)
        self.vectors = _array(folder.path(segment.vectors), shape, "f4", mapped=True)
        # The ids are in the fifth column; files of before 0.2 have none, and no gaps.
        self._places = _array(folder.path(segment.places), None, "i8")
        if self._places.shape not in ((segment.count, 4), (segment.count, 5)):
            raise damaged(segment.places, f"it must have {segment.count} rows of 4 or 5 numbers")
        numbers = self._places[:, 4:].ravel()
        self.ids = np.array(numbers if len(numbers) else segment.first + np.arange(segment.count))
        self._vectors_file = OpenFile(folder.path(segment.vectors))
        self._thumbnails = OpenFile(folder.path(segment.thumbnails))

    def vector(self, row: int) -> Array:
        """Return a vector ``(D,)``, read from the file and not from its map."""
        size = self.vectors[row].nbytes
        start = self._vectors_file.size - (self.count - row) * size
        return np.frombuffer(self._vectors_file.read(start, size), "<f4").astype(np.float32)

    def refuse_cut_off(self) -> None:
        """Raise DamagedIndexError if the file of vectors has become shorter."""
        self._vectors_file.refuse_cut_off()

    def item(self, row: int) -> Item:
        """Return the item of a row."""
        classes = tuple(self.class_names[label] for label in self.labels[row])
        known = {name: column[row] for name, column in self.columns.items()}
        columns = {name: value for name, value in known.items() if value is not None}
        return Item(int(self.ids[row]), self.names[row], classes, columns)

    def thumbnail(self, row: int) -> bytes:
        """Return a thumbnail as the bytes of a PNG or JPEG file."""
        return thumbnail_file(self._kept(row), *self._places[row, 2:4].tolist())

    def _kept(self, row: int) -> bytes:
        start, length, height, width = self._places[row, :4].tolist()
        fits = 0 <= start <= start + length <= self._thumbnails.size
        is_file, area = height == width == 0, height * width
        is_pixels = min(height, width) > 0 and length in (area, 3 * area)
        if not fits or not (is_file or is_pixels):
            raise damaged(f"thumbnail {row}", "it lies outside of its file, or has no such size")
        return self._thumbnails.read(start, length)

    def thumbnail_type(self, row: int) -> str:
        """Return the media type of a thumbnail."""
        return media_type(int(self._places[row, 2]))

    def blocks(self, rows: Array) -> Iterator[Block]:
        """Iterate over the items of some rows, to write them anew."""
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            places = np.array(self._places[some, :4])
            places[:, 0] = np.cumsum(places[:, 1]) - places[:, 1]
            thumbnails = np.frombuffer(b"".join(map(self._kept, some.tolist())), dtype=np.uint8)
            vectors, digests = self.vectors[some], self.digests[some]
            yield Block(some, vectors, thumbnails, places, digests, {})


def has(ids: Array, id: int) -> bool:
    """Return whether an id is one of sorted ``ids`` ``(n,)``."""
    if isinstance(id, bool) or not -1 < id < 2**63:
        return False
    at = int(np.searchsorted(ids, id))
    return at < len(ids) and int(ids[at]) == id


class Items:
    """All items of an index that are not removed, in the order of their ids.

    Iterating gives the id, the segment and the row there of each. Segments that ``known`` has are
    not read again.

    Attributes:
        ids: ``(n,)`` int64.
    """

    def __init__(
        self, folder: IndexFolder, manifest: Manifest, known: "Items | None" = None
    ) -> None:
        size = manifest.embedding_size
        opened: dict[Segment, OpenSegment] = {} if known is None else known._opened
        self._opened: dict[Segment, OpenSegment] = {
            segment: opened.get(segment) or OpenSegment(folder, segment, size)
            for segment in manifest.segments
        }
        self._segments = list(self._opened.values())
        self._rows = [np.arange(each.count) for each in self._segments]
        if manifest.removed is not None:  # before 0.2 removed items stayed in their segment
            removed = _array(folder.path(manifest.removed), None, "i8")
            self._rows = [np.flatnonzero(~np.isin(each.ids, removed)) for each in self._segments]
        parts = zip(self._segments, self._rows, strict=True)
        self.ids = np.concatenate([segment.ids[rows] for segment, rows in parts])
        every = np.concatenate([[-1], *(each.ids for each in self._segments), [manifest.next_id]])
        if not (np.diff(every) > 0).all():
            raise damaged("an items' id", f"ids must ascend and be below {manifest.next_id}")
        self._starts = np.cumsum([0, *map(len, self._rows)])

    def __iter__(self) -> Iterator[tuple[int, OpenSegment, int]]:
        """Iterate over all items."""
        for segment, rows in zip(self._segments, self._rows, strict=True):
            for id, row in zip(segment.ids[rows].tolist(), rows.tolist(), strict=True):
                yield id, segment, row

    def __contains__(self, id: int) -> bool:
        """Return whether an item has this id."""
        return has(self.ids, id)

    def find(self, id: int) -> tuple[OpenSegment, int]:
        """Return the segment of an item and its row there; UnknownItemError if there is none."""
        if id not in self:
            raise UnknownItemError(f"an id must be that of an item of the index; {id} is not.")
        at = np.searchsorted(self.ids, int(id))
        number = int(np.searchsorted(self._starts, at, side="right")) - 1
        return self._segments[number], int(self._rows[number][at - self._starts[number]])

    def by_class(self) -> dict[str, Array]:
        """Return the sorted ids of each class that has items, classes by name."""
        number: dict[str, int] = {}  # arrays, because a loop over a million items takes a second
        ids, classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for segment, rows in zip(self._segments, self._rows, strict=True):
            known = np.array(
                [number.setdefault(name, len(number)) for name in segment.class_names], np.int64
            )
            labels = [segment.labels[row] for row in rows.tolist()]
            ids.append(np.repeat(segment.ids[rows], list(map(len, labels))))
            classes.append(known[np.fromiter(chain.from_iterable(labels), np.int64)])
        every, of_class = np.concatenate(ids), np.concatenate(classes)
        order = np.argsort(of_class, kind="stable")
        ends = np.cumsum(np.bincount(of_class, minlength=len(number)))
        parts = np.split(every[order], ends[:-1]) if number else []
        return {name: parts[number[name]] for name in sorted(number) if len(parts[number[name]])}

    def labels(self, class_names: Iterable[str]) -> Array:
        """Return the position of each item's class in ``class_names``, int64 ``(n,)``.

        It is -1 for an item without a class, or with several.
        """
        number = {name: at for at, name in enumerate(class_names)}
        found = []
        for _, segment, row in self:
            labels = segment.labels[row]
            found.append(number[segment.class_names[labels[0]]] if len(labels) == 1 else -1)
        return np.array(found, dtype=np.int64)

    def digests(self) -> Array:
        """Return the checksums of the items' content, uint8 ``(n, 16)``."""
        parts = zip(self._segments, self._rows, strict=True)
        return np.concatenate([segment.digests[rows] for segment, rows in parts])

    def column_names(self) -> tuple[str, ...]:
        """Return the names of all columns, in the order in which they came."""
        return tuple(dict.fromkeys(name for each in self._segments for name in each.columns))

    def column(self, name: str) -> list[Value | None]:
        """Return the value of each item in a column, n of them; None where it is missing."""
        found: list[Value | None] = []
        for segment, rows in zip(self._segments, self._rows, strict=True):
            column = segment.columns.get(name)
            found += [None] * len(rows) if column is None else [column[row] for row in rows]
        return found

    def vectors(self) -> Array:
        """Return the vectors ``(n, D)``; a memory map if there is one segment, and all of it."""
        for each in self._segments:
            each.refuse_cut_off()
        parts = [
            segment.vectors if len(rows) == segment.count else segment.vectors[rows]
            for segment, rows in zip(self._segments, self._rows, strict=True)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def vectors_of(self, ids: Array, at_once: int) -> Iterator[tuple[Array, Array]]:
        """Yield sorted ids ``(m,)`` and their vectors ``(m, D)``, so many at a time."""
        for segment in self._segments:
            rows = np.flatnonzero(np.isin(segment.ids, ids))
            for start in range(0, len(rows), at_once):
                some = rows[start : start + at_once]
                segment.refuse_cut_off()
                yield segment.ids[some], np.asarray(segment.vectors[some], dtype=np.float32)

    def without(self, ids: Array) -> list[tuple[OpenSegment, Array]]:
        """Return each segment with its rows, except those of some ids."""
        parts = zip(self._segments, self._rows, strict=True)
        return [(each, rows[~np.isin(each.ids[rows], ids)]) for each, rows in parts]


def compacted(
    folder: IndexFolder, manifest: Manifest, items: Items, gone: Array
) -> tuple[Segment, ...]:
    """Return the segments of an index without the items of the ids ``gone``, and few of them.

    A segment that has lost items is written anew. The others stay, if each is larger than all that
    follow it together; from the first on that is not, they become one. So n items have at most
    log2(n) + 1 segments, and as the segment of an item at least doubles whenever small ones become
    one, additions write it at most log2(n) times.
    """
    every = zip(manifest.segments, items.without(gone), strict=True)
    parts = [(segment, opened, rows) for segment, (opened, rows) in every if len(rows)]
    counts = [len(rows) for *_, rows in parts]
    few = [at for at in range(len(parts) - 1) if counts[at] <= sum(counts[at + 1 :])]
    start = few[0] if few else len(parts)
    segments = []
    for group in filter(None, [*([part] for part in parts[:start]), parts[start:]]):
        segment, _, rows = group[0]
        stays = len(group) == 1 and len(rows) == segment.count
        segments.append(segment if stays else _written_anew(folder, manifest, group))
    return tuple(segments)


def _written_anew(
    folder: IndexFolder, manifest: Manifest, parts: Sequence[tuple[Segment, OpenSegment, Array]]
) -> Segment:
    """Write some rows of segments to one segment."""
    # The copy gets a new checksum: damage must not get it too. A new segment has none yet.
    copied = (name for segment, *_ in parts for name in segment.files())
    folder.compare(manifest, [name for name in copied if name in manifest.files])
    kept = [opened.item(row) for _, opened, rows in parts for row in rows.tolist()]
    # A column of removed items alone leaves with them.
    names = dict.fromkeys(name for item in kept for name in item.columns)
    return write_segment(
        folder,
        np.array([item.id for item in kept], dtype=np.int64),
        manifest.embedding_size,
        [item.name for item in kept],
        [item.class_names for item in kept],
        {name: [item.columns.get(name) for item in kept] for name in names},
        (block for _, opened, rows in parts for block in opened.blocks(rows)),
    )


Text = Annotated[str, AfterValidator(printable)]
"""Somebody else may have written it: it must not move the cursor of a terminal."""


_Whole = Annotated[int, Field(gt=-(10**MOST_DIGITS), lt=10**MOST_DIGITS)]
_Value = Annotated[str | bool | _Whole | float | None, AfterValidator(shown)]


class _Words(BaseModel):
    """The file of the items of a segment; before 0.2 without columns."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    names: list[Text]
    classes: list[Text]
    labels: list[list[NonNegativeInt]]
    columns: dict[Text, list[_Value]] = {}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Make objects without looking for garbage meanwhile: of a million lists that takes a second.

    They are no garbage, and Python looks through all of them, and all of torch, several times.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_items(path: Path, segment: Segment) -> _Words:
    try:
        with _uncollected():
            words = _Words.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise damaged(path.name, first_error(error)) from error
    highest = max(chain.from_iterable(words.labels), default=-1)
    lengths = {len(words.names), len(words.labels), *map(len, words.columns.values())}
    if lengths != {segment.count} or highest >= len(words.classes):
        raise damaged(path.name, "it does not fit the manifest")
    return words


def _array(path: Path, shape: tuple[int, ...] | None, kind: str, *, mapped: bool = False) -> Array:
    """Read an array from a file, or map it, and check its shape and type.

    It is mapped first: a header that claims more than the file has must not take memory.
    """
    try:
        found: Array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise
    # A header that is damaged raises errors of many types, also of Python's tokenizer.
    except Exception as error:
        raise damaged(path.name, error) from error
    if found.dtype != np.dtype(f"<{kind}") or (shape is not None and found.shape != shape):
        why = f"it must hold {kind} of shape {shape}; it holds {found.dtype} of {found.shape}"
        raise damaged(path.name, why)
    return found if mapped else np.array(found)
