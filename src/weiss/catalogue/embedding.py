"""Embed a collection block by block; each finished block is written to a file.

    decode a piece -> thumbnails, digests            in a thread, one piece ahead
    crop, embed                                      here, on the device

Images are decoded once, for the network and for the thumbnail. They are cropped as in an evaluation
(`weiss.data.Pipeline`), so that an item has the same vector as there. A pipeline would keep all
images in memory; here the memory is that of a few pieces. All devices compute in float32, as for
queries.

Dimensions: B items of a batch, D embedding size.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss._base.decoding import Decoders, collect
from weiss._base.files import read_json, refuse_special_file, replacing
from weiss._base.images import BadImageError
from weiss.backbones import Embedder
from weiss.catalogue.collection import Collection
from weiss.catalogue.index_folder import PLAN, clear_workspace
from weiss.catalogue.networks import Network
from weiss.catalogue.records import printable
from weiss.catalogue.segments import Block, make_thumbnail
from weiss.data import CentreCrop, Table
from weiss.data.cache import build_store, file_states
from weiss.data.object_storage import AT_ONCE, Objects, copied
from weiss.data.resample import resample
from weiss.data.sources import Files
from weiss.data.store import Memory, Storage, Store, workers_for

Decode = Callable[[Table], tuple[Store, dict[int, str]]]
"""From images to their pixels, and the errors of those that cannot be read."""
PIECE_ITEMS, BLOCK_ITEMS = 512, 2048
"""Items that are decoded together; items in one file."""
T = TypeVar("T")
IN_MEMORY = Storage("memory", "a piece at a time")


@dataclass(frozen=True)
class BatchEmbedder:
    """A network of torch that embeds decoded images in batches of B."""

    network: Network
    batch_size: int

    @property
    def model(self) -> Embedder:
        """The module, on its device and in evaluation mode."""
        assert self.network.model is not None
        return self.network.model

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return next(self.model.parameters()).device

    @property
    def piece_size(self) -> int:
        """Items of a piece: whole batches."""
        return -(-PIECE_ITEMS // self.batch_size) * self.batch_size

    @property
    def block_size(self) -> int:
        """Items of a block: whole pieces."""
        return -(-BLOCK_ITEMS // self.piece_size) * self.piece_size

    @torch.inference_mode()
    def embed(self, store: Store) -> Array:
        """Return the embeddings ``(n, D)`` of decoded images."""
        found = []
        for start in range(0, len(store.starts), self.batch_size):
            part = store.take(np.arange(start, min(start + self.batch_size, len(store.starts))))
            if self.device.type != "cpu":
                part = part.gather(np.arange(len(part.starts)))
            found.append(self.model(self._crops(part)))
        return np.asarray(torch.cat(found).float().cpu().numpy())

    def _crops(self, part: Store) -> Tensor:
        """Return the crops ``(B, c, S, S)`` of a batch, on the device."""
        pixels = part.pixels.to(self.device, non_blocking=True)
        shape = self.network.preprocessing
        side, channels = shape.size, int(pixels.shape[1])
        # Where each image starts if all have the network's size and follow each other.
        begins = part.starts[0] + np.arange(len(part.starts)) * side**2
        is_ready = side == shape.resize and bool((part.sizes == side).all())
        if is_ready and (part.starts == begins).all():
            # The images are their own crops.
            crops = pixels[begins[0] : begins[-1] + side**2].view(-1, side, side, channels)
            return crops.permute(0, 3, 1, 2).float()
        windows = CentreCrop(side, shape.resize).windows(part.sizes)
        return resample(pixels, part.starts, part.sizes[:, 1], windows)


def embed_collection(
    collection: Collection,
    embedder: BatchEmbedder,
    workspace: Path,
    *,
    num_workers: int | None = None,
    advance: Callable[[int], None] = lambda worth: None,
) -> tuple[list[Path], int]:
    """Embed the items of a collection whose blocks are not in the workspace yet.

    Blocks of another collection or network are deleted. ``advance`` is called with the number of
    items that are done, earlier ones included. Return the files of all blocks, in order; and how
    many items had been embedded earlier.
    """
    count, size = len(collection.table), embedder.block_size
    blocks = [range(start, min(start + size, count)) for start in range(0, count, size)]
    paths = [workspace / f"block-{number:06d}.npz" for number in range(len(blocks))]
    _prepare_workspace(workspace, collection_key(collection, embedder), paths)
    missing = [number for number, path in enumerate(paths) if not path.is_file()]
    before = count - sum(len(blocks[number]) for number in missing)
    advance(before)
    wanted = ((number, blocks[number]) for number in missing)
    for number, block in embedded_blocks(
        collection, embedder, wanted, num_workers=num_workers, advance=advance
    ):
        block.write(paths[number])
    return paths, before


def embedded_blocks(
    collection: Collection,
    embedder: BatchEmbedder,
    wanted: Iterable[tuple[int, range]],
    *,
    num_workers: int | None = None,
    advance: Callable[[int], None] = lambda worth: None,
    decode: Decode | None = None,
) -> Iterator[tuple[int, Block]]:
    """Embed ranges of rows; yield the number of each range and its block, in the given order.

    The next range is asked for when the last piece of the one before is decoded, so that decoding
    never waits for the network. ``decode`` is a result of `decoder_of` that the caller has; the
    other arguments are those of `embed_collection`.
    """
    size = embedder.piece_size
    pieces = (
        (number, rows[start : start + size], start + size >= len(rows))
        for number, rows in wanted
        for start in range(0, len(rows), size)
    )
    parts: list[Block] = []
    with ExitStack() as stack:
        own = decode or decoder_of(collection.table, embedder, num_workers, stack)

        def make(piece: tuple[int, range, bool]) -> tuple[int, range, bool, Block, Store]:
            return *piece, *_piece(collection, embedder, own, piece[1])

        # A thread helps only if it waits for files while the network computes, or for a GPU.
        source = collection.table.source
        waits = isinstance(source, (Files, Objects)) or embedder.device.type != "cpu"
        for number, rows, is_last, piece, store in (_one_ahead if waits else map)(make, pieces):
            parts.append(_with_vectors(piece, store, embedder))
            advance(len(rows))
            if is_last:
                yield number, _joined(parts)
                parts = []


def _prepare_workspace(workspace: Path, key: str, paths: Sequence[Path]) -> None:
    """Delete blocks of another collection or network, and blocks that cannot be read."""
    plan = workspace / PLAN
    try:
        is_same = read_json(plan).get("key") == key
    except (OSError, ValueError):
        is_same = False
    if is_same:
        for path in paths:
            try:
                Block.read(path)
            # For whatever reason it cannot be read: the block is made again.
            except Exception:
                path.unlink(missing_ok=True)
        return
    clear_workspace(workspace)
    workspace.mkdir(parents=True, exist_ok=True)
    with replacing(plan) as temporary:
        temporary.write_text(json.dumps({"key": key}))


def content_digest(table: Table, row: int) -> bytes:
    """Return a checksum of the content of an item, 16 bytes: of its file, or of its pixels."""
    source = table.source
    if isinstance(source, Files):
        return file_digest(source.file(row))
    if isinstance(source, Objects):  # as of the file that it is copied to
        return hashlib.blake2b(source.content(row), digest_size=16).digest()
    pixels = np.ascontiguousarray(source.read(row))
    height, width = pixels.shape[:2]
    # The same bytes in another shape are another picture.
    salt = height.to_bytes(4, "little") + width.to_bytes(4, "little")
    return hashlib.blake2b(pixels.data, digest_size=16, salt=salt).digest()


def content_digests(table: Table) -> list[bytes | str]:
    """Return the `content_digest` of each item; of one that cannot be read, why not."""

    def digest(row: int) -> bytes | str:
        try:
            return content_digest(table, row)
        except BadImageError as error:
            return _reason(table, row, str(error))

    if not isinstance(table.source, Objects):
        return [*map(digest, range(len(table)))]
    with ThreadPoolExecutor(AT_ONCE, "weiss-storage") as threads:
        return [*threads.map(digest, range(len(table)))]


def file_digest(path: Path) -> bytes:
    """Return a checksum of the content of a file, 16 bytes."""
    refuse_special_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


def collection_key(collection: Collection, embedder: BatchEmbedder) -> str:
    """Return a checksum of the network, the items and the sizes of blocks."""
    shape = embedder.network.preprocessing
    state = hashlib.sha256(embedder.network.fingerprint.encode())
    scaled = " scaled" if shape.scaled_decoding else ""
    state.update(f"{shape}{scaled} {embedder.batch_size} {PIECE_ITEMS} {BLOCK_ITEMS}".encode())
    state.update(data_digest(collection).encode())
    return state.hexdigest()


def data_digest(collection: Collection) -> str:
    """Return a checksum of the items: names, classes, and the size and time of every file."""
    state = hashlib.sha256(json.dumps([collection.names, collection.classes]).encode())
    source = collection.table.source
    if isinstance(source, Files):
        for each in file_states(source):
            state.update(each)
    elif isinstance(source, Objects):
        state.update("".join([f"{source.root}\n", *source.known_states()]).encode())
    else:
        for digest in content_digests(collection.table):  # errors are reported later
            state.update(digest if isinstance(digest, bytes) else digest.encode())
    return state.hexdigest()


def _one_ahead(make: Callable[[T], Any], given: Iterable[T]) -> Iterator[Any]:
    """Yield ``make`` of each, while a thread makes the next one."""
    with ThreadPoolExecutor(1, "weiss-index") as thread:
        coming = None
        try:
            for each in given:
                ready, coming = coming, thread.submit(make, each)
                if ready is not None:
                    yield ready.result()
            if coming is not None:
                yield coming.result()
        finally:
            thread.shutdown(cancel_futures=True)


def _piece(
    collection: Collection, embedder: BatchEmbedder, decode: Decode, rows: range
) -> tuple[Block, Store]:
    """Decode some rows; return those that can be read, without vectors, and their pixels."""
    at = np.arange(rows.start, rows.stop)
    part = collection.table.take(at)
    if not isinstance(part.source, Objects):
        return _decoded(part, at, embedder, decode)
    with copied(part.source) as (files, lost):
        block, store = _decoded(replace(part, source=files), at, embedder, decode)
    why = {int(at[row]): _reason(part, row, text) for row, text in lost.items()}
    return replace(block, errors={**block.errors, **why}), store


def _decoded(
    part: Table, at: Array, embedder: BatchEmbedder, decode: Decode
) -> tuple[Block, Store]:
    """Do what `_piece` does for a table of these rows."""
    store, errors = decode(part)
    good = np.setdiff1d(np.arange(len(part)), np.array(list(errors), dtype=np.int64))
    why = {int(at[row]): _reason(part, row, text) for row, text in errors.items()}
    store = store.take(good)
    thumbnails, places = _thumbnails(store)
    digests = [content_digest(part, int(row)) for row in good]
    block = Block(
        at[good],
        np.zeros((0, embedder.network.embedding_size), dtype=np.float32),
        thumbnails,
        places,
        np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16),
        why,
    )
    return block, store


def _thumbnails(store: Store) -> tuple[Array, Array]:
    """Return all thumbnails, uint8, and the place of each, ``(n, 4)``; see `Block`."""
    pixels = store.pixels.numpy()
    pieces, places, start = [], [], 0
    for first, (height, width) in zip(store.starts.tolist(), store.sizes.tolist(), strict=True):
        picture = pixels[first : first + height * width].reshape(height, width, -1)
        kept, *sides = make_thumbnail(picture)
        places.append((start, len(kept), *sides))
        start += len(kept)
        pieces.append(kept)
    table = np.array(places, dtype=np.int64).reshape(-1, 4)
    return np.frombuffer(b"".join(pieces), dtype=np.uint8), table


def decoder_of(
    table: Table, embedder: BatchEmbedder, num_workers: int | None, stack: ExitStack
) -> Decode:
    """Return a function that decodes a piece; its processes end with the stack."""
    shape = embedder.network.preprocessing
    reduction = shape.reduction
    workers = workers_for(len(table), num_workers)
    source = table.source
    if not isinstance(source, (Files, Objects)) or not workers:
        return lambda part: build_store(part, IN_MEMORY, reduction=reduction, num_workers=0)
    decoders = stack.enter_context(Decoders(workers, channels=source.channels, reduction=reduction))

    def decode(part: Table) -> tuple[Store, dict[int, str]]:
        assert isinstance(part.source, Files)
        files = [part.source.file(row) for row in range(len(part))]
        channels = part.source.channels
        memory = Memory(len(files) * 2 * shape.short_side**2 * channels)
        done = collect(decoders.submit_all(files, memory.add))
        starts, sizes = np.array(done.starts) // channels, np.array(done.sizes)
        return Store(memory.pixels(channels), starts, sizes, IN_MEMORY), done.errors

    return decode


def _reason(part: Table, row: int, message: str) -> str:
    """Return an error message without the name in front of it, and without folders elsewhere."""
    source = part.source
    if isinstance(source, Files):
        file = source.file(row)
        message = message.removeprefix(f"{file}: ")
        message = message.replace(str(file), file.name).replace(str(file.absolute()), file.name)
    elif isinstance(source, Objects):
        message = message.removeprefix(f"{source.name(row)}: ")
    return printable(message)


def _with_vectors(piece: Block, store: Store, embedder: BatchEmbedder) -> Block:
    """Embed a piece; an item with a NaN or infinity is skipped like an unreadable file."""
    if not len(piece.rows):
        return piece
    vectors = embedder.embed(store)
    good = np.isfinite(vectors).all(axis=1)
    why = "its embedding is not finite (NaN or infinity)"
    bad = {int(row): why for row in piece.rows[~good]}
    return replace(
        piece,
        rows=piece.rows[good],
        vectors=vectors[good],
        places=piece.places[good],
        digests=piece.digests[good],
        errors={**piece.errors, **bad},
    )


def _joined(parts: Sequence[Block]) -> Block:
    """Join pieces to one block."""
    offsets = np.cumsum([0] + [len(part.thumbnails) for part in parts])
    places = [part.places.copy() for part in parts]
    for moved, offset in zip(places, offsets[:-1], strict=True):
        moved[:, 0] += offset
    return Block(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.thumbnails for part in parts]),
        np.concatenate(places),
        np.concatenate([part.digests for part in parts]),
        {row: why for part in parts for row, why in part.errors.items()},
    )
