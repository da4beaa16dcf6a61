"""Two dimensions: principal components by another algorithm, fields on the same map, files."""

import sys
import types

import numpy as np
import pytest

from weiss.catalogue import DamagedIndexError, item_map
from weiss.catalogue.item_map import make_map, principal_axes, read_map, write_map


@pytest.fixture(autouse=True)
def without_umap(monkeypatch):
    monkeypatch.setattr(item_map, "find_spec", lambda name: None)


def vectors_of(count=200, size=12):
    random = np.random.default_rng(0)
    spread = random.normal(size=(count, size)) * np.linspace(3, 0.3, size)
    vectors = spread + random.normal(size=size)
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


def test_a_field_lies_where_an_item_of_the_same_vector_lies_and_the_map_is_the_same(monkeypatch):
    monkeypatch.setattr(item_map, "SAMPLE", 50)
    vectors = vectors_of()
    one, two = (make_map(vectors, np.arange(200), vectors[[5, 9]], ("five", "nine")) for _ in "ab")
    np.testing.assert_allclose(one.field_points, one.points[[5, 9]], atol=1e-6)
    np.testing.assert_array_equal(one.points, two.points)
    assert (one.method, one.field_names, len(one.points)) == ("PCA", ("five", "nine"), 200)


@pytest.fixture
def with_sklearn(monkeypatch):
    monkeypatch.setattr(item_map, "find_spec", lambda name: name == "sklearn" or None)
    monkeypatch.setattr(item_map, "TSNE_ABOVE", 100)


def clusters(count=150, classes=10, size=30):
    """Items around directions of classes, in more dimensions than two axes can show."""
    random = np.random.default_rng(2)
    labels = np.arange(count) % classes
    vectors = random.normal(size=(classes, size))[labels] + 0.5 * random.normal(size=(count, size))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels


def test_neighbours_stay_together_on_the_map_and_it_is_always_the_same(with_sklearn):
    vectors, labels = clusters()
    ids = np.arange(len(vectors))
    one, two = (make_map(vectors, ids, vectors[[5]], ("five",), labels) for _ in "ab")
    assert (one.method, one.explained) == ("t-SNE", None)
    assert own_neighbours(one.points, labels) > 0.9
    np.testing.assert_array_equal(one.points, two.points)
    np.testing.assert_allclose(one.field_points[0], one.points[5], atol=1e-3)
    assert np.abs(one.points).max() == pytest.approx(1, abs=1e-3)
    few = make_map(vectors[:100], ids[:100], vectors[:0], (), labels[:100])
    assert few.method == "PCA of class means"


def test_items_that_are_all_alike_have_a_map(with_sklearn):
    for size in (1, 8):
        alike = np.zeros((120, size), np.float32)
        alike[:, 0] = 1
        found = make_map(alike, np.arange(120), alike[:1], ("one",))
        assert np.isfinite(found.points).all()
        assert np.isfinite(found.field_points).all()


def test_items_beyond_the_sample_lie_among_their_neighbours(with_sklearn, monkeypatch):
    monkeypatch.setattr(item_map, "TSNE_SAMPLE", 80)
    vectors, labels = clusters()
    found = make_map(vectors, np.arange(len(vectors)), vectors[:0], ())
    assert own_neighbours(found.points, labels) > 0.8


def test_a_place_is_the_weighted_mean_of_those_of_the_nearest(monkeypatch):
    vectors, _ = clusters(40)
    sample, new = vectors[:30], vectors[28:]
    places = np.random.default_rng(3).normal(size=(30, 2)).astype(np.float32)
    monkeypatch.setattr(item_map, "SIMILARITIES_AT_ONCE", 100)  # blocks of three
    for found, vector in zip(item_map.place_between(new, sample, places), new, strict=True):
        apart = [
            max(1 - sum(float(a) * float(b) for a, b in zip(vector, s, strict=True)), 1e-6)
            for s in sample
        ]
        near = sorted(range(30), key=lambda at: apart[at])[:5]
        total = sum(1 / apart[at] for at in near)
        must = [sum(float(places[at][d]) / apart[at] for at in near) / total for d in (0, 1)]
        np.testing.assert_allclose(found, must, atol=1e-3)
    few = item_map.place_between(new, sample[:2], places[:2])
    assert few.shape == (12, 2)


