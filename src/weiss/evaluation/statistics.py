"""Confidence intervals of means, and tests whether two means differ.

Many queries, one experiment: `bootstrap_interval`, `paired_test` (permutations); where queries of
one class are not independent, `group_interval`; for a share of few groups, which may be 0,
`independent_count` and `share_interval`. A few repetitions of an experiment, such as seeds:
`t_interval`, `paired_t_test`, `wilcoxon_test`. Many comparisons at once: `holm`. A share with as
many digits as its interval supports: `percent`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array

CELLS = 4_000_000
"""How many random numbers are drawn at a time: 32 MB."""
FEW_GROUPS = 10
"""With fewer groups nothing tells how alike the values of a group are: each counts as one value."""
MOST_EXACT = 500
"""Up to so many pairs `wilcoxon_test` counts all signs; beyond, it uses the normal law."""


@dataclass(frozen=True)
class Interval:
    """A mean and the interval around it.

    Attributes:
        mean: of the values.
        low: lower end.
        high: upper end.
        confidence: share of repetitions of the experiment whose interval would hold the truth.
    """

    mean: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class PairedTest:
    """The comparison of two systems on the same queries.

    Attributes:
        difference: mean of the first less mean of the second.
        low: lower end of the interval of the difference, by the bootstrap.
        high: upper end of it.
        p_value: how often swapping the systems at random, query by query, gives a difference at
            least this large.
        confidence: of the interval.
    """

    difference: float
    low: float
    high: float
    p_value: float
    confidence: float


@dataclass(frozen=True)
class PairedTTest(PairedTest):
    """Student's test, and interval, of two systems that were repeated with the same seeds.

    Attributes:
        t: the difference over its standard error; infinite where every pair differs the same. The
            p-value is how often normal differences around zero give a t at least this large.
        num_pairs: n.
    """

    t: float
    num_pairs: int


def bootstrap_interval(
    values: Array, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile interval of the mean by resampling the values with replacement.

    Args:
        values: ``(N,)`` one value a query.
        confidence: between 0 and 1.
        resamples: how many resamples to draw.
        seed: of the random numbers; the same seed gives the same interval.

    Example:
        >>> bootstrap_interval([0.0, 1.0, 1.0, 1.0], seed=1).mean
        0.75
    """
    values = _values("values", values, "bootstrap_interval")
    _check_confidence(confidence, "bootstrap_interval")
    checks.count("resamples", resamples, "bootstrap_interval")
    random = np.random.default_rng(seed)
    means = []
    for size in _chunks(resamples, len(values)):
        means.append(values[random.integers(len(values), size=(size, len(values)))].mean(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high), confidence)


