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
from weiss.catalogue.codes import CODED, Codes, FileRows, Rows
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
FEWEST = 32
"""The fewest candidates of codes whose vectors are compared."""
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
        self._codes: Codes | None
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
        if self._codes is not None:
            return self._ids.copy(), self._rows.all()
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
        if self.kind == "int8":
            depth, share = next(iter(self._settled.items()), (10, 1.0))
            return (
                f"faiss int8: exact search over {items}: codes of a byte a component, "
                f"{self._candidate_count(depth):,} candidates compared for {depth} neighbours, "
                f"enough for {share:.3f} of its own items; the others compare more"
            )
        why = "as was asked for"
        if self.kind == "binary":
            read = (
                f"codes of a bit a component, {self._effort(10):,} of {self._num_lists():,} lists "
                f"read and {self._candidate_count(10):,} candidates compared for 10 neighbours"
            )
        elif self.kind == "hnsw":
            read = f"{LINKS} links an item, {self._effort(10):,} candidates for 10 neighbours"
        else:
            read = f"{self._effort(10):,} of {self._index.nlist:,} lists read for 10 neighbours"
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
            _faiss().write_index(self._index, str(temporary))
            if self._codes is not None:
                facts |= {
                    "candidates": self._candidates,
                    "settled": self._settled,
                    "index_bytes": temporary.stat().st_size,
                    "scale": self._codes.scale,
                    "error": self._codes.error,
                    "length": self._codes.length,
                }
                with temporary.open("ab") as file:
                    for block in self._rows.blocks():
                        file.write(np.ascontiguousarray(block, dtype="<f4").data)
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
        kind, codes, rows = facts["kind"], None, Rows(index.d)
        if kind in CODED:
            of_codes = (facts[name] for name in ("scale", "error", "length"))
            codes = Codes.of_file(kind, index, path.name, *of_codes)
            file = OpenFile(path)
            rows.append(FileRows(file, facts["index_bytes"], len(ids), index.d))
            end = file.size - facts["after"]
            if len(codes) != len(ids) or facts["index_bytes"] + 4 * index.d * len(ids) != end:
                raise damaged(path.name, f"it must have the codes and vectors of {len(ids)} items")
        elif type(index).__name__ != CLASSES[kind]:
            raise damaged(path.name, f"it must be {kind}; it is {type(index).__name__}")
        store = cls.__new__(cls)
        store.dimension, store.kind, store._wanted = index.d, kind, facts["wanted"]
        store._index, store._ids, store._codes, store._rows = index, ids, codes, rows
        store._candidates, store._settled = facts["candidates"], facts["settled"]
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
        self._candidates: dict[int, int] = {}
        self._settled: dict[int, float] = {}
        self._codes, self._rows = None, Rows(self.dimension)
        if self.kind in CODED:
            self._codes = Codes.make(self.kind, vectors, trained_lists)
            self._index: Any = self._codes.index
        elif self.kind == "flat":
            self._index = _faiss().IndexFlatIP(self.dimension)
        elif self.kind == "ivf":
            self._index = trained_lists(_faiss().IndexIVFFlat, vectors)
        else:
            product = _faiss().METRIC_INNER_PRODUCT
            self._index = _faiss().IndexHNSWFlat(self.dimension, LINKS, product)
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
        if self._codes is not None:
            self._codes.add(vectors)
            self._rows.append(vectors)
        elif self.kind == "ivf":
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
            similarities, places = self._index.search(queries, k)
            return places, similarities
        if self.kind == "int8":
            return self._exact_by_codes(queries, k, self._candidate_count(k))[:2]
        if self.kind == "binary":
            return self._near_by_codes(queries, k, effort, self._candidate_count(k))
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

    def _candidate_count(self, k: int) -> int:
        """Return of how many candidates for k neighbours the vectors are compared."""
        deepest = max(self._candidates, default=1)
        for depth, count in self._candidates.items():
            if k <= depth:
                return max(count, k)
        return self._candidates.get(deepest, FEWEST) * math.ceil(k / deepest)

    def _num_lists(self) -> int:
        assert self._codes is not None
        return self._codes.num_lists

    def _most_candidates(self, k: int) -> int:
        """Return from where on it is faster to compare every vector."""
        return max(len(self._ids) // 16, 16 * k)

    def _exact_by_codes(self, queries: Array, k: int, count: int) -> tuple[Array, Array, float]:
        """Return places and similarities ``(q, k)``, and the share of queries settled at once.

        A query is settled when the last code of its candidates, and so every other code, is too
        small for its item to be one of the k nearest. The others get more candidates, and where
        many are needed every vector.
        """
        assert self._codes is not None
        size = len(self._ids)
        places_qk = np.empty((len(queries), k), np.int64)
        similarities_qk = np.empty((len(queries), k), np.float32)
        left, at_once = np.arange(len(queries)), -1
        while len(left) and (at_once < 0 or count <= self._most_candidates(k)):
            count = min(count, size)
            places, estimates, slack = self._codes.search(queries[left], count)
            is_open = np.zeros(len(left), bool)
            for row, query in enumerate(left.tolist()):
                found = self._compared(queries[query], places[row], k)
                places_qk[query], similarities_qk[query] = found
                # Not settled either if a number is damaged, and so none.
                is_settled = estimates[row, -1] + slack[row] < found[1][-1]
                is_open[row] = not is_settled and count < size
            if at_once < 0:
                at_once = int((~is_open).sum())
            left, count = left[is_open], 4 * count
        if len(left):
            places_qk[left], similarities_qk[left] = self._compared_with_all(queries[left], k)
        return places_qk, similarities_qk, at_once / len(queries)

    def _near_by_codes(self, queries: Array, k: int, lists: int, count: int) -> tuple[Array, Array]:
        """Return places and similarities ``(q, k)`` of the best candidates of some lists."""
        assert self._codes is not None
        size, limit = len(self._ids), self._codes.num_lists
        places_qk = np.empty((len(queries), k), np.int64)
        similarities_qk = np.empty((len(queries), k), np.float32)
        left = np.arange(len(queries))
        while len(left):
            places, _, _ = self._codes.search(queries[left], min(max(count, k), size), lists)
            is_short = places[:, k - 1] < 0
            for row in np.flatnonzero(~is_short | (lists >= limit)).tolist():
                found = self._compared(queries[left[row]], places[row], k)
                places_qk[left[row]], similarities_qk[left[row]] = found
            left = left[is_short] if lists < limit else left[:0]
            lists *= 4
        return places_qk, similarities_qk

    def _compared(self, query: Array, places: Array, k: int) -> tuple[Array, Array]:
        """Return the k best of some places by the cosines of their vectors; equal ones by place."""
        places = np.sort(places[places >= 0])
        if len(places) and places[-1] >= len(self._ids):
            raise damaged("the store", "it has a vector without an id")
        # Not a matrix product, which may round equal rows differently.
        similarities = np.einsum("nd,d->n", self._rows.take(places), query)
        best = np.lexsort((self._ids[places], -similarities))[:k]
        room = k - len(best)
        return (
            np.pad(places[best], (0, room), constant_values=-1),
            np.pad(similarities[best], (0, room), constant_values=-np.inf),
        )

    def _compared_with_all(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Return the k best of all places ``(q, k)``; the vectors are read once, in parts."""
        places_qk = np.empty((len(queries), 0), np.int64)
        similarities_qk = np.empty((len(queries), 0), np.float32)
        first = 0
        for block in self._rows.blocks():
            here = np.broadcast_to(np.arange(first, first + len(block)), (len(queries), len(block)))
            some = np.stack([np.einsum("nd,d->n", block, query) for query in queries])
            places = np.concatenate([places_qk, here], axis=1)
            similarities = np.concatenate([similarities_qk, some], axis=1)
            best = np.lexsort((self._ids[places], -similarities), axis=-1)[:, :k]
            places_qk = np.take_along_axis(places, best, 1)
            similarities_qk = np.take_along_axis(similarities, best, 1)
            first += len(block)
        return places_qk, similarities_qk

    def _set_effort(self, vectors: Array) -> None:
        """Raise the effort until the recall on a sample of all vectors reaches `AIM`."""
        self._changed, self._efforts, self._recalls = 0, {}, {}
        self._candidates, self._settled = {}, {}
        depths = sorted({min(depth, len(self) - 1) for depth in DEPTHS} - {0, -1})
        if self.kind == "flat" or not depths:
            return
        rows = sample(len(vectors), SAMPLE)
        if self.kind == "int8":
            self._set_candidates(vectors[rows], depths)
            return
        # An item is its own nearest neighbour: the k-th other has rank k + 1.
        worst = similarity_at(vectors[rows], vectors, [depth + 1 for depth in depths])
        if self.kind == "binary":
            self._set_lists_and_candidates(rows, vectors[rows], worst, depths)
            return
        effort, limit = (1, self._index.nlist) if self.kind == "ivf" else CANDIDATES
        for depth in depths:
            while True:
                found = self._nearest(vectors[rows], depth + 1, effort)
                share = self._recall_of_items(rows, worst[depth + 1], depth, found)
                self._efforts[depth], self._recalls[depth] = effort, share
                if share >= AIM or effort >= limit:
                    break
                effort = min(limit, max(effort + 1, effort * 3 // 2))

    def _set_candidates(self, queries: Array, depths: Sequence[int]) -> None:
        """Raise the candidates of an exact search until they settle most queries at once."""
        for depth in depths:
            count = max(FEWEST, 2 * depth)
            share = self._exact_by_codes(queries, depth, count)[2]
            while share < AIM and count <= self._most_candidates(depth):
                count *= 2
                share = self._exact_by_codes(queries, depth, count)[2]
            self._candidates[depth], self._settled[depth] = min(count, len(self)), share

    def _set_lists_and_candidates(
        self, rows: Array, queries: Array, worst: Mapping[int, Array], depths: Sequence[int]
    ) -> None:
        """Raise what finds more, lists or candidates, until the recall reaches `AIM`.

        ``rows`` ``(q,)`` are the places of the queries.
        """
        lists, limit = 1, self._num_lists()
        for depth in depths:

            def recall(lists: int, count: int, depth: int = depth) -> float:
                found = self._near_by_codes(queries, depth + 1, lists, count)
                return self._recall_of_items(rows, worst[depth + 1], depth, found)

            count = min(max(FEWEST, 2 * depth), len(self))
            share = recall(lists, count)
            while share < AIM and (lists < limit or count < len(self)):
                more_lists = min(limit, max(lists + 1, lists * 3 // 2))
                more = min(2 * count, len(self))
                by_lists, by_count = recall(more_lists, count), recall(lists, more)
                if max(by_lists, by_count) <= share:
                    lists, count = more_lists, more
                    share = recall(lists, count)
                elif by_lists > by_count:
                    lists, share = more_lists, by_lists
                else:
                    count, share = more, by_count
            self._efforts[depth], self._candidates[depth] = lists, count
            self._recalls[depth] = share

    def _recall_of_items(
        self, rows: Array, worst: Array, k: int, found: tuple[Array, Array]
    ) -> float:
        """Return the share of the k nearest items that items as queries have found.

        ``rows`` ``(q,)`` are their places, and ``found`` the k + 1 nearest places of each, with the
        similarities. An item as similar as the k-th nearest, ``worst`` ``(q,)``, is one of them:
        copies count.
        """
        places, similarities = found
        is_right = (places != rows[:, None]) & (similarities >= worst[:, None] - ROUNDING)
        return float(np.minimum(is_right.sum(1), k).mean() / k)


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


def _faiss() -> Any:
    """Import faiss when it is needed: loading takes a while. Its types are incomplete."""
    import faiss

    return faiss


def trained_lists(kind: Any, vectors: Array, turn: Callable[[Array], Array] | None = None) -> Any:
    """Return an empty inverted file with centres found from a sample of vectors ``(n, D)``.

    ``kind`` is faiss's class of it. With ``turn`` its vectors are the turned ones.
    """
    dimension = vectors.shape[1]
    # 2 sqrt(n) lists: comparing the centres costs about as much as reading a list or two.
    lists = max(1, min(round(2 * math.sqrt(len(vectors))), len(vectors)))
    centres = _faiss().IndexFlatIP(dimension)
    index = kind(centres, dimension, lists, _faiss().METRIC_INNER_PRODUCT)
    index.cp.spherical, index.cp.niter, index.cp.seed = True, 10, 0
    index.cp.min_points_per_centroid = 1  # prints a warning otherwise
    some = vectors[sample(len(vectors), 64 * lists)]
    index.train(some if turn is None else turn(some))
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
    facts["after"] = whole - size
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
