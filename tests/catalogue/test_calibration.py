"""The threshold against nested loops written from its definition."""

import numpy as np
import pytest

from weiss.catalogue import calibration
from weiss.catalogue.calibration import (
    calibrate,
    halves,
    least_threshold,
    nearest_of_both,
    shortage,
)


def clouds(num_classes=24, per_class=12, size=8, spread=0.6, seed=0):
    """Vectors of unit length about a centre for each class."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), per_class)
    vectors = random.normal(size=(num_classes, size))[labels]
    vectors += spread * random.normal(size=vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels


def by_hand(vectors, labels, queries):
    """Return the similarities of the nearest of the own class, and of another, by nested loops."""
    own, impostor = [], []
    for i in queries:
        best = {True: -np.inf, False: -np.inf}
        for j in range(len(labels)):
            if j != i and labels[j] >= 0:
                similarity = float(vectors[i].astype(np.float64) @ vectors[j])
                best[labels[j] == labels[i]] = max(best[labels[j] == labels[i]], similarity)
        own.append(best[True])
        impostor.append(best[False])
    return np.array(own), np.array(impostor)


@pytest.mark.parametrize("at_once", [calibration.SIMILARITIES_AT_ONCE, 12])
def test_the_nearest_of_the_own_class_and_of_another_are_those_of_nested_loops(
    at_once, monkeypatch
):
    monkeypatch.setattr(calibration, "SIMILARITIES_AT_ONCE", at_once)
    vectors, labels = clouds(num_classes=5, per_class=4)
    labels[[3, 7]] = -1
    labels[8] = 77  # alone in its class
    queries = np.array([0, 5, 8, 19])
    found, expected = nearest_of_both(vectors, labels, queries), by_hand(vectors, labels, queries)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[0][2] == -np.inf


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
def test_the_threshold_is_the_least_that_so_few_impostors_reach(rate):
    impostors = np.random.default_rng(1).normal(size=101).astype(np.float32)
    found = least_threshold(impostors, rate)
    assert (impostors >= found).mean() <= rate
    lower = max(value for value in impostors if value < found)
    assert (impostors >= lower).mean() > rate
    ties = np.repeat(np.float32([0.5, 0.1]), 10)  # they stay together below the threshold
    assert (ties >= least_threshold(ties, min(rate, 0.45))).mean() == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_one_half_of_the_classes_sets_the_threshold_and_the_other_measures_it(seed):
    vectors, labels = clouds(seed=seed)
    held_out = np.ones(24, dtype=bool)
    queries, sets = halves(labels, held_out)
    assert set(labels[queries[sets]]).isdisjoint(labels[queries[~sets]])
    assert sorted(queries) == list(range(len(labels)))
    assert sets.sum() == (~sets).sum() == 144
    found = calibrate(vectors, labels, held_out, 0.1)
    own, impostor = by_hand(vectors, labels, queries)
    # The least threshold that at most 14 of the 144 setting impostors reach: above the 15th.
    fifteenth = np.sort(impostor[sets])[::-1][14]
    similarity = found["similarity"]
    assert similarity == pytest.approx(fifteenth, abs=1e-6)
    assert similarity > fifteenth - 1e-6
    assert (impostor[sets] > similarity + 1e-6).sum() <= 14
    reached = np.count_nonzero(impostor[~sets] >= similarity)
    assert found["false_match_rate"] == pytest.approx(reached / 144, abs=1e-9)
    of_own = np.count_nonzero(own[~sets] >= similarity)
    assert found["true_match_rate"] == pytest.approx(of_own / 144, abs=1e-9)
    # Neither all of them together nor the other half say the same.
    both = least_threshold(impostor.astype(np.float32), 0.1)
    assert abs(both - similarity) > 1e-4
    assert reached != np.count_nonzero(impostor[sets] >= similarity)
    assert found["basis"] == (
        "24 classes of this index that never trained: 12 of them, 144 queries, set it to at most "
        "10 % false matches; the others, 144 queries, measured it against 288 items"
    )


def skewed(*sizes):
    """Return vectors and labels of classes of these sizes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    vectors = np.random.default_rng(0).normal(size=(len(labels), 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels, np.ones(len(sizes), dtype=bool)


@pytest.mark.parametrize(
    "sizes",
    [
        (3_000, *[1] * 9),
        (400, *[1] * 20),
        (*[200] * 9, 1),
        (150, 150, 150, *[1] * 7),
    ],
)
def test_skewed_classes_give_a_sound_threshold_or_none_in_words(sizes):
    vectors, labels, held_out = skewed(*sizes)
    lack = shortage(labels, held_out)
    queries, sets = halves(labels, held_out)
    assert np.bincount(labels[queries]).max() <= 100
    fewest = min(sets.sum(), (~sets).sum())
    classes = [len(np.unique(labels[queries[half]])) for half in (sets, ~sets)]
    assert bool(lack) == (fewest < 100 or min(classes) < 5)
    if lack:
        assert "100 queries of 5 classes that the network never trained on" in lack
    else:
        found = calibrate(vectors, labels, held_out, 0.05)
        rates = ("similarity", "false_match_rate", "true_match_rate")
        assert np.isfinite([found[name] for name in rates]).all()


def test_small_classes_are_asked_before_large_ones_a_second_time():
    _, labels, held_out = skewed(5_000, *[30] * 50)
    queries, sets = halves(labels, held_out)
    assert len(queries) == 1_000
    counts = np.bincount(labels[queries])
    assert counts.min() >= 19
    assert counts.max() <= 20
    assert abs(int(sets.sum()) - 500) <= 20


def test_without_two_of_a_class_nobody_says_how_many_are_found():
    _, labels, held_out = skewed(*[1] * 300)
    assert "20 queries with another item of their class are needed" in shortage(labels, held_out)


def test_classes_that_trained_ask_nothing_but_may_be_found():
    vectors, labels = clouds(num_classes=30, per_class=12)
    held_out = np.arange(30) >= 10
    found = calibrate(vectors, labels, held_out, 0.05)
    assert found["basis"].startswith("20 classes of this index that never trained: 10 of them, 120")
    assert found["basis"].endswith("the others, 120 queries, measured it against 360 items")


def test_more_impostors_in_the_gallery_ask_for_a_higher_threshold():
    vectors, labels = clouds(num_classes=40, per_class=12, spread=1.0)
    held_out = np.ones(40, dtype=bool)
    few = labels < 20
    small = calibrate(vectors[few], labels[few], held_out, 0.05)
    large = calibrate(vectors, labels, held_out, 0.05)
    assert large["similarity"] > small["similarity"]


def test_too_few_held_out_classes_or_items_are_told():
    labels = np.repeat(np.arange(12), 20)
    assert shortage(labels, np.ones(12, dtype=bool)) == ""
    assert "there are 9 and 180" in shortage(labels, np.arange(12) >= 3)
    assert "there are 12 and 120" in shortage(labels[::2], np.ones(12, dtype=bool))
    assert "there are 0 and 0" in shortage(np.full(500, -1), np.zeros(0, dtype=bool))
