"""The folder of `weiss embed`: vectors in Parquet shards, which any number of commands can write.

    embeddings.json                what is embedded by what: the model, the items, their digests
    model/                         a copy of the model, itself a run folder
    vectors/vectors-000000.parquet the first items in the order of the collection, and so on
    skipped.txt                    which images could not be read, and why; written at the end

A shard is written under a temporary name and renamed: it is whole or absent. Who embeds one holds
its lock, a file beside it. Every shard names the digest of model and items, so that no vector of
another model is taken for one of these. pyarrow is imported when a shard is written or read.

Columns of a shard, a row for each item, also for one that could not be read:

    path        string, the name of the item: its path below the folder of the collection
    label       string, its class, null where it is unknown; or labels, a list of strings, if an
                item of the collection has several
    vector      D float32 of unit length; null if the item could not be embedded
    error       string, why not; else null
    digest      16 bytes, BLAKE2b of the file's content
    thumbnail   bytes for `weiss index`: a JPEG file, or pixels if height and width are not 0
    thumbnail_height, thumbnail_width

and behind them the further columns of a list of images, as they are there.

Dimensions: D embedding size.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.files import alone, read_text, remove_leftovers, replacing
from weiss.catalogue.collection import Collection
from weiss.catalogue.manifest import first_error
from weiss.catalogue.records import printable
from weiss.catalogue.segments import Block
from weiss.catalogue.stores import unit_vectors
from weiss.data.list_columns import Columns, plain_columns

MANIFEST, MODEL_FOLDER, SHARDS, SKIPPED = "embeddings.json", "model", "vectors", "skipped.txt"
FORMAT = 1
KEY = b"weiss.key"
"""The entry of a shard's metadata with `Contents.key`."""
SHARD_NAME = r"vectors-[0-9]{6,}\.parquet"
THUMBNAIL = ("thumbnail", "thumbnail_height", "thumbnail_width")
REMEDY = "Embed again into a new folder, or restore it."


