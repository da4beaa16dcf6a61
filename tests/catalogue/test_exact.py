"""The exact nearest vectors, by nested loops in float64; equal vectors by their ids."""

import numpy as np
import pytest

from weiss.catalogue import DamagedIndexError
from weiss.catalogue.coded_vectors import CodedVectors
from weiss.catalogue.exact import nearest
from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.filtering import nearest_of
from weiss.catalogue.segments import Items


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


class InBlocks(Items):
    """Vectors under even ids, in blocks of one size."""

    def __init__(self, vectors, size):
        self.ids, self._vectors, self._size = 2 * np.arange(len(vectors)), vectors, size

    def vectors_of(self, ids, at_once):
        for start in range(0, len(ids), self._size):
            some = ids[start : start + self._size]
            yield some, self._vectors[some // 2]


@pytest.mark.parametrize(("number", "dimension", "size"), [(40, 3, 7), (101, 33, 100), (9, 5, 1)])
@pytest.mark.parametrize("k", [1, 4, 200])
def test_they_are_those_of_nested_loops_in_float64(number, dimension, size, k):
    draw = np.random.default_rng(number)
    vectors = unit(draw.normal(size=(number, dimension)))
    queries = unit(draw.normal(size=(6, dimension)))
    items = InBlocks(vectors, size)
    found, similarities = nearest(items.vectors_of(items.ids, 0), queries, k)
    for query, ids, sims in zip(queries, found, similarities, strict=True):
        cosine = {
            2 * row: sum(float(a) * float(b) for a, b in zip(vector, query, strict=True))
            for row, vector in enumerate(vectors)
        }
        best = sorted(cosine, key=lambda id: (-cosine[id], id))[:k]
        assert ids.tolist() == best
        assert sims.tolist() == pytest.approx([cosine[id] for id in best], abs=1e-6)


@pytest.mark.parametrize("dimension", [31, 64, 100, 511])
@pytest.mark.parametrize("size", [5, 13, 37])
def test_equal_items_come_by_their_ids_however_a_matrix_product_rounds(dimension, size):
    """A product of these shapes rounds rows at its edges differently, at least on x86-64."""
    draw = np.random.default_rng(0)
    different = unit(draw.normal(size=(3, dimension)))
    vectors = different[draw.integers(0, 3, 74)]
    items = InBlocks(vectors, size)
    for number in (1, 5, 20):
        queries = unit(draw.normal(size=(number, dimension)))
        for k in (3, 20, 74):
            found, similarities = nearest_of(items, items.ids, queries, k)
            for query, ids, sims in zip(queries, found, similarities, strict=True):
                own = different.astype(np.float64) @ query.astype(np.float64)
                of = {id: own[(different == vectors[id // 2]).all(1)][0] for id in items.ids}
                assert ids.tolist() == sorted(of, key=lambda id: (-of[id], id))[:k]
                assert len(set(sims.tolist())) == len({of[id] for id in ids.tolist()})


def test_a_store_of_codes_gives_equal_items_the_order_of_a_search_under_conditions(monkeypatch):
    """Where its codes settle nothing, it compares all vectors."""
    monkeypatch.setattr(CodedVectors, "_most", lambda self, k: 0)
    draw = np.random.default_rng(1)
    vectors = unit(draw.normal(size=(3, 100)))[draw.integers(0, 3, 300)]
    items, store = InBlocks(vectors, 37), FaissStore(100, kind="int8")
    store.add(items.ids, vectors)
    for number in (1, 5, 20):
        queries = unit(draw.normal(size=(number, 100)))
        for one, other in zip(
            store.search(queries, 50), nearest_of(items, items.ids, queries, 50), strict=True
        ):
            assert one.tolist() == other.tolist()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.0])
def test_a_vector_that_has_not_unit_length_is_damaged(wrong):
    vectors = np.eye(4, dtype=np.float32)
    vectors[2, 2] = wrong
    items = InBlocks(vectors, 3)
    with pytest.raises(DamagedIndexError, match="unit length"):
        nearest(items.vectors_of(items.ids, 0), np.eye(4, dtype=np.float32), 2)
