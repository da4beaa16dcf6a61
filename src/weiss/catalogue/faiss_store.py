"""A faiss index in memory or mapped from a file; faiss is imported only here.

Below 100,000 items every vector is compared: exact, and fast enough. Larger stores are inverted
files (IVF): each vector is in the list of its nearest centre, and a search reads the few nearest
lists. IVF was chosen over a graph (HNSW) by ``benchmarks/bench_catalogue.py``: it is built several
times faster, items can be removed, and the result is deterministic. A graph is an option: removed
items are masked, and it is built again when a quarter of them is masked.

The effort of an approximate search is raised until its recall on a sample of the store's own items,
each without itself, reaches `AIM`. Effort and recall are kept in the file.

The file, in an order that lets faiss read or map its part (it ignores what follows):

    faiss's part | ids, int64 | facts, JSON | three lengths, SHA-256 twice, MARK

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weiss._base.arrays import Array
from weiss._base.checks import count, one_of
from weiss._base.files import replacing
from weiss.catalogue.stores import best_first, item_ids, new_items, refuse_known, unit_vectors

EXACT_BELOW = 100_000
"""With fewer items every vector is compared."""
PROMISE, AIM = 0.98, 0.99
"""The recall@10 that is promised, and the one aimed at: other queries find less than items do."""
SAMPLE, DEPTHS = 500, (10, 100)
"""Items that measure the recall, and the k for which the search effort is set."""
KINDS = ("auto", "flat", "ivf", "hnsw")
LINKS, CONSTRUCTION = 32, 80
"""The HNSW graph: M and efConstruction."""
CANDIDATES = (32, 4096)
"""The smallest and the largest efSearch that is tried."""
SIMILARITIES_AT_ONCE = 16_000_000
"""Similarities in memory while the recall is measured, 64 MB."""
ROUNDING = 1e-6
"""By how much a similarity differs when it is computed in another order."""
MARK = b"weissST2"
END = struct.Struct("<QQQ32s32s8s")
CHUNK = 1 << 20
"""Bytes that are read at once; as many of faiss's part are in the second checksum."""


