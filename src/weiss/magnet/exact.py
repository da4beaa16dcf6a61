"""A magnet of finitely many spins, without an approximation.

**Counting.** Ising's energy knows only how many spins point down: N + 1 terms with binomial
weights.

**One radial integral.** For any n, Hubbard's and Stratonovich's identity
``e^{a |R|^2 / 2} = (2 pi a)^{-n/2} int dy e^{-|y|^2 / 2a + y . R}`` with ``a = J/T`` sets the spins
free in a common field y that is Gaussian, and the angle of y can be integrated by hand:

    Z ~ e^{-b^2 / 2a} a^{-n/2} int_0^inf dr r^{n-1} e^{-r^2 / 2a} z_n(r)^N z_n(r b / a),    b = h/T

With ``r = J N M / T`` the integrand is ``e^{-N f(M, T) / T}``, f the mean-field `landscape`: mean
field theory takes the integral at its largest point. That is why it is exact for N to infinity.

Given y, spins are independent, so moments of their sum R follow without loss of digits. Only the
mean of ``|R|``, which no power of R gives, takes a second integral:
``E|R| = sqrt(2/pi) int_0^inf dt (1 - E[e^{-t^2 R^2 / 2}]) / t^2``, where the expectation is
``Z(a - t^2) / Z(a)``. A negative a is a Gaussian y along the imaginary axis.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from weiss import _check
from weiss.magnet.mean_field import Magnet, temperatures_of
from weiss.magnet.single_spin import (
    Array,
    log_area,
    log_partition,
    mean_over_field,
    mean_spin,
)

LOST = 5e-7
"""The variance of a length over its square below which it is lost to the rounding of the length."""
NODES = 16
"""Gauss points on each panel of an integral."""
WAVES = 192
"""Gauss points over a spin's component: good for wave numbers up to about as many."""
FURTHEST = 24.0
"""Where the integral over t goes on as a power law."""
WIDE = 40
"""How many panels there are up to there."""
TAIL = 12.0
"""Standard deviations of a Gaussian beyond which nothing is left of it."""


@dataclass(frozen=True)
class Moments:
    """Averages over the Gibbs distribution of N spins; R is their sum and ``M = R / N``.

    Attributes:
        length: ``E|M|``; nan for n > 1 in a field, where this file does not know it.
        square: ``E[M . M]``.
        along: ``E[M_1]``, along the field; zero without one.
        energy: ``E[H] / N``.
        free_energy: ``-T/N log Z``, with the measure ``prod_i dS_i``.
        susceptibility: ``dE[M_1]/dh = N (E[M_1^2] - E[M_1]^2) / T``.
        fluctuation: ``N Var|M| / T``, which peaks near the transition.
    """

    length: float
    square: float
    along: float
    energy: float
    free_energy: float
    susceptibility: float
    fluctuation: float


def exact(magnet: Magnet, temperature: float, num_spins: int) -> Moments:
    """Return the averages of a magnet of N spins, exact but for rounding and quadrature.

    Args:
        magnet: which; ``J = coupling / N``.
        temperature: T, above zero.
        num_spins: N.

    Returns:
        Counted for n = 1, integrated otherwise: ten digits and more, but six or seven of
        ``length``. ``fluctuation`` is a difference of such numbers; nan where nothing is left of
        it, far below the transition or for very many spins.

    Example:
        >>> from weiss.magnet import Magnet, exact
        >>> round(exact(Magnet(n=1), temperature=0.5, num_spins=1000).length, 3)
        0.957
    """
    T = float(temperatures_of(_check.number("temperature", temperature, "exact", above=0.0)))
    N = _check.count("num_spins", num_spins, "exact")
    return _counted(magnet, T, N) if magnet.n == 1 else integrated(magnet, T, N)


def _counted(magnet: Magnet, T: float, N: int) -> Moments:
    down = np.arange(N + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, N + 1)))])
    M = 1.0 - 2.0 * down / N
    log_weight = log_factorial[N] - log_factorial - log_factorial[::-1]
    log_weight += N / T * (0.5 * magnet.coupling * M**2 + magnet.field * M)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = weight.sum()
    weight /= total
    length, square, along = (float(weight @ value) for value in (np.abs(M), M**2, M))
    variance = float(weight @ (M - along) ** 2)
    return _moments(magnet, T, N, length, square, along, variance, top + math.log(total))


