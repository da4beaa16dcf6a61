"""Intervals cover, tests are uniform under the null hypothesis, and both are repeatable."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from weiss.evaluation import statistics
from weiss.evaluation.statistics import (
    bootstrap_interval,
    holm,
    paired_t_test,
    paired_test,
    t_interval,
    wilcoxon_test,
)


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


CONFIDENCES = [0.001, 0.1, 0.5, 0.95, 0.999999]


@pytest.mark.parametrize("number", [2, 5, 32, 2000])
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


@pytest.mark.parametrize(("number", "scale"), [(2, 1.0), (3, 1e-9), (10, 1e6), (50, 1e-3)])
def test_students_paired_test_is_that_of_scipy(number, scale):
    random = np.random.default_rng(number)
    first = random.normal(0.3, 0.2, size=number)
    for shift in (0.0, 0.3, -2.0, 10.0):
        second = first + scale * random.normal(shift, 1.0, size=number)
        found = paired_t_test(first, second, confidence=0.9)
        expected = scipy.stats.ttest_rel(first, second)
        interval = expected.confidence_interval(0.9)
        assert found.t == pytest.approx(expected.statistic, rel=1e-10)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-8, abs=1e-10)
        assert found.low == pytest.approx(interval.low, rel=1e-10, abs=1e-10 * scale)
        assert found.high == pytest.approx(interval.high, rel=1e-10, abs=1e-10 * scale)
        assert found.difference == pytest.approx((first - second).mean(), rel=1e-12)
        assert (found.num_pairs, found.confidence) == (number, 0.9)


def test_a_p_value_of_a_millionth_of_a_millionth_is_right():
    second = np.array([0.2, 0.25, 0.3, 0.22, 0.27, 0.31, 0.29, 0.24])
    first = second + 0.5 + 1e-3 * np.arange(8)
    expected = scipy.stats.ttest_rel(first, second).pvalue
    assert 0 < expected < 1e-12
    assert paired_t_test(first, second).p_value == pytest.approx(expected, rel=1e-6)


def test_swapping_the_systems_turns_the_difference_round():
    first, second = [26.1, 26.5, 26.6, 26.0], [25.9, 26.6, 26.1, 25.2]
    one, other = paired_t_test(first, second), paired_t_test(second, first)
    assert (other.difference, other.low, other.high) == (-one.difference, -one.high, -one.low)
    assert (other.t, other.p_value) == (-one.t, one.p_value)
    assert wilcoxon_test(first, second) == wilcoxon_test(second, first)


def test_repetitions_and_differences_that_are_all_the_same_leave_no_doubt():
    found = t_interval([26.5] * 4)
    assert (found.mean, found.low, found.high) == (26.5, 26.5, 26.5)
    # 0.3 - 0.2 and 0.8 - 0.7 are not the same number, but both are a tenth.
    for first, second in [([0.5, 0.75], [0.25, 0.5]), ([0.3, 0.8, 0.1], [0.2, 0.7, 0.0])]:
        found = paired_t_test(first, second)
        assert found.low == found.high == found.difference > 0
        assert (found.t, found.p_value) == (math.inf, 0.0)
        assert paired_t_test(second, first).t == -math.inf


def test_systems_that_do_not_differ_have_a_p_value_of_one():
    for first, second in [([0.5, 0.7, 0.1], [0.5, 0.7, 0.1]), ([0.1 + 0.2] * 2, [0.3] * 2)]:
        assert (paired_t_test(first, second).t, paired_t_test(first, second).p_value) == (0.0, 1.0)
        assert wilcoxon_test(first, second) == 1.0


@pytest.mark.parametrize("number", [1, 2, 7, 15, 50])
def test_wilcoxons_p_value_is_that_of_scipy_where_nothing_ties(number):
    random = np.random.default_rng(number)
    for shift in (0.0, 0.5, 2.0):
        first, second = random.normal(size=number), random.normal(shift, 1.0, size=number)
        expected = scipy.stats.wilcoxon(first, second, method="exact").pvalue
        assert wilcoxon_test(first, second) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_wilcoxons_p_value_is_that_of_all_signs_where_ranks_tie(seed):
    random = np.random.default_rng(seed)
    differences = random.integers(-3, 4, size=9).tolist()
    left = [d for d in differences if d != 0]

    def middle_rank(size):
        below = sum(abs(d) < size for d in left)
        return below + (sum(abs(d) == size for d in left) + 1) / 2

    ranks = [middle_rank(abs(d)) for d in left]
    seen = sum(rank if d > 0 else -rank for rank, d in zip(ranks, left, strict=True))
    at_least = [
        abs(sum(s * r for s, r in zip(signs, ranks, strict=True))) >= abs(seen)
        for signs in itertools.product((-1, 1), repeat=len(left))
    ]
    assert wilcoxon_test(differences, [0.0] * 9) == pytest.approx(np.mean(at_least), rel=1e-12)


def test_scipys_exact_law_ignores_ties():
    differences = [-2, -1, -2, -1, 2, 1, -3]
    found = scipy.stats.wilcoxon(differences, method="exact").pvalue
    assert found != pytest.approx(wilcoxon_test(differences, [0.0] * 7), rel=0.05)


def test_rounding_does_not_part_what_ties():
    second = np.array([0.1, 0.2, 0.3, 0.6, 0.7])
    tenths = [1, 1, -1, 1, 2]
    first = second + 0.1 * np.array(tenths)
    assert len(set(abs(first - second))) > 2  # a tenth is not always the same tenth
    assert wilcoxon_test(first, second) == wilcoxon_test(tenths, [0] * 5)


def test_wilcoxons_law_of_many_pairs_is_scipys_normal_one():
    random = np.random.default_rng(1)
    first, second = random.normal(size=2000).round(1), random.normal(0.1, 1.0, 2000).round(1)
    # Whole tenths, so that scipy sees the ties that rounding would part.
    first, second = (10 * first).round(), (10 * second).round()
    expected = scipy.stats.wilcoxon(first, second, method="asymptotic", correction=True).pvalue
    assert wilcoxon_test(first, second) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 4, 7])
def test_holms_correction_is_its_definition(seed):
    p_values = np.random.default_rng(seed).uniform(size=seed).round(1 + seed % 2) ** 2
    expected = []
    for own in p_values:
        # The largest of (how many are not smaller) x p over the p-values up to this one.
        steps = [0.0]
        for step, p in enumerate(sorted(p_values)):
            if p <= own:
                steps.append((len(p_values) - step) * p)
        expected.append(min(1.0, max(steps)))
    assert holm(p_values.tolist()) == pytest.approx(expected, rel=1e-14)


VALUES = "must be one value for each query or repetition"
REFUSED = [
    (bootstrap_interval, [[]], {}, VALUES),
    (bootstrap_interval, [[[1.0]]], {}, VALUES),
    (bootstrap_interval, [[math.nan]], {}, "must be finite"),
    (bootstrap_interval, [[1.0]], {"confidence": 95}, "between 0 and 1"),
    (bootstrap_interval, [[1.0]], {"resamples": 0}, "resamples must be at least 1"),
    (paired_test, [[1.0, 2.0], [1.0, 2.0, 3.0]], {}, "same queries .* got 2 and 3. Evaluate both"),
    (t_interval, [[]], {}, f"{VALUES}.* for t_interval"),
    (t_interval, [[[1.0, 2.0]]], {}, r"for t_interval; got \(1, 2\)"),
    (t_interval, [[1.0]], {}, "values must hold at least two repetitions .*; got 1. Repeat"),
    (t_interval, [[1.0, math.nan]], {}, "values must be finite for t_interval"),
    (t_interval, [[1.0, 2.0]], {"confidence": 0}, "between 0 and 1 for t_interval; got 0"),
    (t_interval, [[1.0, 2.0]], {"confidence": 1.0}, "between 0 and 1 for t_interval; got 1.0"),
    (t_interval, [[1.0, 2.0]], {"confidence": "95%"}, "confidence must be a number .*'95%'"),
    (t_interval, [[1.0, 2.0]], {"confidence": math.nan}, "confidence must be finite"),
    (paired_t_test, [[1.0], [2.0]], {}, "at least two repetitions for paired_t_test; got 1. Rep"),
    (paired_t_test, [[1.0, 2.0], [1.0]], {}, "same repetitions .* got 2 and 1. Repeat both"),
    (paired_t_test, [[1.0], [2.0]], {"confidence": 95}, "between 0 and 1 for paired_t_test"),
    (wilcoxon_test, [[1.0, math.nan], [1.0, 2.0]], {}, "first must be finite"),
    (wilcoxon_test, [[], []], {}, VALUES),
    (holm, [[0.1, 1.2]], {}, r"p_values must lie in \[0, 1\] for holm; got 1.2"),
    (holm, [[math.nan]], {}, "p_values must be finite for holm"),
    (holm, [["0.1"]], {}, "p_values must be a number for holm"),
]


@pytest.mark.parametrize(("call", "arguments", "options", "message"), REFUSED)
def test_what_cannot_be_computed_is_refused(call, arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(*arguments, **options)
