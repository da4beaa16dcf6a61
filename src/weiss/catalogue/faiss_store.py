"""A faiss index in memory or mapped from a file; faiss is imported only here.

Below 100,000 items every vector is compared: exact, and fast enough. Larger stores are inverted
files (IVF): each vector is in the list of its nearest centre, and a search reads the few nearest
lists. IVF was chosen over a graph (HNSW) by ``benchmarks/bench_catalogue.py``: it is built several
times faster, and the result is deterministic. A graph is an option. A store only grows: without
some of its items it is another one. Files of before 0.2 have places of removed items, with id -1.

Two kinds keep small codes for the search, and compare the float32 vectors of few candidates, which
are read from the file (`weiss.catalogue.codes`): ``int8`` is exact, ``binary`` approximate.

The effort of an approximate search is raised until its recall on a sample of the store's own items,
each without itself, reaches `AIM`. Effort and recall are kept in the file.

The file, in an order that lets faiss read or map its part (it ignores what follows):

    faiss's part | vectors, float32, beside codes | ids, int64 | facts, JSON | three lengths,
    SHA-256 twice, MARK

The first of the lengths is that of faiss's part and the vectors together.

The first checksum covers everything. The second covers ids, facts and the beginning of faiss's
part: it is compared when a file is mapped, which must not read gigabytes.

This is one piece: the file keeps the effort that the recall has set, and every change of the index
(its kind, its effort, its ids) touches the same state.

A place is faiss's own number of a vector, from 0; an array gives the id at each place.
Dimensions: n items, q queries, D embedding size.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from weiss._base.arrays import Array
from weiss._base.checks import one_of
from weiss._base.files import replacing
from weiss.catalogue.coded_vectors import CodedVectors
from weiss.catalogue.codes import CODED, load_faiss, method, sample
from weiss.catalogue.open_file import OpenFile
from weiss.catalogue.records import damaged
from weiss.catalogue.stores import ROUNDING, VectorStore, best_first, refuse_known, unit_vectors

EXACT_BELOW = 100_000
"""With fewer items every vector is compared."""
PROMISE, AIM = 0.98, 0.99
"""The recall@10 that is promised, and the one aimed at: other queries find less than items do."""
SAMPLE, DEPTHS = 500, (10, 100)
"""Items that measure the recall, and the k for which the search effort is set."""
CLASSES = {"flat": "IndexFlatIP", "ivf": "IndexIVFFlat", "hnsw": "IndexHNSWFlat"}
"""The kinds of an index that has the vectors themselves, and faiss's name of each."""
KINDS = (*CLASSES, *CODED)
LINKS, CONSTRUCTION = 32, 80
"""The HNSW graph: M and efConstruction."""
CANDIDATES = (32, 4096)
"""The smallest and the largest efSearch that is tried."""
SIMILARITIES_AT_ONCE = 16_000_000
"""Similarities in memory while the recall is measured, 64 MB."""
IN_MEMORY = 64 * 2**20
"""Bytes up to which the store of an index is read into memory, and verified; others are mapped."""
MARK = b"weissST2"
END = struct.Struct("<QQQ32s32s8s")
CHUNK = 1 << 20
"""Bytes that are read at once; as many of faiss's part are in the second checksum."""