def integrated(magnet: Magnet, temperature: float, num_spins: int) -> Moments:
    """Return the averages by the radial integral, for any n; `exact` calls it for n above 1."""
    n, T, N = magnet.n, float(temperature), int(num_spins)
    a, b = magnet.coupling / (N * T), abs(magnet.field) / T
    r, log_weight = _radial(n, N, a, b)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    log_z = top + math.log(weight.sum()) + N * log_area(n)
    weight /= weight.sum()
    # Spins in the field r: mean, and mean square along it; the same of the field's own direction.
    mean, across = mean_spin(n, r), mean_over_field(n, r)
    cosine, off_axis = mean_spin(n, r * b / a), mean_over_field(n, r * b / a)
    cosine_square = 1.0 - (n - 1) * off_axis
    spin_square = cosine_square * (1.0 - (n - 1) * across) + (n - 1) * off_axis * across
    square = float(weight @ (1.0 + (N - 1) * mean**2)) / N
    along = float(weight @ (mean * cosine))
    second = float(weight @ (spin_square + (N - 1) * mean**2 * cosine_square)) / N
    length = math.nan if b else _mean_length(n, N, a)
    sign = 1.0 if magnet.field >= 0 else -1.0
    return _moments(magnet, T, N, length, square, sign * along, second - along**2, log_z)


def _moments(
    magnet: Magnet,
    T: float,
    N: int,
    length: float,
    square: float,
    along: float,
    variance: float,
    log_z: float,
) -> Moments:
    variance_of_length = square - length**2
    if magnet.n > 1 and variance_of_length < LOST * square:
        variance_of_length = math.nan
    return Moments(
        length=length,
        square=square,
        along=along,
        energy=-0.5 * magnet.coupling * square - magnet.field * along,
        free_energy=float(-T / N * log_z),
        susceptibility=N * variance / T,
        fluctuation=N * variance_of_length / T,
    )


def _radial(n: int, N: int, a: float, b: float) -> tuple[Array, Array]:
    """Return points r and logarithms of the weights whose sum is ``Z / area^N``, for a above 0."""
    # The exponent is at most -r^2/2a + (N + b/a) r, and nowhere narrower than the first term.
    width = math.sqrt(a)
    end = a * N + b + (TAIL + math.sqrt(n)) * width
    r, step = _panels(0.0, end, math.ceil(end / (2.0 * width)))
    log_weight = np.log(step) + (n - 1) * np.log(r) - (r * r + b * b) / (2.0 * a)
    log_weight += N * log_partition(n, r) + log_partition(n, r * b / a)
    return r, log_weight + _log_gauss(n, a)


def _log_gauss(n: int, a: Array | float) -> Array:
    """Return the logarithm of ``area / (2 pi a)^{n/2}``, a Gaussian's factor in radial form."""
    return log_area(n) - 0.5 * n * np.log(2.0 * math.pi * np.asarray(a))


def _mean_length(n: int, N: int, a: float) -> float:
    """Return ``E|M|`` without a field."""
    if N == 1:
        return 1.0
    if N == 2:  # |R| = 2 cos(angle / 2), of the angle between the two
        angle, weight = _panels(0.0, math.pi, 4 + math.ceil(math.sqrt(a)))
        weight = weight * np.sin(angle) ** (n - 2) * np.exp(a * (np.cos(angle) - 1.0))
        return float(weight @ np.cos(angle / 2.0) / weight.sum())
    # |R| lies between sqrt(N) and N. Around the inverse of either the integrand bends; from there
    # on it goes over to 1/t^2, and panels may be wider and wider.
    edges = np.concatenate([np.linspace(0.0, 2.0, 5) / N, np.geomspace(2.5 / N, FURTHEST, WIDE)])
    parts = [_panels(float(low), float(high), 1) for low, high in pairwise(edges)]
    t, step = (np.concatenate(each) for each in zip(*parts, strict=True))
    left = np.exp(_log_z(n, N, a - np.append(t, FURTHEST) ** 2) - _log_z(n, N, np.array([a])))
    total = float(step @ ((1.0 - left[:-1]) / t**2))
    # Beyond, where only the smallest |R| are left, what is left falls as t^-n.
    total += (1.0 - float(left[-1]) / (n + 1)) / FURTHEST
    return math.sqrt(2.0 / math.pi) * total / N


