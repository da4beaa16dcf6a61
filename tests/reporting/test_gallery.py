"""Galleries: the neighbours shown are the true ones, and the queries chosen are what is said."""

import numpy as np
import pytest
import torch

from weiss._base import images
from weiss.evaluation import evaluate_retrieval
from weiss.reporting import Gallery, Query, choose_queries, retrieval_rows

RNG = np.random.default_rng(0)
NAMES = tuple(f"class {c}" for c in range(6))


def items(number=40, size=5, num_classes=6):
    """Embeddings, labels, and images that hold their own index."""
    labels = np.arange(number) % num_classes
    centres = RNG.normal(size=(num_classes, size))
    embeddings = centres[labels] + RNG.normal(size=(number, size))
    pixels = np.zeros((number, 4, 4, 1), dtype=np.uint8) + np.arange(
        number, dtype=np.uint8
    ).reshape(-1, 1, 1, 1)
    return embeddings, labels, pixels


def indices(row):
    return [int(tile.pixels[0, 0, 0]) for tile in row.neighbours]


def cosine(x, y):
    inner = sum(a * b for a, b in zip(x, y, strict=True))
    return 1 - inner / (sum(a * a for a in x) * sum(b * b for b in y)) ** 0.5


def euclidean(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize(
    ("distance", "convert"), [(cosine, np.asarray), (euclidean, torch.as_tensor)]
)
def test_the_neighbours_shown_are_the_nearest_and_marked_by_their_class(distance, convert):
    embeddings, labels, pixels = items()
    rows = retrieval_rows(
        *(convert(embeddings), labels, pixels, NAMES, [3, 39, 0], 7), distance=distance.__name__
    )
    assert len(rows) == 3
    for query, row in zip([3, 39, 0], rows, strict=True):
        others = [item for item in range(40) if item != query]
        others.sort(key=lambda item: distance(embeddings[query], embeddings[item]))
        assert indices(row) == others[:7]
        assert int(row.query.pixels[0, 0, 0]) == query
        assert row.query.is_right is None
        assert row.label == row.query.name == NAMES[labels[query]]
        for tile, item in zip(row.neighbours, others[:7], strict=True):
            assert tile.name == NAMES[labels[item]]
            assert tile.is_right is bool(labels[item] == labels[query])


def test_only_candidates_are_found_and_a_query_never_itself():
    embeddings, labels, pixels = items()
    chosen = np.array([30, 2, 4, 6, 9])
    nearest = sorted([2, 6, 9, 30], key=lambda item: cosine(embeddings[4], embeddings[item]))
    for candidates in (chosen, np.isin(np.arange(40), chosen)):
        (row,) = retrieval_rows(embeddings, labels, pixels, NAMES, [4], 10, candidates=candidates)
        assert indices(row) == nearest


def test_twins_come_by_index_and_the_query_is_still_left_out():
    _, labels, pixels = items(6)
    (row,) = retrieval_rows(np.ones((6, 3)), labels, pixels, NAMES, [5], 3, distance="euclidean")
    assert indices(row) == [0, 1, 2]
    (row,) = retrieval_rows(np.ones((6, 3)), labels, pixels, NAMES, [1], 10)
    assert indices(row) == [0, 2, 3, 4, 5]  # there are no more
    assert retrieval_rows(np.ones((6, 3)), labels, pixels, NAMES, []) == []


def test_a_class_of_which_nothing_is_found_is_shown_as_such():
    embeddings, labels, pixels = items(12)
    labels = labels.copy()
    labels[0] = 5
    labels[5] = labels[11] = 4  # the query is now alone in its class
    (row,) = retrieval_rows(embeddings, labels, pixels, NAMES, [Query(0, "among the worst")], 4)
    assert [tile.is_right for tile in row.neighbours] == [False] * 4
    assert row.note == "among the worst; 0 of 4 right"
    (row,) = retrieval_rows(
        *(embeddings, labels, pixels, NAMES, [0], 4), candidates=np.array([], dtype=np.int64)
    )
    assert row.neighbours == ()
    assert row.note == "nothing to find"


def test_multi_hot_neighbours_are_right_if_they_share_a_class():
    embeddings, _, pixels = items(8)
    labels = np.zeros((8, 6), dtype=bool)
    labels[range(8), [0, 1, 2, 0, 1, 2, 0, 1]] = True
    labels[0, 1] = labels[3, 2] = True  # one class in common is enough
    (row,) = retrieval_rows(embeddings, labels, pixels, NAMES, [0], 7)
    assert row.label == "class 0, class 1"
    for item, tile in zip(indices(row), row.neighbours, strict=True):
        assert tile.is_right is (item in (1, 3, 4, 6, 7))


def test_only_the_images_shown_are_read():
    embeddings, labels, pixels = items()
    read = []

    def reading(item):
        read.append(item)
        return pixels[item]

    (row,) = retrieval_rows(embeddings, labels, reading, NAMES, [7], 5)
    assert sorted(read) == sorted([7, *indices(row)])


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"queries": [8]}, r"queries must lie in \[0, 8\).*got 8"),
        ({"queries": [-1]}, r"queries must lie in \[0, 8\).*got -1"),
        ({"labels": np.zeros(7, int)}, "labels must have one entry for each of the 8.*got 7"),
        ({"images": np.zeros((7, 4, 4, 1))}, "images must have one entry for each of the 8.*got 7"),
        ({"k": 0}, "k must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(change, refusal):
    embeddings, labels, pixels = items(8)
    fitting = {"labels": labels, "images": pixels, "queries": [0]}
    with pytest.raises(ValueError, match=refusal):
        retrieval_rows(embeddings, class_names=NAMES, **(fitting | change))


def test_a_gallery_has_rows():
    with pytest.raises(ValueError, match="rows must be at least one"):
        Gallery([])


def values_and_labels(number=200, num_classes=20):
    return RNG.random(number).round(2), RNG.integers(0, num_classes, number)


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_half_of_the_queries_are_typical_and_half_the_worst_each_of_another_class(number):
    values, labels = values_and_labels()
    chosen = choose_queries(values, labels, number)
    assert len(chosen) == number
    assert len({labels[query.index] for query in chosen}) == number
    typical = [query.index for query in chosen if query.why.startswith("typical")]
    worst = [query.index for query in chosen if query.why.startswith("among the worst")]
    assert (len(typical), len(worst)) == ((number + 1) // 2, number // 2)
    low, high = np.quantile(values, (0.25, 0.75))
    for query in typical:
        assert low <= values[query] <= high
    lowest = {}
    for value, label in zip(values.tolist(), labels.tolist(), strict=True):
        lowest[label] = min(value, lowest.get(label, 1.0))
    assert [values[query] for query in worst] == sorted(lowest.values())[: number // 2]


def test_a_reason_says_the_value():
    (query,) = choose_queries(np.array([0.614]), np.array([3]), 1, metric="R-precision")
    assert query == Query(0, "typical, R-precision 61 %")


def test_the_seed_decides_and_nothing_else():
    values, labels = values_and_labels()
    first, again, other = (choose_queries(values, labels, 6, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_with_few_classes_fewer_queries_are_chosen():
    values, labels = values_and_labels(num_classes=3)
    chosen = choose_queries(values, labels, 10)
    assert len(chosen) == 3
    assert [query.why.split(",")[0] for query in chosen].count("among the worst") == 1
    same = choose_queries(np.ones(4), np.zeros(4, dtype=int), 10)
    assert len(same) == 1


def test_queries_are_named_by_their_rows_where_some_were_left_out():
    embeddings, labels, pixels = items(30)
    labels = labels.copy()
    labels[0] = 100  # alone, so it has no value
    found = evaluate_retrieval(embeddings, labels, progress=False)
    chosen = choose_queries(
        *(found.per_query["map_at_r"], found.query_labels, 4), index=found.query_index
    )
    for query in chosen:
        place = found.query_index.tolist().index(query.index)
        assert f"{100 * found.per_query['map_at_r'][place]:.0f} %" in query.why
    named = {**dict(enumerate(NAMES)), 100: "alone"}
    assert len(retrieval_rows(embeddings, labels, pixels, named, chosen, 3)) == 4


def test_multi_hot_queries_differ_in_their_classes():
    labels = np.array([[1, 0, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=bool)
    chosen = choose_queries(np.array([0.5, 0.5, 0.5, 0.5]), labels, 4)
    assert len({labels[query.index].tobytes() for query in chosen}) == 3


@pytest.mark.parametrize(
    ("values", "labels", "refusal"),
    [
        (np.ones(3), np.ones(4), "must have one entry a query"),
        (np.ones(0), np.ones(0), "at least one"),
        (np.array([0.5, np.nan]), np.arange(2), "must be finite; got 1"),
    ],
)
def test_values_must_be_numbers_one_a_query(values, labels, refusal):
    with pytest.raises(ValueError, match=refusal):
        choose_queries(values, labels, 2)


@pytest.mark.parametrize("shape", [(5, 7, 1), (5, 7, 3), (1, 1, 3)])
def test_a_png_gives_back_its_pixels(shape):
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    coded = images.encode_png(pixels)
    np.testing.assert_array_equal(images.decode(coded, channels=shape[2]), pixels)
    assert coded == images.encode_png(pixels[::-1][::-1])


@pytest.mark.parametrize("pixels", [np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3)), np.ones(3)])
def test_what_is_no_8_bit_image_is_not_encoded(pixels):
    with pytest.raises(ValueError, match="pixels must be uint8 of shape"):
        images.encode_png(pixels)
    with pytest.raises(ValueError, match="pixels must be at least one"):
        images.encode_png(np.zeros((0, 3, 1), np.uint8))
