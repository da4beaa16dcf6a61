"""A collection embedded block by block, each block kept as soon as it is finished.

    decode a piece -> small pictures, digests        in a thread, one piece ahead
    crop, embed                                      here, on the device

Pixels are decoded once: the network's input and the small picture come from the same ones. They are
cropped by what `weiss.data.Pipeline` crops by in an evaluation, so an item has the vector that an
evaluation would give it. A pipeline itself would first decode everything, or nothing; here a piece
is forgotten when it is done, however many there are.

Computed in float32 on every device, as queries are: the index and who searches it must agree.

Dimensions: b items of a block, B of a batch, D embedding size.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss._base.arrays import Array
from weiss._base.decoding import Decoders, collect
from weiss._base.files import replacing
from weiss._base.images import BadImageError
from weiss.catalogue.collection import Collection
from weiss.catalogue.items import shown
from weiss.catalogue.preprocessing import Preprocessing
from weiss.catalogue.segments import Block
from weiss.catalogue.thumbnails import SIDE, TINY, small_picture
from weiss.catalogue.tidying import PLAN, clear_workspace
from weiss.data import CentreCrop, Table
from weiss.data.cache import build_store, file_states
from weiss.data.resample import resample
from weiss.data.sources import Files, Pixels
from weiss.data.store import Memory, Storage, Store, workers_for

Decode = Callable[[Table], tuple[Store, dict[int, str]]]
"""From images to their pixels, and what is wrong with those that cannot be read."""
PIECE, BLOCK = 512, 2048
"""Items that are decoded together; items that are kept together."""
IN_MEMORY = Storage("memory", "a piece at a time")


@dataclass(frozen=True)
class Embedder:
    """A network and what it wants to see.

    Args:
        model: on its device, in evaluation mode.
        device: where that is.
        shape: how pictures are prepared for it.
        embedding_size: D.
        fingerprint: of its tensors.
        batch_size: B.
    """

    model: nn.Module
    device: torch.device
    shape: Preprocessing
    embedding_size: int
    fingerprint: str
    batch_size: int

    @property
    def piece_size(self) -> int:
        """Items of a piece: whole batches."""
        return -(-PIECE // self.batch_size) * self.batch_size

    @property
    def block_size(self) -> int:
        """Items of a block: whole pieces."""
        return -(-BLOCK // self.piece_size) * self.piece_size

    @torch.inference_mode()
    def embed(self, store: Store) -> Array:
        """Return the embeddings ``(n, D)`` of decoded images."""
        found = []
        for start in range(0, len(store.starts), self.batch_size):
            part = store.take(np.arange(start, min(start + self.batch_size, len(store.starts))))
            if self.device.type != "cpu":
                part = part.gather(np.arange(len(part.starts)))
            found.append(self.model(self._shown(part)))
        return np.asarray(torch.cat(found).float().cpu().numpy())

    def _shown(self, part: Store) -> Tensor:
        """Return the crops ``(B, c, S, S)`` of a batch, on the device."""
        pixels = part.pixels.to(self.device, non_blocking=True)
        side, channels = self.shape.size, int(pixels.shape[1])
        # Where each would begin if they were of the network's size and lay side by side.
        begins = part.starts[0] + np.arange(len(part.starts)) * side**2
        is_ready = side == self.shape.resize and bool((part.sizes == side).all())
        if is_ready and (part.starts == begins).all():
            # Each is its own crop: to resample would multiply by one.
            shown = pixels[begins[0] : begins[-1] + side**2].view(-1, side, side, channels)
            return shown.permute(0, 3, 1, 2).float()
        windows = CentreCrop(side, self.shape.resize).windows(part.sizes)
        return resample(pixels, part.starts, part.sizes[:, 1], windows)


def block_rows(count: int, embedder: Embedder) -> list[range]:
    """Return which rows of a table form its blocks."""
    size = embedder.block_size
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def embed_collection(
    collection: Collection,
    embedder: Embedder,
    workspace: Path,
    *,
    num_workers: int | None = None,
    advance: Callable[[int], None] = lambda worth: None,
) -> tuple[list[Path], int]:
    """Embed what is not embedded yet.

    Args:
        collection: what is to be embedded.
        embedder: by what.
        workspace: where finished blocks are kept. Those of the same collection and network are
            used; others are thrown away.
        num_workers: decoding processes; one for each core by default.
        advance: told how many items are done, those that were done before too.

    Returns:
        The files of all blocks, in order; and how many items had been embedded before.
    """
    blocks = block_rows(len(collection.table), embedder)
    paths = [workspace / f"block-{number:06d}.npz" for number in range(len(blocks))]
    prepare_workspace(workspace, _key(collection, embedder), paths)
    missing = [number for number, path in enumerate(paths) if not path.is_file()]
    lacking = set(missing)
    before = sum(len(rows) for number, rows in enumerate(blocks) if number not in lacking)
    advance(before)
    pieces = [
        (number, rows[start : start + embedder.piece_size])
        for number in missing
        for rows in [blocks[number]]
        for start in range(0, len(rows), embedder.piece_size)
    ]
    parts: list[Block] = []
    with ExitStack() as stack:
        decode = _decoder_of(collection.table, embedder, num_workers, stack)
        make = partial(_piece, collection, embedder, decode)
        # Without files to wait for, a thread would only take turns with the network on the CPU.
        waits = isinstance(collection.table.source, Files) or embedder.device.type != "cpu"
        made = (_one_ahead if waits else map)(make, [rows for _, rows in pieces])
        for (number, rows), (piece, store) in zip(pieces, made, strict=True):
            parts.append(_with_vectors(piece, store, embedder))
            advance(len(rows))
            if rows.stop == blocks[number].stop:
                _joined(parts).write(paths[number])
                parts = []
    return paths, before


def prepare_workspace(workspace: Path, key: str, paths: Sequence[Path]) -> None:
    """Empty the workspace unless it was made for the same: then only what is not whole goes."""
    plan = workspace / PLAN
    try:
        is_same = json.loads(plan.read_text())["key"] == key
    except (OSError, ValueError, KeyError, TypeError):
        is_same = False
    if is_same:
        for path in paths:
            try:
                Block.read(path)
            # A block that cannot be read, for whatever reason, is made again.
            except Exception:
                path.unlink(missing_ok=True)
        return
    clear_workspace(workspace)
    workspace.mkdir(parents=True, exist_ok=True)
    with replacing(plan) as temporary:
        temporary.write_text(json.dumps({"key": key}))


def content_digest(table: Table, row: int) -> bytes:
    """Return 16 bytes that tell the content of an item from any other."""
    source = table.source
    if isinstance(source, Files):
        with source.file(row).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    pixels = np.ascontiguousarray(source.read(row))
    height, width = pixels.shape[:2]
    # The shape as a salt: the same bytes in other rows are another picture.
    salt = height.to_bytes(4, "little") + width.to_bytes(4, "little")
    return hashlib.blake2b(pixels.data, digest_size=16, salt=salt).digest()


def _key(collection: Collection, embedder: Embedder) -> str:
    """Return a word that changes with the network, the items or how they are cut into blocks."""
    state = hashlib.sha256(embedder.fingerprint.encode())
    state.update(f"{embedder.shape} {embedder.batch_size} {PIECE} {BLOCK}".encode())
    state.update(json.dumps([collection.names, collection.classes]).encode())
    source = collection.table.source
    if isinstance(source, Files):
        for each in file_states(source):
            state.update(each)
    elif isinstance(source, Pixels):
        state.update(np.ascontiguousarray(source.pixels).data)
    else:
        for row in range(len(source)):
            try:
                state.update(content_digest(collection.table, row))
            except BadImageError as error:  # which is told of later
                state.update(str(error).encode())
    return state.hexdigest()


def _one_ahead(make: Callable[[range], Any], given: Sequence[range]) -> Iterator[Any]:
    """Yield what is made of each, the next one being made meanwhile."""
    with ThreadPoolExecutor(1, "weiss-index") as thread:
        coming = [thread.submit(make, each) for each in given[:1]]
        try:
            for number in range(len(given)):
                ready = coming.pop().result()
                coming += [thread.submit(make, each) for each in given[number + 1 : number + 2]]
                yield ready
        finally:
            thread.shutdown(cancel_futures=True)


def _piece(
    collection: Collection, embedder: Embedder, decode: Decode, rows: range
) -> tuple[Block, Store]:
    """Return the items of some rows that can be read, without vectors; and their pixels."""
    at = np.arange(rows.start, rows.stop)
    part = collection.table.take(at)
    store, errors = decode(part)
    good = np.setdiff1d(np.arange(len(part)), np.array(list(errors), dtype=np.int64))
    why = {rows.start + row: _reason(part, row, text) for row, text in errors.items()}
    store = store.take(good)
    thumbnails, places = _small_pictures(store)
    digests = [content_digest(part, int(row)) for row in good]
    block = Block(
        at[good],
        np.zeros((0, embedder.embedding_size), dtype=np.float32),
        thumbnails,
        places,
        np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16),
        why,
    )
    return block, store


def _small_pictures(store: Store) -> tuple[Array, Array]:
    """Return small pictures one after the other, uint8, and where each lies, ``(n, 4)``."""
    channels, count = int(store.pixels.shape[1]), len(store.starts)
    flat = store.pixels.view(-1).numpy()
    lengths = store.num_pixels() * channels
    firsts = store.starts * channels
    places = np.zeros((count, 4), dtype=np.int64)
    ends = np.cumsum(lengths)
    is_run = count > 0 and bool((firsts - firsts[0] == ends - lengths).all())
    if is_run and lengths.max() <= TINY and store.sizes.max() <= SIDE:
        # All are kept as they are, and lie one after the other already.
        places[:, 0], places[:, 1], places[:, 2:] = ends - lengths, lengths, store.sizes
        return flat[firsts[0] : firsts[0] + ends[-1]], places
    pieces, start = [], 0
    for number, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
        height, width = (int(side) for side in store.sizes[number])
        pixels = flat[first : first + length].reshape(height, width, channels)
        kept, tall, wide = small_picture(pixels)
        places[number] = start, len(kept), tall, wide
        start += len(kept)
        pieces.append(kept)
    return np.frombuffer(b"".join(pieces), dtype=np.uint8), places


def _decoder_of(
    table: Table, embedder: Embedder, num_workers: int | None, stack: ExitStack
) -> Decode:
    """Return what decodes a piece; the processes that it needs end with the stack."""
    short_side = embedder.shape.short_side
    workers = workers_for(len(table), num_workers)
    source = table.source
    if not isinstance(source, Files) or not workers:
        return lambda part: build_store(part, IN_MEMORY, short_side=short_side, num_workers=0)
    decoders = stack.enter_context(
        Decoders(workers, channels=source.channels, short_side=short_side)
    )

    def decode(part: Table) -> tuple[Store, dict[int, str]]:
        assert isinstance(part.source, Files)
        files = [part.source.file(row) for row in range(len(part))]
        channels = part.source.channels
        memory = Memory(len(files) * 2 * short_side**2 * channels)
        done = collect(decoders.submit_all(files, memory.add))
        starts, sizes = np.array(done.starts) // channels, np.array(done.sizes)
        return Store(memory.pixels(channels), starts, sizes, IN_MEMORY), done.errors

    return decode


def _reason(part: Table, row: int, message: str) -> str:
    """Return why an image cannot be read, without the folders in front of its name."""
    if isinstance(part.source, Files):
        file = part.source.file(row)
        message = message.removeprefix(f"{file}: ")
        message = message.replace(str(file), file.name).replace(str(file.absolute()), file.name)
    return shown(message)


def _with_vectors(piece: Block, store: Store, embedder: Embedder) -> Block:
    """Embed a piece; what comes out as no number is left out like a file that cannot be read."""
    if not len(piece.rows):
        return piece
    vectors = embedder.embed(store)
    good = np.isfinite(vectors).all(axis=1)
    why = "its embedding is not finite (NaN or infinity)"
    bad = {int(row): why for row in piece.rows[~good]}
    return Block(
        piece.rows[good],
        vectors[good],
        piece.thumbnails,
        piece.places[good],
        piece.digests[good],
        {**piece.errors, **bad},
    )


def _joined(parts: Sequence[Block]) -> Block:
    """Return some pieces as one block."""
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