def _log_z(n: int, N: int, a: Array) -> Array:
    """Return ``log E_0[e^{a R^2 / 2}]`` over free spins, for each a ``(A,)``, of either sign."""
    found = 0.5 * N * a
    size = np.maximum(np.abs(a), 1e-300)
    for sign, integral in ((1.0, _log_z_positive), (-1.0, _log_z_negative)):
        # Numbers of about the same size share the points of their integrals.
        kinds = np.where((sign * a > 0) & (size * N > 1e-9), np.floor(np.log(size) / 1.4), np.inf)
        for kind in np.unique(kinds[np.isfinite(kinds)]):
            found[kinds == kind] = integral(n, N, size[kinds == kind])
    return found


def _log_z_positive(n: int, N: int, a: Array) -> Array:
    narrow, wide = math.sqrt(a.min()), math.sqrt(a.max())
    end = wide * (wide * N + TAIL + math.sqrt(n))
    r, step = _panels(0.0, end, math.ceil(end / (2.0 * narrow)))
    common = np.log(step) + (n - 1) * np.log(r) + N * log_partition(n, r)
    log_weight = common - r**2 / (2.0 * a[:, None])
    top = log_weight.max(axis=1)
    found: Array = top + np.log(np.exp(log_weight - top[:, None]).sum(axis=1)) + _log_gauss(n, a)
    return found


def _log_z_negative(n: int, N: int, a: Array) -> Array:
    """Return the same for minus a: the field is imaginary, and a free spin's factor a wave."""
    narrow, wide = math.sqrt(a.min()), math.sqrt(a.max())
    # |wave| is at most Gamma(n/2) 2^{n/2 - 1/2} / sqrt(pi) k^{(1-n)/2}; where its N-th power is
    # below rounding, the integral has ended.
    log_bound = math.lgamma(n / 2) + 0.5 * (n - 1) * math.log(2.0) - 0.5 * math.log(math.pi)
    log_end = 2.0 * (log_bound + 42.0 / N) / (n - 1)
    end = min((TAIL + math.sqrt(n)) * wide, math.exp(min(log_end, 50.0)), WAVES)
    width = 2.0 * min(narrow, 1.0, 2.0 * math.sqrt(n / N))
    k, step = _panels(0.0, end, math.ceil(end / width))
    c, weight = _cosines(n, 32 + math.ceil(end))
    wave = np.cos(np.outer(k, c)) @ weight
    common = np.log(step) + (n - 1) * np.log(k) + N * np.log(np.maximum(np.abs(wave), 1e-300))
    log_weight = common - k**2 / (2.0 * a[:, None])
    top = log_weight.max(axis=1)
    sums = np.exp(log_weight - top[:, None]) @ np.sign(wave) ** N
    found: Array = top + np.log(np.maximum(sums, 1e-300)) + _log_gauss(n, a)
    return found


def _panels(low: float, high: float, number: int) -> tuple[Array, Array]:
    """Return Gauss points and weights on as many equal panels."""
    point, weight = _gauss_legendre(NODES)
    half = 0.5 * (high - low) / number
    middles = low + half * (2.0 * np.arange(number) + 1.0)
    return (middles[:, None] + half * point).ravel(), np.tile(half * weight, number)


@cache
def _gauss_legendre(number: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(number)


@cache
def _cosines(n: int, number: int) -> tuple[Array, Array]:
    """Return Gauss points and weights for the component of a free spin along an axis.

    Its density is ``(1 - c^2)^{(n - 3) / 2}``; the points are eigenvalues of the matrix that
    multiplies its orthogonal polynomials (Gegenbauer's) by c.
    """
    k = np.arange(1, number, dtype=np.float64)
    order = n / 2 - 1
    with np.errstate(invalid="ignore"):
        beside = 0.5 * np.sqrt(k * (k + 2 * order - 1) / ((k + order) * (k + order - 1)))
    beside[0] = math.sqrt(1.0 / n)  # the variance of a component; 0/0 above for n = 2
    c, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return c, vectors[0] ** 2