class Contents(BaseModel):
    """embeddings.json: what the folder holds.

    Attributes:
        format: of the folder.
        weiss_version: that began it.
        name: of the collection.
        split: which part of it.
        num_items: rows of all shards together.
        several_labels: whether the shards have ``labels`` in the place of ``label``.
        shard_items: rows of a shard; the last one may have fewer.
        batch_size: pictures of a forward pass.
        data_digest: of the items, see `weiss.catalogue.embedding.data_digest`.
        columns_digest: of a list with further columns; empty without any.
        left_out: entries of a list that were left out before embedding: name and reason.
        model: as the manifest of an index has it, see `Network.manifest_facts`.
        scores: of the model.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    format: int
    weiss_version: str
    name: str
    split: str
    num_items: PositiveInt
    several_labels: bool
    shard_items: PositiveInt
    batch_size: PositiveInt
    data_digest: str
    columns_digest: str = ""
    left_out: list[list[str]]
    model: dict[str, Any]
    scores: dict[str, Any]

    @property
    def key(self) -> str:
        """The digest that ties every shard to model, items, columns and the shards' size."""
        model = [self.model[name] for name in ("fingerprint", "section", "preprocessing")]
        digests = self.data_digest + self.columns_digest
        tied = [model, digests, self.split, self.shard_items, self.batch_size]
        return hashlib.sha256(json.dumps(tied, sort_keys=True).encode()).hexdigest()

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return -(-self.num_items // self.shard_items)

    def rows(self, number: int) -> range:
        """Return the rows of a shard."""
        start = number * self.shard_items
        return range(start, min(start + self.shard_items, self.num_items))

    def differences(self, other: "Contents") -> list[str]:
        """Return in which ways another content is not this one, in words."""
        found = []
        if any(self.model[k] != other.model[k] for k in ("fingerprint", "section")):
            found.append(f"the network ({self.model['backbone']}; now {other.model['backbone']})")
        if self.model["preprocessing"] != other.model["preprocessing"]:
            found.append("the preprocessing of images")
        if (self.data_digest, self.split) != (other.data_digest, other.split):
            numbers = f"{self.num_items:,} items; now {other.num_items:,}"
            found.append(f"the images, their names or their classes ({numbers})")
        elif self.columns_digest != other.columns_digest:
            found.append(f"the further columns of the list {self.name}, or how it is written")
        for name, word in (("shard_items", "--shard-items"), ("batch_size", "--batch-size")):
            if getattr(self, name) != getattr(other, name):
                found.append(f"{word} ({getattr(self, name)}; now {getattr(other, name)})")
        return found


class EmbeddingsFolder:
    """A folder of embeddings, which may not exist yet."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.model = self.folder / MODEL_FOLDER

    def exists(self) -> bool:
        """Return whether embeddings have begun here."""
        return (self.folder / MANIFEST).is_file()

    def contents(self) -> Contents:
        """Read embeddings.json.

        Raises:
            ValueError: it is damaged, or of another version.
        """
        path = self.folder / MANIFEST
        try:
            found = Contents.model_validate_json(read_text(path))
            _ = found.key, found.model["backbone"], found.model["embedding_size"]
        except ValidationError as error:
            raise ValueError(f"{path} is damaged: {first_error(error)}. {REMEDY}") from error
        except KeyError as error:
            raise ValueError(f"{path} is damaged: model must have {error}. {REMEDY}") from error
        if found.format != FORMAT:
            raise ValueError(
                f"{path} must have the format {FORMAT}; it has {found.format}. It may be of a "
                "newer Weiss: update this one."
            )
        return found

    def begin(self, wanted: Contents, copy_model: Callable[[Path], Any]) -> Contents:
        """Begin embeddings, or continue those that the folder holds if they are the same.

        Args:
            wanted: what the command asks for.
            copy_model: called with the path of the model's folder if the folder is new.

        Raises:
            ValueError: the folder holds something else, or embeddings of something else.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"--out must be a folder; {self.folder} is a file. Choose another.")
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = f".{MANIFEST}.lock"
        with alone(self.folder / MANIFEST):
            if not self.exists():
                if foreign := sorted(set(os.listdir(self.folder)) - {lock, MODEL_FOLDER}):
                    raise ValueError(
                        f"--out must be new, empty or of `weiss embed`; {self.folder} holds "
                        f"something else ({some(foreign)}). Choose another name."
                    )
                copy_model(self.model)
                with replacing(self.folder / MANIFEST) as temporary:
                    temporary.write_text(wanted.model_dump_json(indent=1) + "\n", encoding="utf-8")
            held = self.contents()
            if different := held.differences(wanted):
                raise ValueError(
                    f"{self.folder} must hold embeddings of the same images by the same network; "
                    f"these differ: {', '.join(different)}. Choose another --out."
                )
            (self.folder / SHARDS).mkdir(exist_ok=True)
        return held

    def shard(self, number: int) -> Path:
        """Return the path of a shard."""
        return self.folder / SHARDS / f"vectors-{number:06d}.parquet"

    def missing(self, contents: Contents) -> list[int]:
        """Return the shards that are not finished, by their names alone."""
        return [n for n in range(contents.num_shards) if not self.shard(n).is_file()]

    def remove_damaged(self, contents: Contents) -> None:
        """Remove shards that are not of these contents, or cannot be read, so that they are made.

        Only their metadata are read.
        """
        for number in range(contents.num_shards):
            path = self.shard(number)
            if path.is_file() and self._wrong(path, contents, number):
                # Another command may have replaced it meanwhile: look again under its lock.
                with alone(path):
                    if path.is_file() and self._wrong(path, contents, number):
                        path.unlink()

    def _wrong(self, path: Path, contents: Contents, number: int) -> str:
        parquet = imported_pyarrow().parquet
        try:
            found = parquet.read_metadata(path)
        # A damaged file raises errors of many types.
        except Exception as error:
            return f"it cannot be read ({error})"
        if (found.metadata or {}).get(KEY) != contents.key.encode():
            return "it is of another model or of other images"
        if found.num_rows != len(contents.rows(number)):
            return f"it must have {len(contents.rows(number)):,} rows; it has {found.num_rows:,}"
        return ""

    def write_shard(self, contents: Contents, number: int, given: Any, block: Block) -> None:
        """Write a shard, under a temporary name first.

        Args:
            contents: of the folder.
            number: of the shard.
            given: its `given_columns`.
            block: its items; rows count from its first one.
        """
        pyarrow = imported_pyarrow()
        schema = _schema(contents)
        columns = block_columns(block, len(given), contents.model["embedding_size"])
        columns |= {name: given.column(name) for name in schema.names if name not in columns}
        table = pyarrow.table({name: columns[name] for name in schema.names}, schema=schema)
        for field in given.schema:
            if field.name not in schema.names:
                table = table.append_column(field, given.column(field.name))
        table = table.replace_schema_metadata({KEY: contents.key.encode()})
        with replacing(self.shard(number)) as temporary:
            pyarrow.parquet.write_table(
                table, temporary, compression="zstd", write_page_checksum=True
            )

    def read_shard(self, contents: Contents, number: int, columns: list[str] | None = None) -> Any:
        """Return a shard as a table of pyarrow; check that it is of these contents.

        Raises:
            ValueError: it is missing or damaged, or of something else.
        """
        path, pyarrow = self.shard(number), imported_pyarrow()
        if not path.is_file():
            raise ValueError(
                f"{self.folder} must be finished; {path.name} is missing. Start `weiss embed` "
                "again: it continues."
            )
        if why := self._wrong(path, contents, number):
            raise ValueError(f"{path} is damaged: {why}. {REMEDY}")
        try:
            found = pyarrow.parquet.read_table(
                path, columns=columns, page_checksum_verification=True
            )
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}. {REMEDY}") from error
        must = _schema(contents)
        for name in must.names if columns is None else columns:
            if name not in found.schema.names or (
                name in must.names and found.schema.field(name).type != must.field(name).type
            ):
                raise ValueError(f"{path} is damaged: the column {name!r} is wrong. {REMEDY}")
        return found

    def skipped(self, contents: Contents) -> list[tuple[str, str]]:
        """Return which images are left out, and why, of all shards."""
        found = [(name, why) for name, why in contents.left_out]
        for number in range(contents.num_shards):
            table = self.read_shard(contents, number, ["path", "error"])
            table = table.filter(table.column("error").is_valid())
            pairs = zip(
                *(table.column(name).to_pylist() for name in ("path", "error")), strict=True
            )
            found += [(printable(str(name)), printable(why)) for name, why in pairs]
        return found

    def finish(self, contents: Contents) -> list[tuple[str, str]]:
        """Write and return the list of images that were left out, and remove leftovers."""
        skipped = self.skipped(contents)
        with alone(self.folder / MANIFEST):
            with replacing(self.folder / SKIPPED) as temporary:
                lines = "".join(f"{name}: {why}\n" for name, why in skipped)
                temporary.write_text(lines, encoding="utf-8")
            if not self.missing(contents):
                remove_leftovers(self.folder / SHARDS, SHARD_NAME)
        return skipped

    def read_items(self, contents: Contents) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return names and classes of all items that have a vector."""
        names: list[str] = []
        classes: list[tuple[str, ...]] = []
        column = "labels" if contents.several_labels else "label"
        for number in range(contents.num_shards):
            table = self.read_shard(contents, number, ["path", column, "vector"])
            table = table.filter(table.column("vector").is_valid())
            names += [printable(str(name)) for name in table.column("path").to_pylist()]
            for each in table.column(column).to_pylist():
                several = [each] if isinstance(each, str) else each or ()
                classes.append(tuple(printable(str(name)) for name in several))
        return names, classes

    def read_columns(self, contents: Contents) -> tuple[Columns, list[str]]:
        """Return the further columns of all items that have a vector, and which are left out."""
        pyarrow = imported_pyarrow()
        names = pyarrow.parquet.read_schema(self.shard(0)).names
        further = [name for name in names if name not in own_columns()]
        if not further:
            return {}, []
        parts = []
        for number in range(contents.num_shards):
            table = self.read_shard(contents, number, [*further, "vector"])
            parts.append(table.filter(table.column("vector").is_valid()).select(further))
        try:
            return plain_columns(pyarrow.concat_tables(parts))
        except pyarrow.ArrowException as error:
            raise ValueError(f"{self.folder} is damaged: {error}. {REMEDY}") from error

    def read_blocks(self, contents: Contents) -> Iterator[Block]:
        """Yield the items of each shard that have a vector, for the segment of an index."""
        for number in range(contents.num_shards):
            table = self.read_shard(contents, number)
            table = table.filter(table.column("vector").is_valid()).combine_chunks()
            if len(table):
                yield _block(table, contents, self.shard(number))


class Claims(AbstractContextManager["Claims"]):
    """The locks of shards that this process embeds; iterating takes one after the other.

    One pass over the shards: those that are finished or that another process holds are not taken.
    It never waits, because whoever iterates may hold a shard that another process waits for.
    """

    def __init__(self, folder: EmbeddingsFolder, numbers: Iterable[int]) -> None:
        self._folder, self._numbers = folder, numbers
        self._locks: dict[int, ExitStack] = {}
        self.num_taken = 0

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of shards whose locks were taken."""
        for number in self._numbers:
            path = self._folder.shard(number)
            if path.is_file():
                continue
            lock = ExitStack()
            try:
                lock.enter_context(alone(path, wait=False))
            except BlockingIOError:
                continue
            if path.is_file():  # finished just before the lock was taken
                lock.close()
                continue
            self._locks[number] = lock
            self.num_taken += 1
            yield number

    def release(self, number: int) -> None:
        """Release a shard that is finished."""
        self._locks.pop(number).close()

    def __exit__(self, *_: object) -> None:
        """Release all."""
        for number in list(self._locks):
            self.release(number)


