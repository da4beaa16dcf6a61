"""Two dimensions: principal components by another algorithm, fields on the same map, files."""

import sys
import types

import numpy as np
import pytest

from weiss.catalogue import DamagedIndexError, item_map
from weiss.catalogue.item_map import make_map, principal_axes, read_map, write_map


def vectors_of(count=200, size=12, seed=0):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, size)) * np.linspace(3, 0.3, size) + random.normal(
        size=size
    )
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_the_axes_are_those_of_a_singular_value_decomposition():
    vectors = vectors_of()
    mean, axes, share = principal_axes(vectors)
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    _, scales, rows = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(axes @ rows[:2].T), np.eye(2), atol=1e-5)
    assert share == pytest.approx((scales[:2] ** 2).sum() / (scales**2).sum(), abs=1e-6)
    np.testing.assert_allclose(mean, vectors.mean(axis=0), atol=1e-6)
    assert all(axis[np.abs(axis).argmax()] > 0 for axis in axes)


def test_a_field_lies_where_an_item_of_the_same_vector_lies():
    vectors = vectors_of()
    made = make_map(vectors, np.arange(200), vectors[[5, 9]], ("five", "nine"), method="pca")
    np.testing.assert_allclose(made.field_points, made.points[[5, 9]], atol=1e-6)
    assert made.method == "PCA"
    assert made.field_names == ("five", "nine")


def test_the_map_of_the_same_items_is_the_same(monkeypatch):

    monkeypatch.setattr(item_map, "SAMPLE", 50)
    vectors = vectors_of()
    one, two = (make_map(vectors, np.arange(200), vectors[:0], (), method="pca") for _ in "ab")
    np.testing.assert_array_equal(one.points, two.points)
    assert len(one.points) == 200


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_handful_of_items_has_a_map_too(count):
    vectors = vectors_of(count)
    made = make_map(vectors, np.arange(count), vectors[:0], (), method="pca")
    assert made.points.shape == (count, 2)
    assert np.isfinite(made.points).all()
    assert 0 <= made.explained <= 1


def test_a_map_comes_back_from_its_file(tmp_path):
    vectors = vectors_of(20)
    made = make_map(vectors, np.arange(20) + 7, vectors[:2], ("ä", "b b"), method="pca")
    write_map(tmp_path / "map.npz", made)
    back = read_map(tmp_path / "map.npz")
    assert (back.method, back.explained, back.field_names) == ("PCA", made.explained, ("ä", "b b"))
    for name in ("ids", "points", "field_points"):
        np.testing.assert_array_equal(getattr(back, name), getattr(made, name))


def test_a_damaged_map_is_told(tmp_path):
    path = tmp_path / "map-12345678.npz"
    write_map(path, make_map(vectors_of(9), np.arange(9), vectors_of(0), (), method="pca"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedIndexError, match="map-12345678.npz of the index is damaged"):
        read_map(path)


def test_umap_lays_items_and_fields_on_one_map():
    pytest.importorskip("umap")
    vectors = vectors_of(150)
    made = make_map(vectors, np.arange(150), vectors[:3], ("a", "b", "c"), method="umap")
    assert (made.method, made.explained) == ("UMAP", None)
    assert made.points.shape == (150, 2)
    assert made.field_points.shape == (3, 2)


def test_what_umap_is_asked_follows_from_the_items_alone(monkeypatch):
    """Where it is not installed, something that takes the same calls stands in for it."""
    asked = {}

    class Reducer:
        def __init__(self, **options):
            asked.update(options)

        def fit(self, sample):
            asked["fitted"] = len(sample)

        def transform(self, vectors):
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Reducer))
    vectors = vectors_of(150)
    made = make_map(vectors, np.arange(150), vectors[:3], ("a", "b", "c"), method="umap")
    assert (asked["metric"], asked["random_state"], asked["fitted"]) == ("cosine", 0, 150)
    np.testing.assert_array_equal(made.points, vectors[:, :2])
    np.testing.assert_array_equal(made.field_points, vectors[:3, :2])


def test_very_many_items_are_mapped_by_principal_components(monkeypatch):
    def never(*_, **__):
        raise AssertionError("UMAP was asked")

    monkeypatch.setattr(item_map, "UMAP_UP_TO", 150)
    monkeypatch.setattr(item_map, "find_spec", lambda name: name)
    monkeypatch.setattr(item_map, "_umap", never)
    made = make_map(vectors_of(200), np.arange(200), np.zeros((0, 12), np.float32), ())
    assert made.method == "PCA"
    with pytest.raises(AssertionError, match="UMAP was asked"):
        make_map(vectors_of(140), np.arange(140), np.zeros((0, 12), np.float32), ())
