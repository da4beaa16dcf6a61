"""How sure a mean is, and whether two differ: t-interval, bootstrap, paired permutation test."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from weiss import _check

Array = np.ndarray[Any, Any]
CELLS = 4_000_000
"""How many random numbers are drawn at a time: 32 MB, and as much for what they pick."""


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
    """What a comparison of two systems on the same queries says.

    Attributes:
        difference: mean of the first less mean of the second.
        low: lower end of the bootstrap interval of the difference.
        high: upper end of it.
        p_value: how often chance alone, swapping the systems query by query, gives a difference at
            least this large in size.
        confidence: of the interval.
    """

    difference: float
    low: float
    high: float
    p_value: float
    confidence: float


def bootstrap_interval(
    values: Array, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile interval of the mean by resampling the values with replacement.

    Args:
        values: ``(N,)`` one value a query.
        confidence: between 0 and 1.
        resamples: how many resamples to draw.
        seed: of the random numbers; the same seed gives the same interval.

    Returns:
        The `Interval`.

    Example:
        >>> bootstrap_interval([0.0, 1.0, 1.0, 1.0], seed=1).mean
        0.75
    """
    values = _values("values", values, "bootstrap_interval")
    _check_confidence(confidence, "bootstrap_interval")
    _check.count("resamples", resamples, "bootstrap_interval")
    random = np.random.default_rng(seed)
    means = []
    for size in _chunks(resamples, len(values)):
        means.append(values[random.integers(len(values), size=(size, len(values)))].mean(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high), confidence)


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

    Returns:
        The `PairedTest`.
    """
    owner = "paired_test"
    first, second = _values("first", first, owner), _values("second", second, owner)
    if len(first) != len(second):
        raise ValueError(
            f"first and second must hold one value for each of the same queries for {owner}; "
            f"got {len(first)} and {len(second)}. Evaluate both systems on the same queries."
        )
    difference = first - second
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


def _check_confidence(confidence: float, owner: str) -> None:
    if not 0 < _check.number("confidence", confidence, owner) < 1:
        raise ValueError(f"confidence must lie between 0 and 1 for {owner}; got {confidence!r}.")


def t_interval(values: Array, *, confidence: float = 0.95) -> Interval:
    """Student's interval of a mean: for a few repetitions of an experiment, such as seeds.

    ``mean +- t_{n-1} s / sqrt(n)`` with the sample's standard deviation s.

    Args:
        values: ``(n,)`` one value a repetition, n at least two.
        confidence: between 0 and 1.

    Returns:
        The `Interval`.

    Example:
        >>> interval = t_interval([26.1, 26.5, 26.6])
        >>> round(interval.mean, 2), round(interval.low, 2), round(interval.high, 2)
        (26.4, 25.74, 27.06)
    """
    values = _values("values", values, "t_interval")
    _check_confidence(confidence, "t_interval")
    if len(values) < 2:
        raise ValueError(
            f"values must hold at least two repetitions for t_interval; got {len(values)}. Repeat "
            "the experiment with another seed."
        )
    mean, freedom = float(values.mean()), len(values) - 1
    half = _t_quantile((1 + confidence) / 2, freedom) * float(values.std(ddof=1))
    half /= math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, confidence)


def _t_quantile(probability: float, freedom: int) -> float:
    """Return where Student's distribution of whole degrees of freedom reaches a probability > 1/2.

    By bisection of its distribution function, which for whole degrees of freedom is a finite sum.
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, freedom: int) -> float:
    """Return P(T <= t) for t >= 0, by the series in the angle ``atan(t / sqrt(freedom))``."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    # P(|T| <= t): terms cos^k with coefficients (2 4 6 ..)/(3 5 7 ..) or (1 3 5 ..)/(2 4 6 ..).
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    within = math.sin(angle) * total
    if odd:
        within = (angle + within) * 2 / math.pi
    return (1 + within) / 2