class FaissStore:
    """Vectors of unit length, searched by cosine similarity.

    Several threads may search at once, but not while one of them adds or removes.

    Args:
        dimension: D.
        kind: ``"flat"`` is exact, ``"ivf"`` and ``"hnsw"`` are not; ``"auto"`` is flat, then ivf.

    Example:
        >>> store = FaissStore(2)
        >>> store.add(np.array([7, 9]), np.eye(2, dtype=np.float32))
        >>> ids, similarities = store.search(np.array([[0.6, 0.8]], dtype=np.float32), k=3)
        >>> ids.tolist(), len(store)
        ([[9, 7, -1]], 2)
    """

    def __init__(self, dimension: int, *, kind: str = "auto") -> None:
        self.dimension = count("dimension", dimension, "FaissStore")
        self._wanted = one_of("kind", kind, KINDS, "FaissStore")
        self._is_mapped, self.kind = False, "flat"
        self._ids: Array
        self._rebuild(np.empty(0, np.int64), np.empty((0, self.dimension), np.float32))

    @classmethod
    def build(cls, ids: Array, vectors: Array, *, kind: str = "auto") -> "FaissStore":
        """Make a store of many items at once, which is faster than adding them.

        The ids are int64 ``(n,)``, the vectors float32 ``(n, D)`` of unit length.
        """
        vectors = np.asarray(vectors)
        if vectors.ndim != 2:
            raise ValueError(
                f"vectors must have shape (n, D) for FaissStore; got {vectors.shape}. Pass rows."
            )
        store = cls(vectors.shape[1], kind=kind)
        store._rebuild(*new_items(ids, vectors, store.dimension, "FaissStore"))
        return store

    def __len__(self) -> int:
        """Return how many items there are."""
        return self._size

    def add(self, ids: Array, vectors: Array) -> None:
        """Add vectors ``(n, D)`` under ids ``(n,)``; if the store has one of them, none is added.

        The store is built again when it reaches 100,000 items (kind ``"auto"``) and whenever an IVF
        has doubled. Its effort is measured again when a tenth of the items has changed.
        """
        self._must_be_writable()
        ids, vectors = new_items(ids, vectors, self.dimension, "FaissStore")
        refuse_known(ids[self._places(ids) >= 0], "FaissStore")
        if len(ids):
            self._put(ids, vectors)
            self._keep_up(len(ids))

    def remove(self, ids: Array) -> int:
        """Remove items and return how many of ``ids`` ``(n,)`` the store had.

        An IVF is built again when half of its items are removed, a graph when a quarter are.
        """
        self._must_be_writable()
        places = self._places(item_ids(ids, "FaissStore"))
        places = places[places >= 0]
        if not len(places):
            return 0
        if self.kind != "hnsw":  # a graph cannot: its links go through every vector
            self._index.remove_ids(places)
        self._ids[places] = -1
        if self.kind == "flat":  # faiss moves the vectors that follow
            self._ids = self._ids[self._ids >= 0]
        self._note_ids()
        self._keep_up(len(places))
        return len(places)

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query ``(q, D)``; see `Store.search`."""
        queries = unit_vectors("queries", queries, self.dimension, "FaissStore")
        k = count("k", k, "FaissStore.search")
        wanted = min(k, len(self))
        if wanted == 0 or len(queries) == 0:
            nothing = np.empty((len(queries), 0), np.int64)
            return best_first(nothing, nothing, k)
        places, similarities = self._nearest(queries, wanted, self._effort(wanted))
        return best_first(np.where(places < 0, -1, self._ids[places]), similarities, k)

    def contents(self) -> tuple[Array, Array]:
        """Return a copy of all ids int64 ``(n,)`` and vectors float32 ``(n, D)``."""
        there = self._ids >= 0
        if self.kind != "ivf":
            return self._ids[there], self._index.reconstruct_n(0, len(there))[there]
        vectors = np.empty((len(there), self.dimension), np.float32)
        lists = self._index.invlists
        for number in range(lists.nlist):
            if size := lists.list_size(number):
                places = _faiss().rev_swig_ptr(lists.get_ids(number), size)
                codes = _faiss().rev_swig_ptr(lists.get_codes(number), size * lists.code_size)
                vectors[places] = codes.view(np.float32).reshape(size, self.dimension)
        return self._ids[there], vectors[there]

    def describe(self) -> str:
        """Return one line: the kind of the store, why it was chosen, and its settings."""
        items = f"{len(self):,} items of {self.dimension} dimensions"
        if self.kind == "flat":
            why = f" (below {EXACT_BELOW:,} items that is fast)" if self._wanted == "auto" else ""
            return f"faiss flat: exact search over {items}{why}"
        why = "as was asked for"
        if self.kind == "hnsw":
            read = f"{LINKS} links an item, {self._effort(10):,} candidates for 10 neighbours"
        else:
            read = f"{self._effort(10):,} of {self._index.nlist:,} lists read for 10 neighbours"
        if self._wanted == "auto":
            why = (
                f"from {EXACT_BELOW:,} items on, since it is built faster than a graph, and shrinks"
            )
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
        write_store(path, lambda to: _faiss().write_index(self._index, str(to)), self._ids, facts)

    @classmethod
    def load(
        cls, path: str | Path, *, dimension: int | None = None, mapped: bool = False
    ) -> "FaissStore":
        """Read a store that `save` wrote.

        Args:
            path: the file.
            dimension: D that the store must have.
            mapped: map the vectors from the file; the store is then read-only.

        Raises:
            ValueError: the file is damaged, or of another dimension.
            FileNotFoundError: there is none.
        """
        path = Path(path)
        facts, ids = read_facts(path, everything=not mapped)
        try:
            index = _faiss().read_index(str(path), _faiss().IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError as error:
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
        store = cls.__new__(cls)
        store.dimension, store.kind, store._wanted = index.d, facts["kind"], facts["wanted"]
        store._index, store._ids, store._is_mapped = index, ids, mapped
        store._built, store._changed = facts["built"], facts["changed"]
        store._efforts = {int(k): effort for k, effort in facts["efforts"].items()}
        store._recalls = {int(k): share for k, share in facts["recalls"].items()}
        store._note_ids()
        return store

    def _rebuild(self, ids: Array, vectors: Array) -> None:
        """Build the index from ids ``(n,)`` and vectors ``(n, D)``, of the kind for this size."""
        self.kind = self._kind_for(len(ids))
        self._ids = np.empty(0, np.int64)
        self._built, self._changed = len(ids), 0
        self._efforts: dict[int, int] = {}
        self._recalls: dict[int, float] = {}
        if self.kind == "flat":
            self._index: Any = _faiss().IndexFlatIP(self.dimension)
        elif self.kind == "ivf":
            self._index = _trained_lists(vectors)
        else:
            product = _faiss().METRIC_INNER_PRODUCT
            self._index = _faiss().IndexHNSWFlat(self.dimension, LINKS, product)
            self._index.hnsw.efConstruction = CONSTRUCTION
        self._put(ids, vectors)
        self._set_effort(vectors)

    def _kind_for(self, size: int) -> str:
        """Return the kind for this size; an IVF becomes flat only at half of the bound."""
        if size == 0:
            return "flat"  # there are no vectors to find centres of
        if self._wanted != "auto":
            return self._wanted
        is_small = size < (EXACT_BELOW if self.kind == "flat" else EXACT_BELOW // 2)
        return "flat" if is_small else "ivf"

    def _put(self, ids: Array, vectors: Array) -> None:
        """Give vectors ``(n, D)`` to faiss, at the places after the last."""
        first = len(self._ids)
        if self.kind == "ivf":
            self._index.add_with_ids(vectors, np.arange(first, first + len(ids)))
        elif self.kind == "hnsw":
            # With several threads the order of the links would be random.
            threads = _faiss().omp_get_max_threads()
            _faiss().omp_set_num_threads(1)
            try:
                self._index.add(vectors)
            finally:
                _faiss().omp_set_num_threads(threads)
        else:
            self._index.add(vectors)
        self._ids = np.concatenate([self._ids, ids])
        self._note_ids()

    def _note_ids(self) -> None:
        """Update what is derived from the ids."""
        there = self._ids >= 0
        self._size = int(there.sum())
        self._order: Array | None = None
        # A mask of the places that count, one bit each, for the graph.
        self._bits = None if there.all() else np.packbits(there, bitorder="little")

    def _places(self, ids: Array) -> Array:
        """Return where each id is, int64 ``(n,)``, or -1."""
        if not len(self._ids):
            return np.full(len(ids), -1)
        if self._order is None:
            self._order = np.argsort(self._ids, kind="stable")
        at = np.searchsorted(self._ids, ids, sorter=self._order)
        places = self._order[np.minimum(at, len(self._ids) - 1)]
        return np.where(self._ids[places] == ids, places, -1)

    def _keep_up(self, changed: int) -> None:
        """Rebuild the index or measure its effort again, if enough has changed."""
        self._changed += changed
        size, places = len(self), len(self._ids)
        is_outgrown = self.kind == "ivf" and not self._built <= 2 * size <= 4 * self._built
        # Lists drop a removed vector but keep its place; a graph keeps both.
        is_hollow = (places - size) * (4 if self.kind == "hnsw" else 2) > places
        if self._kind_for(size) != self.kind or is_outgrown or is_hollow:
            self._rebuild(*self.contents())
        elif self.kind != "flat" and 10 * self._changed > size:
            self._set_effort(self.contents()[1])

    def _must_be_writable(self) -> None:
        if self._is_mapped:
            raise ValueError(
                "a FaissStore must be in memory to be changed; this one is mapped from a file. "
                "Load it with mapped=False."
            )

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
            similarities, places = self._index.search(queries, k)
            return places, similarities
        selected: dict[str, Any] = {}
        if self.kind == "ivf":
            limit = self._index.nlist
            settings = _faiss().SearchParametersIVF(nprobe=min(effort, limit))
        else:
            if self._bits is not None:
                selected = {"sel": _faiss().IDSelectorBitmap(self._bits)}
            limit = len(self._ids)
            candidates = min(max(effort, k), limit)
            settings = _faiss().SearchParametersHNSW(efSearch=candidates, **selected)
        similarities, places = self._index.search(queries, k, params=settings)
        short = np.flatnonzero(places[:, -1] < 0)
        if len(short) and effort < limit:
            places[short], similarities[short] = self._nearest(queries[short], k, 4 * effort)
        elif len(short):  # the graph is not connected: compare every vector
            settings = _faiss().SearchParameters(**selected)
            found = self._index.storage.search(queries[short], k, params=settings)
            similarities[short], places[short] = found
        return places, similarities

    def _set_effort(self, vectors: Array) -> None:
        """Raise the effort until the recall on a sample of all vectors reaches `AIM`."""
        self._changed, self._efforts, self._recalls = 0, {}, {}
        depths = sorted({min(depth, len(self) - 1) for depth in DEPTHS} - {0, -1})
        if self.kind == "flat" or not depths:
            return
        rows = sample(len(vectors), SAMPLE)
        # An item is its own nearest neighbour: the k-th other has rank k + 1.
        worst = similarity_at(vectors[rows], vectors, [depth + 1 for depth in depths])
        effort, limit = (1, self._index.nlist) if self.kind == "ivf" else CANDIDATES
        for depth in depths:
            while True:
                share = self._recall_of_items(rows, vectors, worst[depth + 1], depth, effort)
                self._efforts[depth], self._recalls[depth] = effort, share
                if share >= AIM or effort >= limit:
                    break
                effort = min(limit, max(effort + 1, effort * 3 // 2))

    def _recall_of_items(
        self, rows: Array, vectors: Array, worst: Array, k: int, effort: int
    ) -> float:
        """Return the recall of items as queries; ``worst`` is that of their k-th neighbour."""
        places, similarities = self._nearest(vectors[rows], k + 1, effort)
        own = np.flatnonzero(self._ids >= 0)[rows]
        return share_found(similarities, places != own[:, None], worst, k)


def _faiss() -> Any:
    """Import faiss when it is needed: loading takes a while. Its types are incomplete."""
    import faiss

    return faiss


def _trained_lists(vectors: Array) -> Any:
    """Return an empty IVF index with centres found from a sample of vectors ``(n, D)``."""
    dimension = vectors.shape[1]
    # 2 sqrt(n) lists: comparing the centres costs about as much as reading a list or two.
    lists = max(1, min(round(2 * math.sqrt(len(vectors))), len(vectors)))
    centres = _faiss().IndexFlatIP(dimension)
    index = _faiss().IndexIVFFlat(centres, dimension, lists, _faiss().METRIC_INNER_PRODUCT)
    index.cp.spherical, index.cp.niter, index.cp.seed = True, 10, 0
    index.cp.min_points_per_centroid = 1  # prints a warning otherwise
    index.train(vectors[sample(len(vectors), 64 * lists)])
    return index


def sample(size: int, most: int) -> Array:
    """Return at most ``most`` sorted row numbers below ``size``, deterministic."""
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, most, replace=False))


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


def share_found(similarities: Array, is_counted: Array, worst: Array, k: int) -> float:
    """Return the share of the k nearest items among those found, ``(q, m)``.

    An item as similar as the k-th nearest, ``worst`` ``(q,)``, is one of them: copies count.
    """
    is_right = is_counted & (similarities >= worst[:, None] - ROUNDING)
    return float(np.minimum(is_right.sum(1), k).mean() / k)


def write_store(
    path: str | Path, write_index: Callable[[Path], None], ids: Array, facts: dict[str, Any]
) -> None:
    """Write a store to a file atomically; ``write_index`` writes faiss's part to a path."""
    with replacing(path) as temporary:
        write_index(temporary)
        size = temporary.stat().st_size
        tail = ids.astype("<i8").tobytes()
        words = json.dumps(facts).encode()
        with temporary.open("rb+") as file:
            of_all = _digest(file, size, tail + words)
            of_facts = _digest(file, min(size, CHUNK), tail + words + of_all)
            file.seek(size)
            lengths = (size, len(tail), len(words))
            file.write(tail + words + END.pack(*lengths, of_all, of_facts, MARK))


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
    facts: dict[str, Any] = json.loads(words)
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
