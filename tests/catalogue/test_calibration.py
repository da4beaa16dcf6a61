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


def test_the_nearest_of_the_own_class_and_of_another_are_those_of_nested_loops():
    vectors, labels = clouds(num_classes=5, per_class=4)
    labels[[3, 7]] = -1
    labels[8] = 77  # alone in its class
    queries = np.array([0, 5, 8, 19])
    own, impostor = nearest_of_both(vectors, labels, queries)
    for place, i in enumerate(queries):
        best = {True: -np.inf, False: -np.inf}
        for j in range(len(vectors)):
            if j == i or labels[j] < 0:
                continue
            similarity = sum(
                float(a) * float(b) for a, b in zip(vectors[i], vectors[j], strict=True)
            )
            best[labels[j] == labels[i]] = max(best[labels[j] == labels[i]], similarity)
        assert own[place] == pytest.approx(best[True], abs=1e-6)
        assert impostor[place] == pytest.approx(best[False], abs=1e-6)
    assert own[2] == -np.inf


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
def test_the_threshold_is_the_least_that_so_few_impostors_reach(rate):
    impostors = np.random.default_rng(1).normal(size=101).astype(np.float32)
    found = least_threshold(impostors, rate)
    assert (impostors >= found).mean() <= rate
    lower = max(value for value in impostors if value < found)
    assert (impostors >= lower).mean() > rate


def test_impostors_that_tie_stay_together_below_the_threshold():
    impostors = np.array([0.5] * 10 + [0.1] * 10, dtype=np.float32)
    assert (impostors >= least_threshold(impostors, 0.25)).mean() == 0


def by_hand(vectors, labels, queries):
    """Return the similarities of the nearest of the own class, and of another, by nested loops."""
    own, impostor = [], []
    similarity = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    for i in queries:
        others = [j for j in range(len(labels)) if j != i and labels[j] >= 0]
        own.append(max([similarity[i, j] for j in others if labels[j] == labels[i]], default=-2))
        impostor.append(max(similarity[i, j] for j in others if labels[j] != labels[i]))
    return np.array(own), np.array(impostor)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_half_of_the_classes_sets_the_threshold_and_the_other_measures_it(seed):
    vectors, labels = clouds(seed=seed)
    held_out = np.ones(24, dtype=bool)
    queries, sets = halves(labels, held_out, seed)
    assert set(labels[queries[sets]]).isdisjoint(labels[queries[~sets]])
    assert sorted(queries) == list(range(len(labels)))
    assert sets.sum() == (~sets).sum() == 144
    found = calibrate(vectors, labels, held_out, false_match_rate=0.1, seed=seed)
    own, impostor = by_hand(vectors, labels, queries)
    # The least threshold that at most 14 of the 144 setting impostors reach: above the 15th.
    fifteenth = np.sort(impostor[sets])[::-1][14]
    assert found.similarity == pytest.approx(fifteenth, abs=1e-6)
    assert found.similarity > fifteenth - 1e-6
    assert (impostor[sets] > found.similarity + 1e-6).sum() <= 14
    reached = np.count_nonzero(impostor[~sets] >= found.similarity)
    assert found.false_match_rate == pytest.approx(reached / 144, abs=1e-9)
    of_own = np.count_nonzero(own[~sets] >= found.similarity)
    assert found.true_match_rate == pytest.approx(of_own / 144, abs=1e-9)
    # Neither all of them together nor the other half say the same.
    both = least_threshold(impostor.astype(np.float32), 0.1)
    assert abs(both - found.similarity) > 1e-4
    assert reached != np.count_nonzero(impostor[sets] >= found.similarity)
    assert (found.num_classes, found.num_setting_classes) == (24, 12)
    assert (found.num_setting, found.num_measuring) == (144, 144)
    assert found.num_gallery == len(labels)


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
    for seed in range(2):
        lack = shortage(labels, held_out, seed)
        queries, sets = halves(labels, held_out, seed)
        assert np.bincount(labels[queries]).max() <= 100
        fewest = min(sets.sum(), (~sets).sum())
        classes = [len(np.unique(labels[queries[half]])) for half in (sets, ~sets)]
        assert bool(lack) == (fewest < 100 or min(classes) < 5)
        if lack:
            assert "100 queries of 5 classes that the network never trained on" in lack
            with pytest.raises(ValueError, match="a threshold cannot be set: 100 queries"):
                calibrate(vectors, labels, held_out, seed=seed)
        else:
            found = calibrate(vectors, labels, held_out, seed=seed)
            assert found.num_setting >= 100
            assert found.num_measuring >= 100
            rates = (found.similarity, found.false_match_rate, found.true_match_rate)
            assert np.isfinite(rates).all()


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


def test_similarities_are_held_in_small_parts(monkeypatch):
    vectors, labels = clouds(num_classes=5, per_class=7)
    labels[11] = -1
    queries = np.array([0, 8, 20, 34])
    whole = nearest_of_both(vectors, labels, queries)
    monkeypatch.setattr(calibration, "SIMILARITIES_AT_ONCE", 12)
    for one, two in zip(whole, nearest_of_both(vectors, labels, queries), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_classes_that_trained_ask_nothing_but_may_be_found():
    vectors, labels = clouds(num_classes=30, per_class=12)
    held_out = np.arange(30) >= 10
    found = calibrate(vectors, labels, held_out)
    assert found.num_classes == 20
    assert found.num_setting + found.num_measuring == 20 * 12
    assert found.num_gallery == 30 * 12


def test_more_impostors_in_the_gallery_ask_for_a_higher_threshold():
    vectors, labels = clouds(num_classes=40, per_class=12, spread=1.0)
    held_out = np.ones(40, dtype=bool)
    few = labels < 20
    small = calibrate(vectors[few], labels[few], held_out)
    large = calibrate(vectors, labels, held_out)
    assert large.similarity > small.similarity


def test_too_few_held_out_classes_or_items_are_told():
    labels = np.repeat(np.arange(12), 20)
    assert shortage(labels, np.ones(12, dtype=bool)) == ""
    assert "there are 9 and 180" in shortage(labels, np.arange(12) >= 3)
    assert "there are 12 and 120" in shortage(labels[::2], np.ones(12, dtype=bool))
    assert "there are 0 and 0" in shortage(np.full(500, -1), np.zeros(0, dtype=bool))


@pytest.mark.parametrize("rate", [0, 1])
def test_a_rate_that_is_no_share_is_refused(rate):
    vectors, labels = clouds()
    with pytest.raises(ValueError, match="false_match_rate must lie between 0 and 1"):
        calibrate(vectors, labels, np.ones(24, dtype=bool), false_match_rate=rate)