def own_neighbours(points, labels):
    """The share of points whose nearest point has the same label."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return (labels[apart.argmin(1)] == labels).mean()


def test_the_axes_of_class_means_show_classes_that_most_of_the_variance_hides():
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(4), 30)
    vectors = random.normal(size=(120, 12)) * 0.1
    vectors[:, 0:4] += random.normal(size=(120, 4)) * 2  # says nothing of the class
    vectors[:, 10:] += np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])[labels]
    vectors = vectors.astype(np.float32)
    ids, none = np.arange(120), vectors[:0]
    plain, apart = make_map(vectors, ids, none, ()), make_map(vectors, ids, none, (), labels)
    assert (plain.method, apart.method) == ("PCA", "PCA of class means")
    assert own_neighbours(plain.points, labels) < 0.5
    assert own_neighbours(apart.points, labels) > 0.9
    assert 0 < apart.explained < plain.explained
    np.testing.assert_array_equal(make_map(vectors, ids, none, (), labels).points, apart.points)


def test_without_three_classes_the_axes_are_those_of_the_items():
    vectors = vectors_of(30)
    plain = make_map(vectors, np.arange(30), vectors[:0], ())
    for labels in (np.full(30, -1), np.arange(30) % 2, np.arange(30) % 2 - 1):
        made = make_map(vectors, np.arange(30), vectors[:0], (), labels)
        assert made.method == "PCA"
        np.testing.assert_array_equal(made.points, plain.points)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_handful_of_items_has_a_map_too(count):
    vectors = vectors_of(count)
    made = make_map(vectors, np.arange(count), vectors[:0], ())
    assert made.points.shape == (count, 2)
    assert np.isfinite(made.points).all()
    assert 0 <= made.explained <= 1


def test_a_map_comes_back_from_its_file_unless_that_is_damaged(tmp_path):
    path, vectors = tmp_path / "map-12345678.npz", vectors_of(20)
    made = make_map(vectors, np.arange(20) + 7, vectors[:2], ("ä", "b b"))
    write_map(path, made)
    back = read_map(path)
    assert (back.method, back.explained, back.field_names) == ("PCA", made.explained, ("ä", "b b"))
    for name in ("ids", "points", "field_points"):
        np.testing.assert_array_equal(getattr(back, name), getattr(made, name))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedIndexError, match="map-12345678.npz of the index is damaged"):
        read_map(path)


@pytest.mark.parametrize("library", ["stand-in", "umap"])
def test_umap_maps_what_is_neither_too_little_nor_too_much(monkeypatch, library):
    asked = {}

    class Reducer:
        """Takes the calls of UMAP where it is not installed."""

        def __init__(self, **options):
            asked.update(options)

        def fit(self, sample):
            asked["fitted"] = len(sample)

        def transform(self, vectors):
            return vectors[:, :2]

    if library == "umap":
        pytest.importorskip("umap")
    else:
        monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Reducer))
    monkeypatch.setattr(item_map, "UMAP_UP_TO", 150)
    monkeypatch.setattr(item_map, "find_spec", lambda name: name)
    methods = {}
    for count in (100, 101, 150, 151):
        vectors = vectors_of(count)
        made = make_map(vectors, np.arange(count), vectors[:3], ("a", "b", "c"))
        methods[count] = made.method, made.explained is None
        assert (made.points.shape, made.field_points.shape) == ((count, 2), (3, 2))
        if made.method == "UMAP" and asked:
            assert (asked["metric"], asked["random_state"], asked["fitted"]) == ("cosine", 0, count)
            np.testing.assert_array_equal(made.points, vectors[:, :2])
    umap, pca = ("UMAP", True), ("PCA", False)
    assert methods == {100: pca, 101: umap, 150: umap, 151: pca}