def imported_pyarrow() -> Any:
    """Return pyarrow with its module for Parquet."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"embeddings are Parquet files, which need pyarrow: {error}. Install it: "
            "pip install 'weiss[parquet]'"
        ) from None
    return pyarrow


def own_columns() -> tuple[str, ...]:
    """Return the names of a shard's own columns, which no further column may have."""
    return ("path", "label", "labels", "vector", "error", "digest", *THUMBNAIL)


def given_columns(contents: Contents, number: int, collection: Collection, further: Any) -> Any:
    """Return what is known of a shard's items before they are embedded, as a table of pyarrow.

    It has the columns path, label or labels, and the further ones: ``further`` is a table with a
    row for each item of the collection, or None.
    """
    rows = contents.rows(number)
    labels = [list(collection.classes[row]) for row in rows]
    columns: dict[str, Any] = {"path": [collection.names[row] for row in rows]}
    if contents.several_labels:
        columns["labels"] = labels
    else:
        columns["label"] = [next(iter(each), None) for each in labels]
    pa, schema = imported_pyarrow(), _schema(contents)
    table = pa.table(columns, schema=pa.schema([schema.field(name) for name in columns]))
    if further is not None:
        part = further.slice(rows.start, len(rows))
        for name in further.column_names:
            table = table.append_column(further.schema.field(name), part.column(name))
    return table


