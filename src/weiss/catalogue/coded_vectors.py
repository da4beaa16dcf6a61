"""Vectors with small codes: the codes find candidates, and float32 vectors decide among them.

Codes are in memory or mapped; the vectors stay in the file, and a search reads those of its
candidates. ``int8`` is exact: a query is settled when no item beyond its candidates can be one of
its nearest (`weiss.catalogue.codes`); until then it gets more of them. ``binary`` compares as many
candidates, of as many lists, as a measured recall asks for.

A place is the number of a vector, from 0.
Dimensions: n items, m rows, q queries, k neighbours, D embedding size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.codes import ROWS_AT_ONCE, Codes
from weiss.catalogue.exact import cosines, nearest
from weiss.catalogue.open_file import OpenFile
from weiss.catalogue.records import damaged

FEWEST = 32
"""The fewest candidates that are compared."""
MOST_OF_ALL = 16
"""An exact search compares at most 16 k candidates or a 16th of all items; beyond that, all."""
RecallOf = Callable[[int, tuple[Array, Array]], float]


class FileRows:
    """Float32 rows ``(n, D)`` of a file, read when they are asked for and never kept."""

    def __init__(self, file: OpenFile, start: int, count: int, dimension: int) -> None:
        self._file, self._start, self._count = file, start, count
        self._dimension = dimension

    def __len__(self) -> int:
        """Return n."""
        return self._count

    def __getitem__(self, rows: Array) -> Array:
        """Return some rows ``(m, D)``; those that follow each other are read at once."""
        size = 4 * self._dimension
        edges = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1, [len(rows)]])
        firsts, counts = rows[edges[:-1]], np.diff(edges)
        starts, lengths = (self._start + size * firsts).tolist(), (size * counts).tolist()
        found = self._file.read_parts(starts, lengths)
        return np.frombuffer(found, "<f4").reshape(len(rows), self._dimension)


class Rows:
    """Float32 vectors ``(n, D)`` in parts: arrays that nobody changes, maps, parts of files."""

    def __init__(self, dimension: int) -> None:
        self._parts: list[Array | FileRows] = []
        self._starts = [0]
        self._dimension = dimension

    def __len__(self) -> int:
        """Return n."""
        return self._starts[-1]

    def append(self, part: Array | FileRows) -> None:
        """Add rows; they are not copied."""
        self._parts.append(part)
        self._starts.append(len(self) + len(part))

    def take(self, places: Array) -> Array:
        """Return the rows ``(m, D)`` at some places, which ascend."""
        if len(self._parts) == 1 and len(places):
            return np.asarray(self._parts[0][places])
        cuts = np.searchsorted(places, self._starts)
        found = [
            part[places[low:high] - start]
            for part, start, low, high in zip(
                self._parts, self._starts, cuts, cuts[1:], strict=False
            )
            if low < high
        ]
        return np.concatenate([np.empty((0, self._dimension), np.float32), *found])

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Iterate over the places of all rows and the rows, some at a time."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            places = np.arange(start, min(start + ROWS_AT_ONCE, len(self)))
            yield places, self.take(places)

    def all(self) -> Array:
        """Return a copy of all rows."""
        found = np.empty((len(self), self._dimension), np.float32)
        for places, block in self.blocks():
            found[places] = block
        return found


class CodedVectors:
    """Vectors of unit length ``(n, D)`` and their codes.

    Attributes:
        codes: of all vectors.
        candidates: k -> how many candidates are compared for k neighbours.
        settled: for int8 k -> the share of its own items that these candidates settle.
    """

    def __init__(
        self,
        codes: Codes,
        rows: Rows,
        candidates: dict[int, int] | None = None,
        settled: dict[int, float] | None = None,
    ) -> None:
        self.codes, self._rows = codes, rows
        self.candidates, self.settled = candidates or {}, settled or {}

    @classmethod
    def make(cls, kind: str, vectors: Array, lists: Callable[..., Any]) -> "CodedVectors":
        """Make it for vectors ``(n, D)`` without adding them; ``lists`` is that of `Codes.make`."""
        return cls(Codes.make(kind, vectors, lists), Rows(vectors.shape[1]))

    @classmethod
    def of_file(
        cls, kind: str, index: Any, file: OpenFile, name: str, count: int, facts: dict[str, Any]
    ) -> "CodedVectors":
        """Return what a file has: faiss's index of it, ``count`` vectors, and `facts`.

        The vectors lie between ``index_bytes`` and ``vectors_end``.
        """
        codes = Codes.of_file(kind, index, name, facts["scale"], facts["error"], facts["length"])
        start, end = facts["index_bytes"], facts["vectors_end"]
        if len(codes) != count or start + 4 * index.d * count != end:
            raise damaged(name, f"it must have the codes and vectors of {count} items")
        rows = Rows(index.d)
        rows.append(FileRows(file, start, count, index.d))
        return cls(codes, rows, facts["candidates"], facts["settled"])

    def facts(self) -> dict[str, Any]:
        """Return what the file keeps about it."""
        codes = self.codes
        return {
            **{"scale": codes.scale, "error": codes.error, "length": codes.length},
            **{"candidates": self.candidates, "settled": self.settled},
        }

    def write(self, file: BinaryIO) -> None:
        """Write the vectors to a file."""
        for _, block in self._rows.blocks():
            file.write(np.ascontiguousarray(block, dtype="<f4").data)

    def vectors(self) -> Array:
        """Return a copy of the vectors."""
        return self._rows.all()

    def add(self, vectors: Array) -> None:
        """Add vectors ``(m, D)`` at the places after the last; they are not copied."""
        self.codes.add(vectors)
        self._rows.append(vectors)

    def nearest(self, queries: Array, k: int, lists: int) -> tuple[Array, Array]:
        """Return the places and similarities ``(q, k)`` of the nearest, equal ones by place.

        Binary codes read so many ``lists`` at least.
        """
        if self.codes.kind == "int8":
            return self._exact(queries, k, self.candidate_count(k))[:2]
        return self._near(queries, k, lists, self.candidate_count(k))

    def candidate_count(self, k: int) -> int:
        """Return of how many candidates for k neighbours the vectors are compared."""
        deepest = max(self.candidates, default=1)
        for depth, count in self.candidates.items():
            if k <= depth:
                return max(count, k)
        return self.candidates.get(deepest, FEWEST) * math.ceil(k / deepest)

    def _most(self, k: int) -> int:
        """Return from where on it is faster to compare every vector."""
        return max(len(self._rows) // MOST_OF_ALL, MOST_OF_ALL * k)

    def _exact(self, queries: Array, k: int, count: int) -> tuple[Array, Array, float]:
        """Return places and similarities ``(q, k)``, and the share of queries settled at once.

        A query is settled when the last code of its candidates, and so every other code, is too
        small for its item to be one of the k nearest. The others get more candidates, and where
        many are needed every vector.
        """
        size = len(self._rows)
        places_qk = np.empty((len(queries), k), np.int64)
        similarities_qk = np.empty((len(queries), k), np.float32)
        left, at_once = np.arange(len(queries)), -1
        while len(left) and (at_once < 0 or count <= self._most(k)):
            count = min(count, size)
            places, estimates, slack = self.codes.search(queries[left], count)
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
            places_qk[left], similarities_qk[left] = nearest(self._rows.blocks(), queries[left], k)
        return places_qk, similarities_qk, at_once / len(queries)

    def _near(self, queries: Array, k: int, lists: int, count: int) -> tuple[Array, Array]:
        """Return places and similarities ``(q, k)`` of the best candidates of some lists."""
        size, limit = len(self._rows), self.codes.num_lists
        places_qk = np.empty((len(queries), k), np.int64)
        similarities_qk = np.empty((len(queries), k), np.float32)
        left = np.arange(len(queries))
        while len(left):
            places, _, _ = self.codes.search(queries[left], min(max(count, k), size), lists)
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
        if len(places) and places[-1] >= len(self._rows):
            raise damaged("the store", "it has a vector without an id")
        similarities = cosines(self._rows.take(places), query)
        best = np.argsort(-similarities, kind="stable")[:k]
        room = k - len(best)
        if room == 0:  # np.pad takes as long as the products
            return places[best], similarities[best]
        return (
            np.pad(places[best], (0, room), constant_values=-1),
            np.pad(similarities[best], (0, room), constant_values=-np.inf),
        )

    def set_candidates(self, queries: Array, depths: Sequence[int], aim: float) -> None:
        """Raise the candidates of an exact search until they settle the share ``aim`` at once."""
        self.candidates, self.settled = {}, {}
        for depth in depths:
            count = max(FEWEST, 2 * depth)
            share = self._exact(queries, depth, count)[2]
            while share < aim and count <= self._most(depth):
                count *= 2
                share = self._exact(queries, depth, count)[2]
            self.candidates[depth], self.settled[depth] = min(count, len(self._rows)), share

    def set_lists(
        self, queries: Array, depths: Sequence[int], aim: float, recall_of: RecallOf
    ) -> tuple[dict[int, int], dict[int, float]]:
        """Raise lists or candidates, whichever finds more, until the recall reaches ``aim``.

        ``recall_of`` returns the recall of the k nearest from the k + 1 places and similarities
        ``(q, k + 1)`` that were found for queries that are items. Return k -> lists, k -> recall.
        """
        size, most_lists = len(self._rows), self.codes.num_lists
        lists, lists_of, recalls = 1, dict[int, int](), dict[int, float]()
        self.candidates = {}
        for depth in depths:

            def recall(lists: int, count: int, depth: int = depth) -> float:
                return recall_of(depth, self._near(queries, depth + 1, lists, count))

            count = min(max(FEWEST, 2 * depth), size)
            share = recall(lists, count)
            while share < aim and (lists < most_lists or count < size):
                more_lists = min(most_lists, max(lists + 1, lists * 3 // 2))
                more = min(2 * count, size)
                by_lists, by_count = recall(more_lists, count), recall(lists, more)
                if max(by_lists, by_count) <= share:
                    lists, count = more_lists, more
                    share = recall(lists, count)
                elif by_lists > by_count:
                    lists, share = more_lists, by_lists
                else:
                    count, share = more, by_count
            lists_of[depth], self.candidates[depth], recalls[depth] = lists, count, share
        return lists_of, recalls
