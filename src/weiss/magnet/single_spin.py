"""One spin in a field: the functions that all of the magnet is made of.

A spin is a unit vector of n components. In a field of length x (over the temperature) its
distribution is ``e^{x cos(theta)}`` on the sphere, and

    z_n(x) = int dS e^{x S_1} = (2 pi)^{n/2} x^{-nu} I_nu(x),      nu = n/2 - 1
    A_n(x) = E[S_1] = d log z_n / dx = I_{nu+1}(x) / I_nu(x)

with modified Bessel functions: ``tanh x`` for n = 1 (Ising), ``I_1 / I_0`` for n = 2 (XY),
``coth x - 1/x`` for n = 3 (Heisenberg, Langevin's function).

The Bessel functions are scipy's ``ive``, between two series. For small x the logarithm of z is a
small number, and ``ive`` underflows for large n. For large x differences such as 1 - A_n lose
their digits, and ``ive`` is nan above about 1e9; tests/magnet/test_magnet.py shows both.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array

MOST_COMPONENTS = 1000
"""The largest n that the tests cover."""
TERMS = 36
"""Terms of the series in 1/x."""
Function = Callable[[Array], Array]


def components_of(given: object, owner: str) -> int:
    """Return the number of components of a spin, checked."""
    n = checks.count("n", given, owner)
    if n > MOST_COMPONENTS:
        raise ValueError(
            f"n must be at most {MOST_COMPONENTS} for {owner}; got {n}. "
            "The digits have not been checked for larger n."
        )
    return n


def log_area(n: int) -> float:
    """Return the logarithm of the area of the sphere of spins, ``int dS``: 2, 2 pi, 4 pi, ..."""
    return math.log(2.0) + 0.5 * n * math.log(math.pi) - math.lgamma(n / 2)


def log_partition(n: int, x: Array | float) -> Array:
    """Return ``log(z_n(x) / z_n(0))``: even, ``x^2 / 2n`` near zero, about x for large x.

    Args:
        n: components of a spin.
        x: field over temperature, any shape.

    Returns:
        float64 of the same shape.

    Example:
        >>> import math
        >>> from weiss.magnet import log_partition
        >>> bool(abs(log_partition(1, 2.0) - math.log(math.cosh(2.0))) < 1e-14)
        True
    """
    return log_partition_less(components_of(n, "log_partition"), x, 0.0)


def log_partition_less(n: int, x: Array | float, share: float) -> Array:
    """Return ``log(z_n(x) / z_n(0)) - share |x|``, share 0 or 1.

    For large x the logarithm is about x: subtracting x afterwards would lose the digits.
    """
    from scipy import special

    def middle(x: Array) -> Array:
        power = math.lgamma(n / 2) + (n / 2 - 1) * np.log(2.0 / x)
        return np.asarray((1.0 - share) * x + power + np.log(special.ive(n / 2 - 1, x)))

    def far(x: Array) -> Array:
        a = _far_coefficients(n)
        rest = np.polynomial.polynomial.polyval(1.0 / x, [0.0, *(a[2:] / np.arange(1, TERMS - 1))])
        power = 0.5 * (n - 1) * np.log(2.0 * math.pi / x) - log_area(n)
        return np.asarray((1.0 - share) * x + power - rest)

    return _by_size(n, x, lambda x: np.log1p(_near_series(n, x)) - share * x, middle, far)


def mean_spin(n: int, x: Array | float) -> Array:
    """Return ``A_n(x)``, the mean of a spin along its field: 0 at zero, 1 for large x.

    Args:
        n: components of a spin.
        x: field over temperature, any shape; the mean has its sign.

    Example:
        >>> import math
        >>> from weiss.magnet import mean_spin
        >>> bool(abs(mean_spin(3, 2.0) - (1 / math.tanh(2.0) - 0.5)) < 1e-14)
        True
    """
    x = np.asarray(x, dtype=np.float64)
    mean = x * mean_over_field(components_of(n, "mean_spin"), x)
    found: Array = np.clip(mean, -1.0, 1.0)  # rounding may go beyond
    return found


def mean_over_field(n: int, x: Array | float) -> Array:
    """Return ``A_n(x) / x``, which is ``1/n`` at zero, and even."""
    from scipy import special

    def near(x: Array) -> Array:
        return (1.0 + _near_series(n + 2, x)) / (1.0 + _near_series(n, x)) / n

    def far(x: Array) -> Array:
        return np.polynomial.polynomial.polyval(1.0 / x, _far_coefficients(n)) / x

    return _by_size(
        n, x, near, lambda x: special.ive(n / 2, x) / special.ive(n / 2 - 1, x) / x, far
    )


def mean_slope(n: int, x: Array | float) -> Array:
    """Return ``dA_n/dx = 1 - (n - 1) A_n / x - A_n^2``, the variance of a spin along its field.

    Args:
        n: components of a spin.
        x: field over temperature, any shape.

    Example:
        >>> from weiss.magnet import mean_slope
        >>> bool(abs(mean_slope(3, 1e9) / 1e-18 - 1) < 1e-12)
        True
    """
    if components_of(n, "mean_slope") == 1:  # 1 / cosh^2: the terms above cancel for every x
        shrunk = np.exp(-2.0 * np.abs(np.asarray(x, dtype=np.float64)))
        return np.asarray(4.0 * shrunk / (1.0 + shrunk) ** 2)

    def difference(x: Array) -> Array:
        over = mean_over_field(n, x)
        return np.asarray(1.0 - (n - 1) * over - (x * over) ** 2)

    def far(x: Array) -> Array:
        slopes = -np.arange(TERMS) * _far_coefficients(n)
        return np.polynomial.polynomial.polyval(1.0 / x, slopes[1:]) / x / x

    return _by_size(n, x, difference, difference, far)


def spin_entropy(n: int, x: Array) -> Array:
    """Return ``log z_n(x) - x A_n(x)``, the entropy of a spin in a field, for x >= 0.

    For large x both terms are about x, so x is subtracted from each. The second leaves
    ``x (1 - A_n) = (x A_n' + (n - 1) A_n) / (1 + A_n)``, a sum of positive numbers.
    """
    if n == 1:  # closed forms, since the rest is exponentially small
        shrunk = np.exp(-2.0 * x)
        return np.asarray(np.log1p(shrunk) + 2.0 * x * shrunk / (1.0 + shrunk))
    mean = mean_spin(n, x)
    lacking = (x * mean_slope(n, x) + (n - 1) * mean) / (1.0 + mean)
    found: Array = log_partition_less(n, x, 1.0) + lacking + log_area(n)
    return found


def _by_size(n: int, x: Array | float, near: Function, middle: Function, far: Function) -> Array:
    """Apply one of three functions to each ``|x|``: small, middle or large."""
    size = np.abs(np.asarray(x, dtype=np.float64))
    parts = [size <= max(4.0, n / 6), size >= max(50.0, 1.5 * n)]
    found: Array = np.piecewise(size, parts, [near, far, middle])
    return found


def _near_series(n: int, x: Array) -> Array:
    """Return ``z_n(x) / z_n(0) - 1 = sum_k (x^2/4)^k / (k! (n/2) (n/2 + 1) ...)``, k from 1."""
    term, total, k = np.ones_like(x), np.zeros_like(x), 0
    while k == 0 or (term > 1e-17 * total).any():
        k += 1
        term = term * (x**2 / (4.0 * k * (n / 2 + k - 1)))
        total = total + term
    return total


@cache
def _far_coefficients(n: int) -> Array:
    """Return a of ``A_n(x) = sum_k a_k x^{-k}``; they follow from the equation of `mean_slope`."""
    a = np.zeros(TERMS)
    a[0] = 1.0
    for k in range(1, TERMS):
        a[k] = 0.5 * ((k - n) * a[k - 1] - a[1:k] @ a[k - 1 : 0 : -1])
    return a
