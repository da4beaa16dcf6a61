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
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
HIGH_ORDER = 40.0
"""From this order on the first terms of Debye's expansion are all that double precision holds."""
TERMS = 9
"""How many of them are taken."""
SMALL = 4.0
"""Up to this x, or 2 sqrt(n), the logarithm of the partition function is a power series."""


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
    small = max(SMALL, 2.0 * math.sqrt(n))
    near = np.minimum(x, small)
    term, total = np.ones_like(x), np.zeros_like(x)
    for k in range(1, 40):  # z / z(0) = sum_k (x^2/4)^k / (k! (n/2) (n/2 + 1) ...)
        term = term * near**2 / (4.0 * k * (n / 2 + k - 1))
        total = total + term
    far = np.maximum(x, small)
    beyond = math.lgamma(n / 2) + (n / 2 - 1) * np.log(2.0 / far) + _descend(n, far)[0]
    found: Array = np.where(x <= small, np.log1p(total), beyond)
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
    return x * mean_over_field(n, x)


def mean_over_field(n: int, x: Array | float) -> Array:
    """Return ``A_n(x) / x``, which is ``1/n`` at zero, and even."""
    x = np.abs(np.asarray(x, dtype=np.float64))
    return 1.0 / (n + x * _descend(n + 2, x)[1])


def mean_slope(n: int, x: Array | float) -> Array:
    """Return ``dA_n/dx = 1 - (n - 1) A_n / x - A_n^2``, the variance of a spin along its field."""
    over = mean_over_field(n, x)
    found: Array = np.maximum(1.0 - (n - 1) * over - (np.asarray(x) * over) ** 2, 0.0)
    return found


def _descend(n: int, x: Array) -> tuple[Array, Array]:
    """Return ``log I_nu(x)``, for x above zero, and ``A_n(x)``."""
    nu = n / 2 - 1
    steps = max(math.ceil(HIGH_ORDER - nu), 0)
    top = nu + steps
    inside = np.maximum(x, 1e-150)
    reach, rest = _log_bessel(top, inside)
    # The logarithms are nearly x, their difference is nearly zero far out: not by subtraction.
    ahead, rest_ahead = _log_bessel(top + 1, inside)
    ratio = np.exp((2.0 * top + 1.0) / (ahead + reach) + rest_ahead - rest)
    log_ratios = np.zeros_like(x)
    for order in nu + np.arange(steps - 1, -1, -1):
        ratio = inside / (2.0 * order + 2.0 + inside * ratio)
        log_ratios = log_ratios + np.log(ratio)
    return reach + (rest - log_ratios), ratio


def _log_bessel(order: float, x: Array) -> tuple[Array, Array]:
    """Return ``log I_order(x)`` in two parts, by Debye's expansion: large orders, any x above zero.

    ``I_v(x) = e^{r} (x / (v + r))^v / sqrt(2 pi r) sum_k u_k(v / r) / v^k``, ``r = |(v, x)|``: the
    parts are r and the rest.
    """
    reach = np.hypot(order, x)
    series = np.zeros_like(x)
    for k, coefficients in enumerate(_debye_polynomials()):
        series = series + np.polynomial.polynomial.polyval(order / reach, coefficients) / order**k
    rest = -order * np.arcsinh(order / x) - 0.5 * np.log(2.0 * math.pi * reach) + np.log(series)
    return reach, rest


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
