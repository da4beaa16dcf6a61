"""The threshold against nested loops written from its definition."""

import numpy as np
import pytest

from weiss.catalogue import calibration
from weiss.catalogue.calibration import (
    calibrate,
    choose_queries,
    least_threshold,
    nearest_of_both,
    shortage,
    without,
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
def test_each_class_is_measured_with_the_threshold_of_the_others(seed):
    vectors, labels = clouds(seed=seed)
    held_out = np.ones(24, dtype=bool)
    assert choose_queries(labels, held_out).tolist() == list(range(288))
    found = calibrate(vectors, labels, held_out, 0.1)
    own, impostor = by_hand(vectors, labels, range(288))
    # The least threshold that at most 28 of the 288 impostors reach: above the 29th.
    assert found["similarity"] == pytest.approx(np.sort(impostor)[::-1][28], abs=1e-6)
    false, true = 0, 0
    for c in range(24):
        others = sorted(impostor[labels != c], reverse=True)  # 276, of which 27 may reach it
        false += np.count_nonzero(impostor[labels == c] > others[27] + 1e-6)
        true += np.count_nonzero(own[labels == c] > others[27] + 1e-6)
    assert found["false_match_rate"] == pytest.approx(false / 288, abs=1e-9)
    assert found["true_match_rate"] == pytest.approx(true / 288, abs=1e-9)
    assert seed or false > 28  # a class that sets its own threshold may flatter it
    for name, (low, high) in found["intervals"].items():
        assert low <= found[name] <= high
    assert found["basis"] == (
        "24 classes of this index that never trained: 288 queries set it to at most 10 % false "
        "matches; each class was measured with the threshold of the others, against 288 items"
    )


@pytest.mark.parametrize(("num_classes", "per_class"), [(3, 2), (6, 10), (15, 12), (40, 8)])
def test_the_intervals_hold_what_many_other_catalogues_of_the_same_kind_show(
    num_classes, per_class
):
    held_out, drawn = np.ones(num_classes, dtype=bool), []
    for seed in range(40):
        vectors, labels = clouds(num_classes, per_class, size=16, seed=seed)
        impostor = nearest_of_both(vectors, labels, np.arange(len(labels)))[1]
        drawn.append((calibrate(vectors, labels, held_out, 0.05), impostor))
    everything = np.concatenate([impostor for _, impostor in drawn])
    truth = np.quantile(everything, 0.95)
    covered = {"similarity": 0, "false_match_rate": 0}
    for found, _ in drawn:
        low, high = found["intervals"]["similarity"]
        covered["similarity"] += low <= truth <= high
        low, high = found["intervals"]["false_match_rate"]
        covered["false_match_rate"] += low <= (everything >= found["similarity"]).mean() <= high
    assert covered["similarity"] >= 36
    assert covered["false_match_rate"] >= 34
    if num_classes == 40:  # the ends are not trivially far apart
        ends = np.array([found["intervals"]["similarity"] for found, _ in drawn])
        assert np.median(ends[:, 1] - ends[:, 0]) < 0.2


@pytest.mark.parametrize("seed", range(6))
def test_without_a_dozen_photos_the_new_threshold_lies_in_the_old_interval(seed):
    vectors, labels = clouds(24, 15, size=16, seed=seed)
    held_out = np.ones(24, dtype=bool)
    before = calibrate(vectors, labels, held_out, 0.05)
    kept = np.sort(np.random.default_rng(seed).permutation(len(labels))[12:])
    after = calibrate(vectors[kept], labels[kept], held_out, 0.05)
    for one, other in ((before, after), (after, before)):
        low, high = one["intervals"]["similarity"]
        assert low <= other["similarity"] <= high


def test_a_given_threshold_is_measured_and_stays():
    vectors, labels = clouds(num_classes=5, per_class=4)
    found = calibrate(vectors, labels, np.ones(5, dtype=bool), 0.05, given=0.7)
    own, impostor = by_hand(vectors, labels, range(20))
    assert found["similarity"] == 0.7
    assert found["false_match_rate"] == pytest.approx((impostor >= 0.7).mean())
    assert found["true_match_rate"] == pytest.approx((own >= 0.7).mean())
    assert set(found["intervals"]) == {"false_match_rate", "true_match_rate"}
    assert "since it was given" in found["basis"]


def skewed(*sizes):
    """Return vectors and labels of classes of these sizes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    vectors = np.random.default_rng(0).normal(size=(len(labels), 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels, np.ones(len(sizes), dtype=bool)


@pytest.mark.parametrize(
    "sizes", [(3_000, *[2] * 9), (400, 2, 2, *[1] * 20), (*[200] * 9, 1), (3, 2, 2)]
)
def test_skewed_classes_give_finite_numbers(sizes):
    vectors, labels, held_out = skewed(*sizes)
    assert not shortage(labels, held_out)
    assert np.bincount(labels[choose_queries(labels, held_out)]).max() <= 100
    found = calibrate(vectors, labels, held_out, 0.05)
    rates = ("similarity", "false_match_rate", "true_match_rate")
    assert np.isfinite([found[name] for name in rates]).all()
    assert all(np.isfinite(ends).all() for ends in found["intervals"].values())


def test_small_classes_are_asked_before_large_ones_a_second_time():
    _, labels, held_out = skewed(5_000, *[30] * 50)
    queries = choose_queries(labels, held_out)
    assert len(queries) == 1_000
    counts = np.bincount(labels[queries])
    assert counts.min() >= 19
    assert counts.max() <= 20


def test_a_photo_in_several_classes_is_no_evidence():
    vectors, labels = clouds(num_classes=5, per_class=4)
    copies = [(3, 8), (5, 13, 17)]
    for first, *others in copies:
        vectors[others] = vectors[first]
    shared = [np.array(rows) for rows in copies]
    counted = without(labels, shared)
    assert np.flatnonzero(counted != labels).tolist() == [3, 5, 8, 13, 17]
    found = calibrate(vectors, counted, np.ones(5, dtype=bool), 0.05)
    _, impostor = by_hand(vectors, counted, np.flatnonzero(counted >= 0))
    assert found["similarity"] == pytest.approx(impostor.max(), abs=1e-6)
    assert (
        found["similarity"]
        < 0.999
        < calibrate(vectors, labels, np.ones(5, dtype=bool), 0.05)["similarity"]
    )


def test_classes_that_trained_ask_nothing_but_may_be_found():
    vectors, labels = clouds(num_classes=30, per_class=12)
    held_out = np.arange(30) >= 10
    found = calibrate(vectors, labels, held_out, 0.05)
    assert found["basis"].startswith("20 classes of this index that never trained: 240 queries")
    assert found["basis"].endswith("against 360 items")


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
    assert shortage(labels, np.ones(12, dtype=bool), many=True) == ""
    assert shortage(labels, np.arange(12) >= 3, many=True)
    assert shortage(labels[::2], np.ones(12, dtype=bool), many=True)
    assert shortage(labels, np.arange(12) >= 9) == ""
    assert "there are 2" in shortage(labels, np.arange(12) >= 10)
    assert "there is 1" in shortage(labels, np.arange(12) >= 11)
    assert "there are 0" in shortage(np.arange(300), np.ones(300, dtype=bool))  # one item each
    assert "there are 0" in shortage(np.full(500, -1), np.zeros(0, dtype=bool))
