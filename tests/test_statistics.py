"""Intervals cover, tests are uniform under the null hypothesis, and both are repeatable."""

import itertools

import numpy as np
import pytest

from weiss import statistics
from weiss.statistics import bootstrap_interval, paired_test


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        interval = bootstrap_interval(random.exponential(size=80), confidence=0.9, seed=seed)
        covered += interval.low <= 1.0 <= interval.high
    assert 0.82 <= covered / 200 <= 0.95


def test_the_p_value_is_that_of_all_swaps():
    first, second = (
        np.array([3.0, 1.0, 2.5, 4.0, 0.5, 2.0]),
        np.array([1.0, 1.5, 0.5, 1.0, 0.0, 1.0]),
    )
    difference = first - second
    at_least = [
        abs(np.dot(signs, difference)) >= abs(difference.sum()) - 1e-12
        for signs in itertools.product((-1, 1), repeat=6)
    ]
    assert paired_test(first, second, resamples=40_000).p_value == pytest.approx(
        np.mean(at_least), abs=0.01
    )


def test_equal_systems_are_called_different_as_rarely_as_they_should():
    random = np.random.default_rng(1)
    p_values = [
        paired_test(random.normal(size=30), random.normal(size=30), resamples=400, seed=s).p_value
        for s in range(200)
    ]
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.10


def test_results_are_repeatable_and_do_not_depend_on_memory(monkeypatch):
    values = np.random.default_rng(0).normal(size=50)
    whole = bootstrap_interval(values, seed=3), paired_test(values, -values, seed=3)
    assert (bootstrap_interval(values, seed=3), paired_test(values, -values, seed=3)) == whole
    monkeypatch.setattr(statistics, "CELLS", 1000)
    assert bootstrap_interval(values, seed=3) == whole[0]
    # Signs are drawn by bytes, so that other parts draw others; the p-value stays close.
    assert paired_test(values, -values, seed=3).p_value == pytest.approx(whole[1].p_value, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "one value for each query"),
        (([[1.0]],), {}, "one value for each query"),
        (([float("nan")],), {}, "must be finite"),
        (([1.0],), {"confidence": 95}, "between 0 and 1"),
        (([1.0],), {"resamples": 0}, "resamples must be at least 1"),
    ],
)
def test_bad_values_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(*arguments, **options)


def test_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"same queries .* got 2 and 3"):
        paired_test([1.0, 2.0], [1.0, 2.0, 3.0])