class FaissStore(VectorStore):
    """Vectors of unit length, searched by cosine similarity.

    Several threads may search at once, but not while one of them adds.

    Args:
        dimension: D.
        kind: ``"flat"`` and ``"int8"`` are exact, ``"binary"``, ``"ivf"`` and ``"hnsw"`` are not;
            ``"auto"`` is flat, then ivf.

    Example:
        >>> store = FaissStore(2)
        >>> store.add(np.array([7, 9]), np.eye(2, dtype=np.float32))
        >>> ids, similarities = store.search(np.array([[0.6, 0.8]], dtype=np.float32), k=3)
        >>> ids.tolist(), len(store)
        ([[9, 7, -1]], 2)
    """

    suffix = ".faiss"
    pattern = form = example = "faiss"

    def __init__(self, dimension: int, *, kind: str = "auto") -> None:
        self.dimension, self._wanted, self.kind = dimension, kind, "flat"
        self._file: OpenFile | None = None
        self._ids: Array
        self._coded: CodedVectors | None
        self._rebuild(np.empty(0, np.int64), np.empty((0, self.dimension), np.float32))

    @classmethod
    def checked_address(cls, address: str, home: Path, kind: str) -> str:
        """Return the address, ``faiss``; check the kind."""
        one_of("--kind", kind, ("auto", *KINDS), "weiss index")
        return address

    @classmethod
    def make(cls, home: Path, facts: Mapping[str, Any], dimension: int, kind: str) -> "FaissStore":
        """Make the store of a new index in memory."""
        return cls(dimension, kind=kind)

    @classmethod
    def open(
        cls, home: Path, facts: Mapping[str, Any], dimension: int, *, to_change: bool = False
    ) -> "FaissStore":
        """Map the file of an index; read a small one, or one to change."""
        path = home / facts["file"]
        mapped = not to_change and path.stat().st_size > IN_MEMORY
        return cls.load(path, dimension=dimension, mapped=mapped)

    def __len__(self) -> int:
        """Return how many items there are."""
        return self._size

    def add(self, ids: Array, vectors: Array) -> None:
        """Add vectors ``(n, D)`` under ids ``(n,)``; if the store has one of them, none is added.

        The store is built again when it reaches 100,000 items (kind ``"auto"``) and whenever an IVF
        has doubled. Its effort is measured again when a tenth of the items is new.
        """
        if self._file is not None:  # faiss would write to memory that it must not
            raise ValueError(
                "a FaissStore must be in memory to be changed; this one is mapped from a file. "
                "Load it with mapped=False."
            )
        vectors = unit_vectors("vectors", vectors, "FaissStore")
        refuse_known(ids[np.isin(ids, self._ids)], "FaissStore")
        if not len(self):
            self._rebuild(ids, vectors)
        elif len(ids):
            self._put(ids, vectors)
            self._keep_up(len(ids))

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query ``(q, D)``; see `VectorStore.search`."""
        queries = unit_vectors("queries", queries, "FaissStore")
        wanted = min(k, len(self))
        if wanted == 0 or len(queries) == 0:
            nothing = np.empty((len(queries), 0), np.int64)
            return best_first(nothing, nothing, k)
        if self._file is not None:
            self._file.refuse_cut_off()
        places, similarities = self._nearest(queries, wanted, self._effort(wanted))
        if places.max() >= len(self._ids):
            raise damaged("the store", "it has a vector without an id")
        return best_first(np.where(places < 0, -1, self._ids[places]), similarities, k)

    def contents(self) -> tuple[Array, Array]:
        """Return a copy of all ids int64 ``(n,)`` and vectors float32 ``(n, D)``."""
        if self._coded is not None:
            return self._ids.copy(), self._coded.vectors()
        if self.kind == "ivf":  # from a place to its list
            self._index.make_direct_map()
        vectors = self._index.reconstruct_n(0, len(self._ids))
        if self.kind == "ivf":  # the file must not have it
            self._index.make_direct_map(False)
        return self._ids.copy(), vectors

    def describe(self, num_items: int | None = None) -> str:
        """Return one line: the kind of the store, why it was chosen, and its settings."""
        count = len(self) if num_items is None else num_items
        items = f"{count:,} items of {self.dimension} dimensions"
        if self.kind == "flat":
            why = f" (below {EXACT_BELOW:,} items that is fast)" if self._wanted == "auto" else ""
            return f"faiss flat: exact search over {items}{why}"
        # What is asked for ten neighbours can be more than a small store has.
        compared = 0 if self._coded is None else min(self._coded.candidate_count(10), count)
        if self._coded is not None and self.kind == "int8":
            share = next(iter(self._coded.settled.values()), 1.0)
            return (
                f"faiss int8: exact search over {items}: codes of a byte a component, vectors of "
                f"{compared:,} candidates for 10 neighbours; {share:.3f} of its own items need no "
                "more"
            )
        why = "as was asked for"
        if self.kind == "hnsw":
            candidates = min(self._effort(10), count)
            read = f"{LINKS} links an item, {candidates:,} candidates for 10 neighbours"
        else:
            lists = self._index.nlist if self._coded is None else self._coded.codes.num_lists
            read = f"{min(self._effort(10), lists):,} of {lists:,} lists read"
            if self.kind == "binary":
                read = f"codes of a bit a component, {read}, vectors of {compared:,} candidates"
            read += " for 10 neighbours"
        if self._wanted == "auto":
            why = f"from {EXACT_BELOW:,} items on, since it is built faster than a graph"
        measured = "recall not measured"
        if self._recalls:
            depth, share = next(iter(self._recalls.items()))
            measured = f"recall@{depth} {share:.3f} against exact search on its own items"
            measured += "" if share >= PROMISE else f", less than the {PROMISE} aimed at"
        return f"faiss {self.kind} over {items}: {read}; {measured}; {why}"

    def save(self, path: str | Path) -> None:
        """Write the store to one file, atomically."""
        facts = {
            "kind": self.kind,
            "wanted": self._wanted,
            "built": self._built,
            "changed": self._changed,
            "efforts": self._efforts,
            "recalls": self._recalls,
        }
        with replacing(path) as temporary:
            load_faiss().write_index(self._index, str(temporary))
            if self._coded is not None:
                facts |= {"index_bytes": temporary.stat().st_size, **self._coded.facts()}
                with temporary.open("ab") as file:
                    self._coded.write(file)
            size = temporary.stat().st_size
            tail = self._ids.astype("<i8").tobytes()
            words = json.dumps(facts).encode()
            with temporary.open("rb+") as file:
                of_all = _digest(file, size, tail + words)
                of_facts = _digest(file, min(size, CHUNK), tail + words + of_all)
                file.seek(size)
                lengths = (size, len(tail), len(words))
                file.write(tail + words + END.pack(*lengths, of_all, of_facts, MARK))

    @classmethod
    def load(
        cls, path: str | Path, *, dimension: int | None = None, mapped: bool = False
    ) -> "FaissStore":
        """Read a store that `save` wrote.

        Args:
            path: the file.
            dimension: D that the store must have.
            mapped: map the vectors from the file; the store is then read-only, and a file that is
                cut off later is refused by the next search.

        Raises:
            ValueError: the file is damaged, or of another dimension.
            FileNotFoundError: there is none.
        """
        path = Path(path)
        facts, ids = read_facts(path, everything=not mapped)
        try:
            index = load_faiss().read_index(
                str(path), load_faiss().IO_FLAG_MMAP_IFC if mapped else 0
            )
        except (RuntimeError, MemoryError) as error:  # a damaged length may ask for all memory
            path.stat()  # raises FileNotFoundError if it was removed meanwhile; faiss does not
            raise ValueError(
                f"{path.name} must be an index this version of faiss reads; it does not. "
                "Install a newer faiss-cpu, or make the index again."
            ) from error
        if dimension is not None and index.d != dimension:
            raise ValueError(
                f"{path.name} must hold vectors of {dimension} dimensions; it holds {index.d}. "
                "It belongs to another model: make the index again."
            )
        kind, coded = facts["kind"], None
        if kind in CODED:
            coded = CodedVectors.of_file(kind, index, OpenFile(path), path.name, len(ids), facts)
        elif type(index).__name__ != CLASSES[kind]:
            raise damaged(path.name, f"it must be {kind}; it is {type(index).__name__}")
        store = cls.__new__(cls)
        store.dimension, store.kind, store._wanted = index.d, kind, facts["wanted"]
        store._index, store._ids, store._coded = index, ids, coded
        store._file = OpenFile(path) if mapped else None
        store._built, store._changed = facts["built"], facts["changed"]
        store._efforts, store._recalls = facts["efforts"], facts["recalls"]
        store._note_ids()
        return store

    def _rebuild(self, ids: Array, vectors: Array) -> None:
        """Build the index from ids ``(n,)`` and vectors ``(n, D)``, of the kind for this size."""
        self.kind = self._kind_for(len(ids))
        self._ids = np.empty(0, np.int64)
        self._built, self._changed = len(ids), 0
        self._efforts: dict[int, int] = {}
        self._recalls: dict[int, float] = {}
        self._coded = None
        if self.kind in CODED:
            self._coded = CodedVectors.make(self.kind, vectors, trained_lists)
            self._index: Any = self._coded.codes.index
        elif self.kind == "flat":
            self._index = load_faiss().IndexFlatIP(self.dimension)
        elif self.kind == "ivf":
            self._index = trained_lists(load_faiss().IndexIVFFlat, vectors)
        else:
            product = load_faiss().METRIC_INNER_PRODUCT
            self._index = load_faiss().IndexHNSWFlat(self.dimension, LINKS, product)
            self._index.hnsw.efConstruction = CONSTRUCTION
        self._put(ids, vectors)
        self._set_effort(vectors)

    def _kind_for(self, size: int) -> str:
        """Return the kind for this size."""
        if size == 0:
            return "flat"  # there are no vectors to find centres of
        if self._wanted != "auto":
            return self._wanted
        return "flat" if size < EXACT_BELOW else "ivf"

    def _put(self, ids: Array, vectors: Array) -> None:
        """Give vectors ``(n, D)`` to faiss, at the places after the last."""
        first = len(self._ids)
        if self._coded is not None:
            self._coded.add(vectors)
        elif self.kind == "ivf":
            method(self._index, "add_with_ids")(vectors, np.arange(first, first + len(ids)))
        elif self.kind == "hnsw":
            # With several threads the order of the links would be random.
            threads = load_faiss().omp_get_max_threads()
            load_faiss().omp_set_num_threads(1)
            try:
                method(self._index, "add")(vectors)
            finally:
                load_faiss().omp_set_num_threads(threads)
        else:
            method(self._index, "add")(vectors)
        self._ids = np.concatenate([self._ids, ids])
        self._note_ids()

    def _note_ids(self) -> None:
        """Update what is derived from the ids."""
        there = self._ids >= 0
        self._size = int(there.sum())
        # A mask of the places that count, one bit each, for a graph of before 0.2.
        self._bits = None if there.all() else np.packbits(there, bitorder="little")

    def _keep_up(self, added: int) -> None:
        """Rebuild the index or measure its effort again, if enough was added."""
        self._changed += added
        size = len(self)
        is_outgrown = self.kind in ("ivf", "binary") and size > 2 * self._built
        if self._kind_for(size) != self.kind or is_outgrown:
            self._rebuild(*self.contents())
        elif self.kind != "flat" and 10 * self._changed > size:
            self._set_effort(self.contents()[1])

    def _effort(self, k: int) -> int:
        """Return the effort for k neighbours: lists of an IVF, candidates of a graph."""
        for depth, effort in self._efforts.items():
            if k <= depth:
                return effort
        deepest = max(self._efforts, default=1)
        return self._efforts.get(deepest, 1) * math.ceil(k / deepest)

    def _nearest(self, queries: Array, k: int, effort: int) -> tuple[Array, Array]:
        """Return places and similarities ``(q, k)``; all k are found if the store has k items."""
        if self.kind == "flat":
            similarities, places = method(self._index, "search")(queries, k)
            return places, similarities
        if self._coded is not None:
            return self._coded.nearest(queries, k, effort)
        selected: dict[str, Any] = {}
        if self.kind == "ivf":
            limit = self._index.nlist
            settings = load_faiss().SearchParametersIVF(nprobe=min(effort, limit))
        else:
            if self._bits is not None:
                selected = {"sel": load_faiss().IDSelectorBitmap(self._bits)}
            limit = len(self._ids)
            candidates = min(max(effort, k), limit)
            settings = load_faiss().SearchParametersHNSW(efSearch=candidates, **selected)
        similarities, places = method(self._index, "search")(queries, k, params=settings)
        short = np.flatnonzero(places[:, -1] < 0)
        if len(short) and effort < limit:
            places[short], similarities[short] = self._nearest(queries[short], k, 4 * effort)
        elif len(short):  # the graph is not connected: compare every vector
            settings = load_faiss().SearchParameters(**selected)
            found = method(self._index.storage, "search")(queries[short], k, params=settings)
            similarities[short], places[short] = found
        return places, similarities

    def _set_effort(self, vectors: Array) -> None:
        """Raise the effort until the recall on a sample of all vectors reaches `AIM`."""
        self._changed, self._efforts, self._recalls = 0, {}, {}
        depths = sorted({min(depth, len(self) - 1) for depth in DEPTHS} - {0, -1})
        if self.kind == "flat" or not depths:
            return
        rows = sample(len(vectors), SAMPLE)
        if self._coded is not None and self.kind == "int8":
            self._coded.set_candidates(vectors[rows], depths, AIM)
            return
        # An item is its own nearest neighbour: the k-th other has rank k + 1.
        worst = similarity_at(vectors[rows], vectors, [depth + 1 for depth in depths])

        def recall(k: int, found: tuple[Array, Array]) -> float:
            return recall_of_items(rows, worst[k + 1], k, *found)

        if self._coded is not None:
            of_both = self._coded.set_lists(vectors[rows], depths, AIM, recall)
            self._efforts, self._recalls = of_both
            return
        effort, limit = (1, self._index.nlist) if self.kind == "ivf" else CANDIDATES
        for depth in depths:
            while True:
                share = recall(depth, self._nearest(vectors[rows], depth + 1, effort))
                self._efforts[depth], self._recalls[depth] = effort, share
                if share >= AIM or effort >= limit:
                    break
                effort = min(limit, max(effort + 1, effort * 3 // 2))


class _Facts(BaseModel):
    """The facts in the file of a store."""

    model_config = ConfigDict(allow_inf_nan=False)
    kind: Literal["flat", "ivf", "hnsw", "int8", "binary"]
    wanted: Literal["auto", "flat", "ivf", "hnsw", "int8", "binary"]
    built: NonNegativeInt
    changed: NonNegativeInt
    efforts: dict[PositiveInt, PositiveInt]
    recalls: dict[PositiveInt, float]
    # Of kinds with codes; files of before have none of these.
    candidates: dict[PositiveInt, PositiveInt] = {}
    settled: dict[PositiveInt, float] = {}
    index_bytes: NonNegativeInt = 0
    scale: float = 0.0
    error: NonNegativeFloat = 0.0
    length: NonNegativeFloat = 0.0


def trained_lists(kind: Any, vectors: Array, turn: Callable[[Array], Array] | None = None) -> Any:
    """Return an empty inverted file with centres found from a sample of vectors ``(n, D)``.

    ``kind`` is faiss's class of it. With ``turn`` its vectors are the turned ones.
    """
    dimension = vectors.shape[1]
    # 2 sqrt(n) lists: comparing the centres costs about as much as reading a list or two.
    lists = max(1, min(round(2 * math.sqrt(len(vectors))), len(vectors)))
    centres = load_faiss().IndexFlatIP(dimension)
    index = kind(centres, dimension, lists, load_faiss().METRIC_INNER_PRODUCT)
    index.cp.spherical, index.cp.niter, index.cp.seed = True, 10, 0
    index.cp.min_points_per_centroid = 1  # prints a warning otherwise
    some = vectors[sample(len(vectors), 64 * lists)]
    method(index, "train")(some if turn is None else turn(some))
    return index


def recall_of_items(rows: Array, worst: Array, k: int, places: Array, similarities: Array) -> float:
    """Return the share of the k nearest items that items as queries have found.

    Args:
        rows: the places ``(q,)`` of the queries.
        worst: the similarity ``(q,)`` of the k-th nearest other item. One as similar is one of
            them: copies count.
        k: how many were to be found.
        places: what was found, ``(q, k + 1)``.
        similarities: of what was found, ``(q, k + 1)``.
    """
    is_right = (places != rows[:, None]) & (similarities >= worst[:, None] - ROUNDING)
    return float(np.minimum(is_right.sum(1), k).mean() / k)


def similarity_at(queries: Array, vectors: Array, ranks: Sequence[int]) -> dict[int, Array]:
    """Return the similarity ``(q,)`` of the item at each rank, by comparing all vectors."""
    found = {rank: np.empty(len(queries), np.float32) for rank in ranks}
    rows = max(1, SIMILARITIES_AT_ONCE // len(vectors))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        sim_QN = torch.from_numpy(queries[block] @ vectors.T)
        best = sim_QN.topk(max(ranks)).values.numpy()  # six times as fast as numpy's partition
        for rank, values in found.items():
            values[block] = best[:, rank - 1]
    return found


def read_facts(path: Path, *, everything: bool = True) -> tuple[dict[str, Any], Array]:
    """Return facts and ids int64 ``(n,)``; compare one checksum, or with ``everything`` both."""
    refused = ValueError(
        f"{path.name} must be a store written by Weiss; it is cut off, changed or something else. "
        "Make the index again, or bring the file back from a copy."
    )
    whole = path.stat().st_size
    with path.open("rb") as file:
        if whole < END.size:
            raise refused
        file.seek(whole - END.size)
        size, num_tail, num_words, of_all, of_facts, mark = END.unpack(file.read(END.size))
        if mark != MARK or size + num_tail + num_words + END.size != whole:
            raise refused
        file.seek(size)
        tail, words = file.read(num_tail), file.read(num_words)
        is_right = _digest(file, min(size, CHUNK), tail + words + of_all) == of_facts
        if everything and is_right:
            is_right = _digest(file, size, tail + words) == of_all
        if not is_right:
            raise refused
    try:
        facts = _Facts.model_validate_json(words).model_dump()
    except ValidationError:
        raise refused from None
    facts["vectors_end"] = size
    return facts, np.frombuffer(tail, "<i8").astype(np.int64)


def _digest(file: Any, size: int, rest: bytes) -> bytes:
    """Return the SHA-256 of the first ``size`` bytes of a file, and of ``rest``."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0:
        chunk = file.read(min(CHUNK, size))
        if not chunk:
            break
        digest.update(chunk)
        size -= len(chunk)
    digest.update(rest)
    return digest.digest()
