"""Small codes of vectors, which find candidates for a search.

Both kinds are made of vectors that a random rotation has turned: after it every component is about
as large as any other, whatever network made them.

``int8``: one byte a component. Items v and queries q have codes z and y, whole numbers, whose
products are whole numbers too. With the rotation R and the scales s and r

    v = R'z / s + e,     Rq = y / r + d
    |q.v - y.z / (r s)| = |q.e + d.z / s| <= |q| max|e| + |d| max|z| / s     (Cauchy and Schwarz)

so an item whose code gives less than t minus this slack has a cosine below t. All three lengths are
measured in float64, so the bound holds for any matrix R.

``binary``: one bit a component (RaBitQ of faiss), in lists like those of an inverted file. The bits
are those of the difference to the centre of the list. They give an estimate without such a bound:
how many lists are read and how many candidates compared is set by a measured recall.

faiss's own scalar quantiser, lists, and files are used; faiss is imported when it is needed.

Dimensions: n items, m of them, q queries, D embedding size.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.records import damaged
from weiss.catalogue.stores import TOLERANCE

CODED = {"int8": "IndexScalarQuantizer", "binary": "IndexIVFRaBitQ"}
"""The kinds of codes, and faiss's name of each."""
QUERY_BITS = 4
"""Bits of a component of a query that is compared with binary codes."""
LARGEST, ROOM = 127, 1.2
"""The largest number of an int8 code; how much larger than the largest of a sample it may be."""
ROWS_AT_ONCE = 16_384
"""Rows that are rotated, encoded or copied at a time."""
RANGE_SAMPLE = 10_000
"""Items whose components set the scale of int8 codes."""
FLOAT32 = 2.0**-24
"""The relative error of one operation in float32."""


