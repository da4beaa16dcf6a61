"""The threshold against nested loops written from its definition."""

import numpy as np
import pytest

from weiss.catalogue.calibration import calibrate, enough, least_threshold, nearest_of_both


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
    own, stranger = nearest_of_both(vectors, labels, queries)
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
        assert stranger[place] == pytest.approx(best[False], abs=1e-6)
    assert own[2] == -np.inf


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 0.5])
def test_the_threshold_is_the_least_that_so_few_strangers_reach(rate):
    strangers = np.random.default_rng(1).normal(size=101).astype(np.float32)
    found = least_threshold(strangers, rate)
    assert (strangers >= found).mean() <= rate
    lower = max(value for value in strangers if value < found)
    assert (strangers >= lower).mean() > rate


def test_strangers_that_tie_stay_together_below_the_threshold():
    strangers = np.array([0.5] * 10 + [0.1] * 10, dtype=np.float32)
    assert (strangers >= least_threshold(strangers, 0.25)).mean() == 0


def test_the_rates_are_counted_on_classes_that_did_not_set_the_threshold():
    vectors, labels = clouds()
    held_out = np.ones(24, dtype=bool)
    found = calibrate(vectors, labels, held_out, false_match_rate=0.1)
    own, stranger = nearest_of_both(vectors, labels, np.arange(len(labels)))
    # Whichever half measured it: some half of the classes has exactly these rates.
    assert found.num_classes == 24
    assert found.num_setting + found.num_measuring == len(labels)
    assert found.num_setting == found.num_measuring == 144
    assert found.num_gallery == len(labels)
    reached = {c: int((stranger[labels == c] >= found.similarity).sum()) for c in range(24)}
    of_own = {c: int((own[labels == c] >= found.similarity).sum()) for c in range(24)}
    setting = sum(reached.values()) - round(found.false_match_rate * 144)
    assert setting <= 0.1 * 144
    assert round(found.true_match_rate * 144) <= sum(of_own.values())
    assert found.true_match_rate > found.false_match_rate


def test_classes_that_trained_ask_nothing_but_may_be_found():
    vectors, labels = clouds(num_classes=30, per_class=12)
    held_out = np.arange(30) >= 10
    found = calibrate(vectors, labels, held_out)
    assert found.num_classes == 20
    assert found.num_setting + found.num_measuring == 20 * 12
    assert found.num_gallery == 30 * 12


def test_more_strangers_in_the_gallery_ask_for_a_higher_threshold():
    vectors, labels = clouds(num_classes=40, per_class=12, spread=1.0)
    held_out = np.ones(40, dtype=bool)
    few = labels < 20
    small = calibrate(vectors[few], labels[few], held_out)
    large = calibrate(vectors, labels, held_out)
    assert large.similarity > small.similarity


def test_too_few_held_out_classes_or_items_are_told():
    labels = np.repeat(np.arange(12), 20)
    assert enough(labels, np.ones(12, dtype=bool)) == ""
    assert "there are 9 and 180" in enough(labels, np.arange(12) >= 3)
    assert "there are 12 and 120" in enough(labels[::2], np.ones(12, dtype=bool))
    assert "there are 0 and 0" in enough(np.full(500, -1), np.zeros(0, dtype=bool))


@pytest.mark.parametrize("rate", [0, 1, -0.1, 5])
def test_a_rate_that_is_no_share_is_refused(rate):
    vectors, labels = clouds()
    with pytest.raises(ValueError, match="false_match_rate must lie between 0 and 1"):
        calibrate(vectors, labels, np.ones(24, dtype=bool), false_match_rate=rate)