def _schema(contents: Contents) -> Any:
    pa = imported_pyarrow()
    several = contents.several_labels
    columns = {
        "path": pa.string(),
        "labels" if several else "label": pa.list_(pa.string()) if several else pa.string(),
        "vector": pa.list_(pa.float32(), contents.model["embedding_size"]),
        "error": pa.string(),
        "digest": pa.binary(16),
        **dict(zip(THUMBNAIL, (pa.binary(), pa.int32(), pa.int32()), strict=True)),
    }
    return pa.schema(list(columns.items()))


def block_columns(block: Block, count: int, embedding_size: int) -> dict[str, Any]:
    """Return the columns of the items 0..count of a block; without a vector they are empty."""
    pa = imported_pyarrow()
    at = np.full(count, -1)
    at[block.rows] = np.arange(len(block.rows))
    is_bad = at < 0
    vectors = np.zeros((count, embedding_size), dtype=np.float32)
    vectors[~is_bad] = block.vectors
    flat = pa.array(vectors.reshape(-1))
    content = block.thumbnails.tobytes()
    thumbnails: list[bytes | None] = [None] * count
    sides = np.zeros((count, 2), dtype=np.int32)
    digests: list[bytes | None] = [None] * count
    for row, place in enumerate(at.tolist()):
        if place >= 0:
            start, length, *size = block.places[place].tolist()
            thumbnails[row], sides[row] = content[start : start + length], size
            digests[row] = block.digests[place].tobytes()
    return {
        "vector": pa.FixedSizeListArray.from_arrays(flat, embedding_size, mask=pa.array(is_bad)),
        "error": pa.array([block.errors.get(row) for row in range(count)], pa.string()),
        "digest": digests,
        "thumbnail": thumbnails,
        "thumbnail_height": sides[:, 0],
        "thumbnail_width": sides[:, 1],
    }


def _block(table: Any, contents: Contents, path: Path) -> Block:
    """Return rows that all have a vector as a block; refuse what no index may hold."""
    pieces = table.column("thumbnail").to_pylist()
    digests = table.column("digest").to_pylist()
    if None in pieces or None in digests:
        raise ValueError(f"{path} is damaged: an item has no digest or thumbnail. {REMEDY}")
    flat = table.column("vector").combine_chunks().flatten()
    vectors: Array = np.asarray(flat, dtype=np.float32).reshape(len(table), -1)
    lengths = np.array([len(each) for each in pieces], dtype=np.int64)
    sides = [table.column(f"thumbnail_{side}").to_numpy() for side in ("height", "width")]
    places = np.column_stack([np.cumsum(lengths) - lengths, lengths, *sides]).astype(np.int64)
    return Block(
        np.arange(len(table)),
        unit_vectors("vectors", vectors, path.name),
        np.frombuffer(b"".join(pieces), dtype=np.uint8),
        places,
        np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16),
        {},
    )
