"""One spin in a field: the functions that all of the magnet is made of.

A spin is a unit vector of n components. In a field of length x (over the temperature) its
distribution is ``e^{x cos(theta)}`` on the sphere, and

    z_n(x) = int dS e^{x S_1} = (2 pi)^{n/2} x^{-nu} I_nu(x),      nu = n/2 - 1
    A_n(x) = E[S_1] = d log z_n / dx = I_{nu+1}(x) / I_nu(x)

with modified Bessel functions: ``tanh x`` for n = 1 (Ising), ``I_1 / I_0`` for n = 2 (XY),
``coth x - 1/x`` for n = 3 (Heisenberg, Langevin's function). One way serves every n and x: go up to
an order where Debye's expansion is good to the last digits, and come down by the recurrence.
"""

import math
from functools import cache

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array

MOST_COMPONENTS = 1000
"""The most components of a spin that have been tried."""
HIGH_ORDER = 40.0
"""From this order on the first terms of Debye's expansion are all that double precision holds."""
TERMS = 9
"""How many of them are taken."""
SMALL = 4.0
"""Up to this x, or 2 sqrt(n), the logarithm of the partition function is a power series."""


def components_of(given: object, owner: str) -> int:
    """Return how many components a spin has; refuse what is no such number."""
    n = checks.count("n", given, owner)
    if n > MOST_COMPONENTS:
        raise ValueError(
            f"n must be at most {MOST_COMPONENTS} for {owner}; got {n}. "
            "Beyond it nobody has looked whether the digits are right."
        )
    return n


def log_area(n: int) -> float:
    """Return the logarithm of the area of the sphere of spins, ``int dS``: 2, 2 pi, 4 pi, ..."""
    return math.log(2.0) + 0.5 * n * math.log(math.pi) - math.lgamma(n / 2)


def log_partition(n: int, x: Array | float) -> Array:
    """Return ``log(z_n(x) / z_n(0))``: even, zero at zero, ``x^2 / 2n`` nearby, near x far out.

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
    x = np.abs(np.asarray(x, dtype=np.float64))
    return log_partition_less(components_of(n, "log_partition"), x, 0.0)


def log_partition_less(n: int, x: Array, share: float) -> Array:
    """Return ``log(z_n(x) / z_n(0)) - share x``, share 0 or 1, to its own digits, for x >= 0.

    Far out the logarithm is nearly x: their difference, about ``-(n - 1)/2 log x``, would be lost.
    """
    small = max(SMALL, 2.0 * math.sqrt(n))
    near = np.minimum(x, small)
    term, total = np.ones_like(x), np.zeros_like(x)
    for k in range(1, 40):  # z / z(0) = sum_k (x^2/4)^k / (k! (n/2) (n/2 + 1) ...)
        term = term * near**2 / (4.0 * k * (n / 2 + k - 1))
        total = total + term
    far = np.maximum(x, small)
    beyond = math.lgamma(n / 2) + (n / 2 - 1) * np.log(2.0 / far) + _descend(n, far)[0]
    beyond = (1.0 - share) * far + beyond
    found: Array = np.where(x <= small, np.log1p(total) - share * near, beyond)
    return found


def mean_spin(n: int, x: Array | float) -> Array:
    """Return ``A_n(x)``, the mean of a spin along its field: 0 at zero, 1 far out.

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
    free = x * mean_over_field(components_of(n, "mean_spin"), x)
    found: Array = np.clip(free, -1.0, 1.0)  # far out it is 1 but for rounding, which may go beyond
    return found


def mean_over_field(n: int, x: Array | float) -> Array:
    """Return ``A_n(x) / x``, which is ``1/n`` at zero, and even."""
    x = np.abs(np.asarray(x, dtype=np.float64))
    return 1.0 / (n + x * _descend(n + 2, x)[1])


def mean_slope(n: int, x: Array | float) -> Array:
    """Return ``dA_n/dx = 1 - (n - 1) A_n / x - A_n^2``, the variance of a spin along its field.

    Far out it is ``(n - 1) / 2 x^2``, a difference of numbers near 1 that would be rounding. So it
    comes down the recurrence itself: the slope of ``A_n = x / (n + x A_{n+2})`` is
    ``(n - x^2 A'_{n+2}) (A_n / x)^2``, and all of the way keeps eleven digits.

    Args:
        n: components of a spin.
        x: field over temperature, any shape.

    Example:
        >>> from weiss.magnet import mean_slope
        >>> bool(abs(mean_slope(3, 1e9) / 1e-18 - 1) < 1e-12)
        True
    """
    n, x = components_of(n, "mean_slope"), np.abs(np.asarray(x, dtype=np.float64))
    if n == 1:  # the one n where all of it cancels: 1 / cosh^2
        shrunk = np.exp(-2.0 * x)
        return np.asarray(4.0 * shrunk / (1.0 + shrunk) ** 2)
    found: Array = (n - _scaled_slope(n + 2, x)) * mean_over_field(n, x) ** 2
    return found


