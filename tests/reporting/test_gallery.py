"""Galleries: the neighbours shown are the true ones, and the queries chosen are what is said."""

import numpy as np
import pytest
import torch

from weiss._base import images
from weiss.evaluation import evaluate_retrieval
from weiss.reporting import Looked, Query, choose_queries, retrieval_rows
from weiss.reporting.gallery import class_scores

RNG = np.random.default_rng(0)
NAMES = tuple(f"class {c}" for c in range(6))


def items(number=40, size=5, num_classes=6):
    """Embeddings and labels."""
    labels = np.arange(number) % num_classes
    centres = RNG.normal(size=(num_classes, size))
    return centres[labels] + RNG.normal(size=(number, size)), labels


def image(item):
    """An image that holds its own index."""
    return np.full((4, 4, 1), item, dtype=np.uint8)


def rows_of(embeddings, labels, queries, k=10, read=image, **options):
    shown = [Query(query, "asked") for query in queries]
    return retrieval_rows(embeddings, labels, read, NAMES, shown, k, **options)


def indices(row):
    return [int(tile.pixels[0, 0, 0]) for tile in row.neighbours]


def cosine(x, y):
    inner = sum(a * b for a, b in zip(x, y, strict=True))
    return 1 - inner / (sum(a * a for a in x) * sum(b * b for b in y)) ** 0.5


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_the_neighbours_shown_are_the_nearest_and_marked_by_their_class(convert):
    embeddings, labels = items()
    rows = rows_of(convert(embeddings), labels, [3, 39, 0], 7)
    for query, row in zip([3, 39, 0], rows, strict=True):
        others = [item for item in range(40) if item != query]
        others.sort(key=lambda item: cosine(embeddings[query], embeddings[item]))
        assert indices(row) == others[:7]
        assert int(row.query.pixels[0, 0, 0]) == query
        assert row.query.is_right is None
        assert row.query.name == NAMES[labels[query]]
        is_right = [bool(labels[item] == labels[query]) for item in others[:7]]
        assert [tile.is_right for tile in row.neighbours] == is_right
        assert [tile.name for tile in row.neighbours] == [NAMES[labels[i]] for i in others[:7]]
        assert row.note == f"asked; {sum(is_right)} of 7 right"


def test_only_candidates_are_found_and_read_and_a_query_is_never_its_own():
    embeddings, labels = items()
    chosen, seen = np.array([30, 2, 4, 6, 9]), []

    def read(item):
        seen.append(item)
        return image(item)

    nearest = sorted([2, 6, 9, 30], key=lambda item: cosine(embeddings[4], embeddings[item]))
    for candidates in (chosen, np.isin(np.arange(40), chosen)):
        (row,) = rows_of(embeddings, labels, [4], read=read, candidates=candidates)
        assert indices(row) == nearest
    assert sorted(seen) == sorted(2 * [4, *nearest])
    (row,) = rows_of(embeddings, labels, [4], candidates=np.array([], dtype=np.int64))
    assert (row.neighbours, row.note) == ((), "asked; nothing to find")


def test_twins_come_by_index_and_the_query_is_still_left_out():
    labels = np.arange(6)
    (row,) = rows_of(np.ones((6, 3)), labels, [5], 3)
    assert indices(row) == [0, 1, 2]
    (row,) = rows_of(np.ones((6, 3)), labels, [1], 10)
    assert indices(row) == [0, 2, 3, 4, 5]  # there are no more
    assert rows_of(np.ones((6, 3)), labels, []) == []


def test_multi_hot_neighbours_are_right_if_they_share_a_class():
    embeddings, _ = items(8)
    labels = np.zeros((8, 6), dtype=bool)
    labels[range(8), [0, 1, 2, 0, 1, 2, 0, 1]] = True
    labels[0, 1] = labels[3, 2] = True  # one class in common is enough
    (row,) = rows_of(embeddings, labels, [0], 7)
    assert row.query.name == "class 0, class 1"
    for item, tile in zip(indices(row), row.neighbours, strict=True):
        assert tile.is_right is (item in (1, 3, 4, 6, 7))


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"queries": [8]}, r"queries must lie in \[0, 8\).*got 8"),
        ({"queries": [-1]}, r"queries must lie in \[0, 8\).*got -1"),
        ({"labels": np.zeros(7, int)}, "labels must have one entry for each of the 8.*got 7"),
        ({"k": 0}, "k must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(change, refusal):
    embeddings, labels = items(8)
    with pytest.raises(ValueError, match=refusal):
        rows_of(embeddings, **({"labels": labels, "queries": [0]} | change))


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


def test_the_seed_decides_and_nothing_else():
    values, labels = values_and_labels()
    first, again, other = (choose_queries(values, labels, 6, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_with_few_classes_fewer_queries_are_chosen():
    values, labels = values_and_labels(num_classes=3)
    chosen = choose_queries(values, labels, 10)
    assert len(chosen) == 3
    assert [query.why.split(",")[0] for query in chosen].count("among the worst") == 1
    (only,) = choose_queries(np.array([0.614]), np.array([3]), 10)
    assert only == Query(0, "typical, MAP@R 61 %")
    multi_hot = np.array([[1, 0, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=bool)
    chosen = choose_queries(np.full(4, 0.5), multi_hot, 4)
    assert len({multi_hot[query.index].tobytes() for query in chosen}) == len(chosen) == 3


def test_queries_are_named_by_their_rows_where_some_were_left_out():
    embeddings, labels = items(30)
    labels[0] = 100  # alone, so it has no value
    found = evaluate_retrieval(embeddings, labels, progress=False)
    values = found.per_query["map_at_r"]
    chosen = choose_queries(values, found.query_labels, 4, index=found.query_index)
    for query in chosen:
        place = found.query_index.tolist().index(query.index)
        assert f"{100 * values[place]:.0f} %" in query.why


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


def looked(labels, values, index=None):
    number, index = len(labels), range(len(labels)) if index is None else index
    return Looked(torch.eye(number), labels, NAMES, None, {"map_at_r": values}, index)


def test_classes_are_sorted_by_their_mean_with_their_worst_query():
    labels, values = RNG.integers(0, 5, 60), RNG.random(40).round(1)
    index = RNG.permutation(60)[:40]
    by_class = {}
    for place, row in enumerate(index.tolist()):
        by_class.setdefault(NAMES[labels[row]], []).append((float(values[place]), row))
    means = {name: sum(value for value, _ in own) / len(own) for name, own in by_class.items()}
    found = class_scores(looked(labels, values, index))
    assert [score.name for score in found] == sorted(means, key=means.get)
    for score in found:
        own = by_class[score.name]
        assert score.mean == pytest.approx(means[score.name])
        assert score.num_queries == len(own)
        assert score.worst_value == min(value for value, _ in own)
        assert (score.worst_value, score.worst) in own


def test_a_query_of_two_classes_counts_in_both():
    labels = np.zeros((2, 6), dtype=bool)
    labels[0, 0] = labels[:, 1] = True
    scores = class_scores(looked(labels, [0.2, 0.6]))
    found = [(score.name, score.mean, score.num_queries) for score in scores]
    assert found == [("class 0", 0.2, 1), ("class 1", pytest.approx(0.4), 2)]


def test_values_of_other_queries_are_refused():
    with pytest.raises(ValueError, match="per_query must hold 'map_at_r'.*got 2 for 3 queries"):
        looked([0, 1, 2], [0.1, 0.2])


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
