"""Intervals cover, tests are uniform under the null hypothesis, and both are repeatable."""

import itertools

import numpy as np
import pytest
import scipy.stats

from weiss import statistics
from weiss.statistics import bootstrap_interval, paired_test, t_interval


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


CONFIDENCES = [0.001, 0.1, 0.5, 0.68, 0.8, 0.9, 0.95, 0.99, 0.999, 0.999999]


@pytest.mark.parametrize("number", [*range(2, 13), 20, 31, 32, 100, 501, 2000])
def test_students_interval_is_that_of_scipy(number):
    values = np.random.default_rng(number).normal(3.0, 2.0, size=number)
    for confidence in CONFIDENCES:
        found = t_interval(values, confidence=confidence)
        scale = values.std(ddof=1) / np.sqrt(number)
        low, high = scipy.stats.t.interval(confidence, number - 1, values.mean(), scale)
        assert found.mean == pytest.approx(values.mean(), rel=1e-14)
        assert found.low == pytest.approx(low, rel=1e-9)
        assert found.high == pytest.approx(high, rel=1e-9)
        assert found.confidence == confidence


def test_students_quantiles_are_those_of_the_tables():
    for freedom, expected in [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (120, 1.980)]:
        assert round(statistics._t_quantile(0.975, freedom), 3) == expected


def test_students_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        interval = t_interval(random.normal(5.0, 3.0, size=5), confidence=0.9)
        covered += interval.low <= 5.0 <= interval.high
    assert 0.87 <= covered / 1000 <= 0.93


def test_equal_repetitions_leave_no_doubt():
    found = t_interval([26.5] * 4)
    assert (found.mean, found.low, found.high) == (26.5, 26.5, 26.5)


def test_more_confidence_or_fewer_repetitions_make_a_wider_interval():
    widths = [t_interval([1.0, 2.0, 4.0], confidence=c).high for c in CONFIDENCES]
    assert widths == sorted(set(widths))
    halves = [t_interval([-1.0, 1.0] * pairs).high for pairs in (1, 2, 5, 50)]
    assert halves == sorted(set(halves), reverse=True)


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        ([], {}, ValueError, "one value for each query.* for t_interval"),
        ([[1.0, 2.0]], {}, ValueError, r"for t_interval; got \(1, 2\)"),
        (
            [1.0],
            {},
            ValueError,
            "at least two repetitions .*; got 1. Repeat the experiment with an",
        ),
        ([1.0, float("nan")], {}, ValueError, "values must be finite for t_interval"),
        ([1.0, float("inf")], {}, ValueError, "values must be finite for t_interval"),
        ([1.0, 2.0], {"confidence": 0}, ValueError, "between 0 and 1 for t_interval; got 0"),
        ([1.0, 2.0], {"confidence": 1.0}, ValueError, "between 0 and 1 for t_interval; got 1.0"),
        ([1.0, 2.0], {"confidence": 95}, ValueError, "between 0 and 1 for t_interval; got 95"),
        ([1.0, 2.0], {"confidence": "95%"}, TypeError, "confidence must be a number .*'95%'"),
        ([1.0, 2.0], {"confidence": float("nan")}, ValueError, "confidence must be finite"),
    ],
)
def test_what_has_no_students_interval_is_refused(values, options, error, message):
    with pytest.raises(error, match=message):
        t_interval(values, **options)