def spin_entropy(n: int, x: Array) -> Array:
    """Return ``log z_n(x) - x A_n(x)``, the entropy of a spin in a field, for x >= 0.

    Far out both terms are nearly x, so x is taken out of each. What is left of the second is
    ``x (1 - A_n) = (x A_n' + (n - 1) A_n) / (1 + A_n)``, by the equation of `mean_slope`: a sum of
    what is not negative.
    """
    if n == 1:  # closed forms, for what is left is exponentially small
        shrunk = np.exp(-2.0 * x)
        return np.asarray(np.log1p(shrunk) + 2.0 * x * shrunk / (1.0 + shrunk))
    mean = mean_spin(n, x)
    lacking = (x * mean_slope(n, x) + (n - 1) * mean) / (1.0 + mean)
    found: Array = log_partition_less(n, x, 1.0) + lacking + log_area(n)
    return found


def _descend(n: int, x: Array) -> tuple[Array, Array]:
    """Return ``log I_nu(x) - x``, for x above zero, and ``A_n(x)``."""
    nu, inside = n / 2 - 1, np.maximum(x, 1e-150)
    top = _top_order(nu)
    reach, rest = _log_bessel(top, inside)
    ratio = _top_ratio(top, inside)
    log_ratios = np.zeros_like(x)
    for order in np.arange(top - 1, nu - 0.5, -1):
        ratio = inside / (2.0 * order + 2.0 + inside * ratio)
        log_ratios = log_ratios + np.log(ratio)
    return top * (top / (reach + inside)) + (rest - log_ratios), ratio


def _scaled_slope(n: int, x: Array) -> Array:
    """Return ``x^2 dA_n/dx``: 0 at zero, ``(n - 1)/2`` far out."""
    nu, inside = n / 2 - 1, np.maximum(x, 1e-150)
    top = _top_order(nu)
    reach, ahead = np.hypot(top, inside), np.hypot(top + 1.0, inside)
    # x times the slope of the logarithm of the ratio: of both r, of both roots, of both sums.
    slope = (2.0 * top + 1.0) / (ahead + reach) + (top + 0.5) * (inside / reach / ahead) ** 2
    slope = slope + _series_slope(top + 1.0, inside) - _series_slope(top, inside)
    ratio = _top_ratio(top, inside)
    scaled: Array = inside * ratio * slope
    for order in np.arange(top - 1, nu - 0.5, -1):
        ratio = inside / (2.0 * order + 2.0 + inside * ratio)
        scaled = (2.0 * order + 2.0 - scaled) * ratio**2
    return scaled


def _top_order(nu: float) -> float:
    """Return the first order from which to come down to ``nu``."""
    return nu + max(math.ceil(HIGH_ORDER - nu), 0)


def _top_ratio(top: float, x: Array) -> Array:
    """Return ``I_{top+1}(x) / I_top(x)``."""
    # The logarithms are nearly x, their difference is nearly zero far out: not by subtraction.
    (reach, rest), (ahead, rest_ahead) = _log_bessel(top, x), _log_bessel(top + 1, x)
    found: Array = np.exp((2.0 * top + 1.0) / (ahead + reach) + rest_ahead - rest)
    return found


def _log_bessel(order: float, x: Array) -> tuple[Array, Array]:
    """Return ``log I_order(x)`` in two parts, by Debye's expansion: large orders, any x above zero.

    ``I_v(x) = e^{r} (x / (v + r))^v / sqrt(2 pi r) sum_k u_k(v / r) / v^k``, ``r = |(v, x)|``: the
    parts are r and the rest.
    """
    reach = np.hypot(order, x)
    series = np.polynomial.polynomial.polyval(order / reach, _debye_sum(order))
    rest = -order * np.arcsinh(order / x) - 0.5 * np.log(2.0 * math.pi * reach) + np.log(series)
    return reach, rest


def _series_slope(order: float, x: Array) -> Array:
    """Return x times the slope of the logarithm of the sum in Debye's expansion."""
    power, coefficients = np.polynomial.polynomial, _debye_sum(order)
    reach = np.hypot(order, x)
    p = order / reach
    bend = power.polyval(p, power.polyder(coefficients)) / power.polyval(p, coefficients)
    found: Array = -p * (x / reach) ** 2 * bend
    return found


@cache
def _debye_sum(order: float) -> Array:
    """Return coefficients of ``sum_k u_k(p) / order^k``, from low powers of p to high."""
    found: Array = np.zeros(1)
    for k, coefficients in enumerate(_debye_polynomials()):
        found = np.polynomial.polynomial.polyadd(found, coefficients / order**k)
    return found


@cache
def _debye_polynomials() -> tuple[Array, ...]:
    """Return coefficients of ``u_0 = 1`` and on, from low powers of p to high.

    ``u_{k+1}(p) = p^2 (1 - p^2) u_k'(p) / 2 + int_0^p (1 - 5 s^2) u_k(s) ds / 8``
    """
    power = np.polynomial.polynomial
    found: list[Array] = [np.array([1.0])]
    while len(found) < TERMS:
        last = found[-1]
        moved = power.polymul([0.0, 0.0, 0.5, 0.0, -0.5], power.polyder(last))
        gathered = power.polyint(power.polymul([1.0, 0.0, -5.0], last)) / 8.0
        found.append(power.polyadd(moved, gathered))
    return tuple(found)