class Codes:
    """The codes of vectors of unit length, in an index of faiss.

    Attributes:
        kind: ``"int8"`` or ``"binary"``.
        index: the rotation and the codes: what is written to a file.
        scale: s for int8.
        error: max|e| for int8; `add` may raise it.
        length: max|z| / s for int8, likewise.
    """

    def __init__(
        self, kind: str, index: Any, scale: float, error: float = 0.0, length: float = 0.0
    ) -> None:
        self.kind, self.index, self.scale = kind, index, scale
        self.error, self.length = error, length
        self._turn = load_faiss().downcast_VectorTransform(index.chain.at(0))
        self._codes = load_faiss().downcast_index(index.index)
        matrix = load_faiss().vector_to_array(self._turn.A).reshape(index.d, index.d)
        # Bounds are measured in float64. Estimates need none, and read half as much memory.
        self._matrix = matrix.astype(np.float64 if kind == "int8" else np.float32)

    @classmethod
    def make(cls, kind: str, vectors: Array, lists: Callable[..., Any]) -> "Codes":
        """Make codes for vectors ``(n, D)`` without adding them.

        ``lists`` is a function that returns a trained inverted file for vectors, of the given class
        of faiss.
        """
        dimension = vectors.shape[1]
        turn = load_faiss().RandomRotationMatrix(dimension, dimension)
        turn.init(0)
        scale = 0.0
        if kind == "int8":
            some = turn.apply(vectors[sample(len(vectors), RANGE_SAMPLE)])
            scale = LARGEST / max(ROOM * float(np.abs(some).max(initial=0.0)), 1 / LARGEST)
            number = load_faiss().ScalarQuantizer.QT_8bit_direct_signed
            codes = load_faiss().IndexScalarQuantizer(
                dimension, number, load_faiss().METRIC_INNER_PRODUCT
            )
        else:
            codes = lists(load_faiss().IndexIVFRaBitQ, vectors, turn.apply)
        return cls(kind, load_faiss().IndexPreTransform(turn, codes), scale)

    @classmethod
    def of_file(
        cls, kind: str, index: Any, name: str, scale: float, error: float, length: float
    ) -> "Codes":
        """Return the codes that a file has; DamagedIndexError unless they are of this kind."""
        is_right = type(index).__name__ == "IndexPreTransform" and index.chain.size() == 1
        if is_right:
            turn = load_faiss().downcast_VectorTransform(index.chain.at(0))
            codes = load_faiss().downcast_index(index.index)
            is_right = type(codes).__name__ == CODED[kind] and codes.d == index.d
            is_right = is_right and (turn.d_in, turn.d_out) == (index.d, index.d)
            is_right = is_right and turn.A.size() == index.d**2 and (scale > 0 or kind != "int8")
        if not is_right:
            raise damaged(name, f"it must have {kind} codes; it has others")
        return cls(kind, index, scale, error, length)

    def __len__(self) -> int:
        """Return n."""
        return int(self._codes.ntotal)

    @property
    def num_lists(self) -> int:
        """How many lists binary codes have."""
        return int(self._codes.nlist)

    def add(self, vectors: Array) -> None:
        """Add the codes of vectors ``(m, D)`` at the places after the last."""
        for start in range(0, len(vectors), ROWS_AT_ONCE):
            block = np.ascontiguousarray(vectors[start : start + ROWS_AT_ONCE])
            turned = self._turn.apply(block)
            if self.kind == "binary":
                first = len(self)
                method(self._codes, "add_with_ids")(turned, np.arange(first, first + len(block)))
            else:
                whole = np.clip(np.rint(turned * np.float32(self.scale)), -LARGEST, LARGEST)
                method(self._codes, "add")(whole)
                codes = whole.astype(np.float64) / self.scale
                lengths = np.linalg.norm(codes, axis=1)
                errors = np.linalg.norm(block - codes @ self._matrix, axis=1)
                self.error = max(self.error, float(errors.max(initial=0.0)))
                self.length = max(self.length, float(lengths.max(initial=0.0)))
        self.index.ntotal = len(self)

    def search(self, queries: Array, count: int, lists: int = 1) -> tuple[Array, Array, Array]:
        """Return places and similarities ``(q, count)`` of the best codes, and the slack ``(q,)``.

        A place is -1 where there are no more codes. The similarities of int8 codes differ from the
        cosines by the slack at most; those of binary ones, of which some ``lists`` are read, are
        estimates, and their slack is infinite.
        """
        turned = queries.astype(self._matrix.dtype) @ self._matrix.T
        if self.kind == "binary":
            search = method(self._codes, "search")
            found = search(turned, count, params=_reading(min(lists, self.num_lists)))
            return found[1], found[0], np.full(len(queries), np.inf)
        scale_q = LARGEST / np.maximum(np.abs(turned).max(axis=1, keepdims=True), 1 / LARGEST)
        whole = np.rint(turned * scale_q)
        products, places = method(self._codes, "search")(whole.astype(np.float32), count)
        missed = np.linalg.norm(turned - whole / scale_q, axis=1)
        # The sums of the products, and the cosine that is compared, are float32.
        rounding = 3 * self.index.d * FLOAT32 * (1 + self.length)
        slack = (1 + TOLERANCE) * self.error + missed * self.length + rounding
        return places, products / (scale_q * self.scale), slack


def load_faiss() -> Any:
    """Import faiss when it is needed: loading takes a while. Its types are incomplete."""
    import faiss

    return faiss


def method(index: Any, name: str) -> Any:
    """Return a method of a faiss index that takes numpy arrays.

    ``faiss.contrib.torch_utils``, which pytorch-metric-learning imports, puts methods with fewer
    arguments in their places, and keeps these under another name.
    """
    return getattr(index, f"{name}_numpy", None) or getattr(index, name)


@lru_cache(maxsize=64)
def _reading(lists: int) -> Any:
    """Return faiss's settings of a search in so many lists; making them takes as long as a list."""
    settings = load_faiss().IVFRaBitQSearchParameters(nprobe=lists)
    settings.qb = QUERY_BITS
    return settings


def sample(size: int, most: int) -> Array:
    """Return at most ``most`` sorted row numbers below ``size``, deterministic."""
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, most, replace=False))