def group_interval(
    sums: Array, counts: Array, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile interval of a mean by resampling whole groups of values with replacement.

    ``mean = sum_g S_g / sum_g n_g`` over the drawn groups. Values of one group, such as the queries
    of a class, need not be independent of each other; groups must be.

    Args:
        sums: ``(G,)`` sum of the values of each group.
        counts: ``(G,)`` number of values of each group, at least 1.
        confidence: between 0 and 1.
        resamples: how many resamples to draw.
        seed: of the random numbers; the same seed gives the same interval.

    Example:
        >>> group_interval([2.0, 0.0], [2, 2]).mean
        0.5
    """
    sums = _values("sums", sums, "group_interval")
    counts = _values("counts", counts, "group_interval")
    if len(sums) != len(counts) or counts.min() < 1:
        raise ValueError(
            "counts must be at least 1, and as many as sums, for group_interval; got "
            f"{len(counts)} for {len(sums)} sums, the least {counts.min():g}."
        )
    _check_confidence(confidence, "group_interval")
    checks.count("resamples", resamples, "group_interval")
    random = np.random.default_rng(seed)
    means = []
    for size in _chunks(resamples, len(sums)):
        drawn = random.integers(len(sums), size=(size, len(sums)))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high), confidence)


def independent_count(values: Array, groups: Array) -> float:
    """Return how many independent values tell as much of a mean as these, which come in groups.

    ``N / (1 + (n - 1) r)`` for N values in groups of n, with the intraclass correlation r of the
    one-way analysis of variance: N where groups do not matter, the number of groups where all
    values of a group are the same. With fewer than `FEW_GROUPS` groups it is their number.

    Args:
        values: ``(N,)`` finite.
        groups: ``(N,)`` int64, the group of each value.

    Example:
        >>> independent_count(np.repeat(np.arange(12.0), 5), np.repeat(np.arange(12), 5))
        12.0
    """
    values = _values("values", values, "independent_count")
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    num, num_groups = len(values), len(sizes)
    if num_groups < FEW_GROUPS or num == num_groups:
        return float(num_groups)
    means = np.bincount(group, values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (num_groups - 1)
    within = float(((values - means[group]) ** 2).sum()) / (num - num_groups)
    typical = float(sizes @ sizes) / num  # the size of the group of a random value
    usual = (num - typical) / (num_groups - 1)
    spread = between + (usual - 1) * within
    correlation = min(max((between - within) / spread, 0.0), 1.0) if spread > 0 else 1.0
    return num / (1 + (typical - 1) * correlation)


def share_interval(share: float, count: float, *, confidence: float = 0.95) -> Interval:
    """Return the interval of a share by Clopper and Pearson; never empty, also for a share of 0.

    Args:
        share: between 0 and 1.
        count: of independent values that it is a share of, perhaps `independent_count`.
        confidence: between 0 and 1.

    Example:
        >>> found = share_interval(0.0, 6)
        >>> round(found.low, 2), round(found.high, 2)
        (0.0, 0.46)
    """
    from scipy.special import betaincinv

    _check_confidence(confidence, "share_interval")
    hits, tail = share * count, (1 - confidence) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return Interval(share, low, high, confidence)


def percent(share: float, ends: Sequence[float] | None = None) -> str:
    """Return a share in per cent, with no more digits than its interval supports.

    The last digit is worth at least a tenth of the interval; without one there are none.

    Example:
        >>> percent(0.1612, (0.06, 0.38)), percent(0.1612, (0.158, 0.164)), percent(0.1612)
        ('16 %', '16.1 %', '16 %')
    """
    width = 100 * (ends[1] - ends[0]) if ends is not None else 100.0
    digits = min(max(math.floor(1 - math.log10(width)), 0), 2) if width > 0 else 2
    return f"{100 * share:.{digits}f} %"


def paired_test(
    first: Array,
    second: Array,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedTest:
    """Compare two systems on the same queries by a sign-flip permutation test.

    If the systems were the same, swapping their values on any query would change nothing. The test
    swaps at random and counts how often the difference is as large as the one seen; the one seen
    counts too, so that the p-value is never 0.

    Args:
        first: ``(N,)`` values of the first system, one a query.
        second: ``(N,)`` values of the second system on the same queries, in the same order.
        confidence: of the bootstrap interval of the difference.
        resamples: how many permutations, and how many bootstrap resamples.
        seed: of the random numbers.
    """
    remedy = "Evaluate both systems on the same queries."
    difference, _ = _differences(first, second, "paired_test", "queries", remedy)
    interval = bootstrap_interval(difference, confidence=confidence, resamples=resamples, seed=seed)
    random = np.random.default_rng(seed)
    observed = abs(difference.sum())
    at_least = 1
    for size in _chunks(resamples, len(difference)):
        signs = 2.0 * random.integers(2, size=(size, len(difference)), dtype=np.int8) - 1.0
        # A rounding error must not make the observed difference larger than itself.
        at_least += int((np.abs(signs @ difference) >= observed * (1 - 1e-12)).sum())
    return PairedTest(
        interval.mean, interval.low, interval.high, at_least / (resamples + 1), confidence
    )


def _chunks(number: int, width: int) -> list[int]:
    """Split a number of resamples so that each part needs a bounded amount of memory."""
    most = max(CELLS // width, 1)
    return [most] * (number // most) + ([number % most] if number % most else [])


def _values(name: str, given: Any, owner: str) -> Array:
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"{name} must be one value for each query or repetition, shape (N,), for {owner}; got "
            f"{values.shape}."
        )
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite for {owner}; got NaN or infinity.")
    return values


def _check_repeated(name: str, values: Array, owner: str) -> None:
    if len(values) < 2:
        raise ValueError(
            f"{name} must hold at least two repetitions for {owner}; got {len(values)}. Repeat the "
            "experiment with another seed."
        )


def _check_confidence(confidence: float, owner: str) -> None:
    if not 0 < checks.number("confidence", confidence, owner) < 1:
        raise ValueError(f"confidence must lie between 0 and 1 for {owner}; got {confidence!r}.")


def t_interval(values: Array, *, confidence: float = 0.95) -> Interval:
    """Student's interval of a mean: for a few repetitions of an experiment, such as seeds.

    ``mean +- t_{n-1} s / sqrt(n)`` with the sample's standard deviation s.

    Args:
        values: ``(n,)`` one value a repetition, n at least two.
        confidence: between 0 and 1.

    Example:
        >>> interval = t_interval([26.1, 26.5, 26.6])
        >>> round(interval.mean, 2), round(interval.low, 2), round(interval.high, 2)
        (26.4, 25.74, 27.06)
    """
    from scipy.special import stdtrit

    values = _values("values", values, "t_interval")
    _check_confidence(confidence, "t_interval")
    _check_repeated("values", values, "t_interval")
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    mean = float(values.mean())
    return Interval(mean, mean - half, mean + half, confidence)


def paired_t_test(first: Array, second: Array, *, confidence: float = 0.95) -> PairedTTest:
    """Compare two systems over repetitions that share their seeds, by Student's paired test.

    Differences that are the same but for the rounding of the values count as the same: then the
    interval is a point, and the p-value is 0, or 1 where the systems do not differ at all.

    Args:
        first: ``(n,)`` values of the first system, one a repetition, n at least two.
        second: ``(n,)`` values of the second, of the same repetitions in the same order.
        confidence: of the interval of the difference.

    Example:
        >>> test = paired_t_test([26.1, 26.5, 26.6], [25.0, 25.6, 25.2])
        >>> round(test.difference, 2), round(test.p_value, 3)
        (1.13, 0.016)
    """
    from scipy.special import stdtr

    owner = "paired_t_test"
    _check_confidence(confidence, owner)
    differences, rounding = _differences(first, second, owner)
    _check_repeated("first and second", differences, owner)
    number = len(differences)
    mean = float(differences.mean())
    if np.ptp(differences) <= rounding:
        differs = abs(mean) > rounding
        t, p_value = (math.copysign(math.inf, mean), 0.0) if differs else (0.0, 1.0)
        return PairedTTest(mean, mean, mean, p_value, confidence, t, number)
    interval = t_interval(differences, confidence=confidence)
    t = mean / float(differences.std(ddof=1)) * math.sqrt(number)
    p_value = 2 * float(stdtr(number - 1, -abs(t)))
    return PairedTTest(mean, interval.low, interval.high, p_value, confidence, t, number)


def wilcoxon_test(first: Array, second: Array) -> float:
    """Compare two systems over the same repetitions by Wilcoxon's signed ranks, two-sided.

    Pairs without a difference are dropped, equal sizes share the mean of their ranks, and all
    ``2^n`` signs of these ranks are counted; beyond `MOST_EXACT` pairs the rank sum has the normal
    law of the same mean and variance, corrected for continuity. Values that differ by no more than
    their rounding are equal.

    Args:
        first: ``(n,)`` values of the first system, one a repetition.
        second: ``(n,)`` values of the second, of the same repetitions in the same order.

    Returns:
        The p-value; 1.0 where no pair differs. With n pairs it cannot be below ``2^(1 - n)``.

    Example:
        >>> wilcoxon_test([26.1, 26.5, 26.6], [25.0, 25.6, 25.2])
        0.25
    """
    differences, rounding = _differences(first, second, "wilcoxon_test")
    differences = differences[np.abs(differences) > rounding]
    number = len(differences)
    if not number:
        return 1.0
    # Not scipy.stats.wilcoxon: its exact law ignores ties (tests/evaluation/test_statistics.py).
    differences = differences[np.argsort(np.abs(differences), kind="stable")]
    sizes = np.abs(differences)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(sizes) > rounding]))
    counts = np.diff(np.append(starts, number))
    # Twice the mean rank of each tie is whole: first rank + last rank.
    ranks = np.repeat(2 * starts + counts + 1, counts)
    positive, total = int(ranks[differences > 0].sum()), int(ranks.sum())
    larger = max(positive, total - positive)
    if number > MOST_EXACT:
        deviation = math.sqrt(float((ranks.astype(np.float64) ** 2).sum())) / 2
        beyond = max(larger - total / 2 - 1, 0.0)  # half a rank, doubled
        return math.erfc(beyond / deviation / math.sqrt(2))
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    for rank in ranks.tolist():
        halved = chances / 2
        chances = halved.copy()
        chances[rank:] += halved[:-rank]
    return min(1.0, 2 * float(chances[larger:].sum()))


def _differences(
    first: Any,
    second: Any,
    owner: str,
    what: str = "repetitions",
    remedy: str = "Repeat both systems with the same seeds.",
) -> tuple[Array, float]:
    """Return first less second, and how much of a difference may be rounding."""
    first, second = _values("first", first, owner), _values("second", second, owner)
    if len(first) != len(second):
        raise ValueError(
            f"first and second must hold one value for each of the same {what} for {owner}; "
            f"got {len(first)} and {len(second)}. {remedy}"
        )
    # Each difference carries the last bit of either value and of its own subtraction.
    rounding = 4 * float(np.finfo(np.float64).eps * max(abs(first).max(), abs(second).max()))
    return first - second, rounding


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, by Holm's step-down method.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none may be below an earlier
    one. The chance that any test below a level errs is then at most that level, also for tests
    that depend on each other.

    Args:
        p_values: of all tests of a comparison, in any order; none gives none.

    Returns:
        The corrected p-values in the same order, at most 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    for given in p_values:
        if not 0 <= checks.number("p_values", given, "holm") <= 1:
            raise ValueError(
                f"p_values must lie in [0, 1] for holm; got {given!r}. Pass what a test returned."
            )
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * float(p_values[index])))
        corrected[index] = largest
    return corrected
