"""A magnet of finitely many spins, without an approximation.

**Counting.** Ising's energy knows only how many spins point down: N + 1 terms with binomial
weights.

**One radial integral.** For any n, Hubbard's and Stratonovich's identity
``e^{a |R|^2 / 2} = (2 pi a)^{-n/2} int dy e^{-|y|^2 / 2a + y . R}`` with ``a = J/T`` sets the spins
free in a common field y that is Gaussian, and the angle of y can be integrated by hand:

    Z ~ e^{-b^2 / 2a} a^{-n/2} int_0^inf dr r^{n-1} e^{-r^2 / 2a} z_n(r)^N z_n(r b / a),    b = h/T

Without a field (h = 0) the last factor is 1, and with ``r = J N M / T`` the integrand is
``M^{n-1} e^{-N f(M, T) / T}``, f the mean-field `landscape`: mean field theory takes the integral
at its largest point. That is why it is exact for N to infinity. In a field the same holds of the
vector ``(J N M + h) / T``, before the angle is integrated; of the radius alone it does not.

Given y, spins are independent, so moments of their sum R follow without loss of digits. Only the
mean of ``|R|``, which no power of R gives, takes a second integral:
``E|R| = sqrt(2/pi) int_0^inf dt (1 - E[e^{-t^2 R^2 / 2}]) / t^2``, where the expectation is
``Z(a - t^2) / Z(a)``. A negative a is a Gaussian y along the imaginary axis.

**Cold magnets.** Below the transition the energy of spins that all agree, ``J N^2/2 + N h``, is
taken out of every exponent before anything is added: what is left is small, however cold it is. In
``r^2`` the logarithm of the integrand is concave, so it has one hill, and only that is integrated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from weiss._base import checks
from weiss.magnet.mean_field import Magnet, magnet_of, temperatures_of
from weiss.magnet.single_spin import (
    Array,
    log_area,
    log_partition_less,
    mean_over_field,
    mean_slope,
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
DEPTH = 60.0
"""How far below its top, in logarithms, an integrand is still counted."""
LOOKS = 64
"""At how many places a hill is looked for at a time."""
LEAST = 1e-290
"""What stands for a radius of zero, which has no logarithm."""
COLDEST = 1e-100
"""The lowest temperature, in units of the coupling: far below, floating point has no numbers."""


@dataclass(frozen=True)
class Moments:
    """Averages over the Gibbs distribution of N spins; R is their sum and ``M = R / N``.

    Attributes:
        length: ``E|M|``; nan for n > 1 and N > 1 in a field, where this file does not know it.
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
        temperature: T, above zero, at least 1e-100 of the coupling. The time does not grow as it
            falls.
        num_spins: N.

    Returns:
        Counted for n = 1, integrated otherwise: ten digits and more, but six or seven of
        ``length``. ``fluctuation`` is a difference of such numbers; nan where rounding may have
        spoilt it, far below the transition or for very many spins.

    Example:
        >>> from weiss.magnet import Magnet, exact
        >>> round(exact(Magnet(n=1), temperature=0.5, num_spins=1000).length, 3)
        0.957
    """
    magnet_of(magnet, "exact")
    T = float(temperatures_of(checks.number("temperature", temperature, "exact", above=0.0)))
    if COLDEST * magnet.coupling > T:
        raise ValueError(
            f"temperature must be at least {COLDEST:g} of the coupling, which is "
            f"{magnet.coupling:g}, for exact; got {T:g}. All spins agree there: take "
            "solve(magnet, 0.0)."
        )
    N = checks.count("num_spins", num_spins, "exact")
    return _counted(magnet, T, N) if magnet.n == 1 else integrated(magnet, T, N)


def _counted(magnet: Magnet, T: float, N: int) -> Moments:
    down = np.arange(N + 1)
    against = down if magnet.field >= 0 else down[::-1]
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, N + 1)))])
    M = 1.0 - 2.0 * down / N
    log_weight = log_factorial[N] - log_factorial - log_factorial[::-1]
    disagreeing = 2.0 * magnet.coupling * down * ((N - down) / N)
    log_weight -= (disagreeing + 2.0 * abs(magnet.field) * against) / T
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = weight.sum()
    weight /= total
    length, square = (float(weight @ value) for value in (np.abs(M), M**2))
    along = float(weight @ M) if magnet.field else 0.0
    variances = [
        float(weight @ (value - mean) ** 2) for value, mean in ((M, along), (np.abs(M), length))
    ]
    return _moments(magnet, T, N, (length, square, along), variances, top + math.log(total))


def integrated(magnet: Magnet, temperature: float, num_spins: int) -> Moments:
    """Return the averages by the radial integral, for any n; `exact` calls it for n above 1."""
    n, T, N = magnet.n, float(temperature), int(num_spins)
    a, b = magnet.coupling / (N * T), abs(magnet.field) / T
    turning = abs(magnet.field) * N / magnet.coupling  # b / a
    r, log_weight = _radial(n, N, a, b, turning)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    log_z = top + math.log(weight.sum()) + N * log_area(n)
    weight /= weight.sum()
    # Spins in the field r: mean, and mean square across it; the same of the field's own direction.
    mean, across = mean_spin(n, r), mean_over_field(n, r)
    cosine, off_axis = mean_spin(n, r * turning), mean_over_field(n, r * turning)
    square = float(weight @ (1.0 + (N - 1) * mean**2)) / N
    along = float(weight @ (mean * cosine))
    # The variance in parts, none of them negative: of each spin in the field, of the direction of
    # the field, and of its length.
    upright = (1.0 - (n - 1) * off_axis) * mean_slope(n, r) + (n - 1) * off_axis * across
    parts = upright / N + mean**2 * mean_slope(n, r * turning) + (mean * cosine - along) ** 2
    length = math.nan if b and N > 1 else _mean_length(n, N, a)
    variance_of_length = square - length**2
    if variance_of_length < LOST * square:
        variance_of_length = math.nan
    variances = [float(weight @ parts), variance_of_length]
    sign = 1.0 if magnet.field >= 0 else -1.0
    return _moments(magnet, T, N, (length, square, sign * along), variances, log_z)


def _moments(
    magnet: Magnet,
    T: float,
    N: int,
    means: tuple[float, float, float],
    variances: list[float],
    log_z: float,
) -> Moments:
    """Return what follows from ``E|M|, E[M . M], E[M_1]`` and the variances of ``M_1`` and ``|M|``.

    ``log_z`` is without the energy of spins that all agree.
    """
    length, square, along = means
    variance, variance_of_length = variances
    if N == 1:
        length, square, variance_of_length = 1.0, 1.0, 0.0
    # Rounding and quadrature may go beyond what a mean can be.
    square, along = min(square, 1.0), min(max(along, -1.0), 1.0)
    length = float(np.minimum(length, math.sqrt(square)))  # nan stays
    return Moments(
        length=length,
        square=square,
        along=along,
        energy=-0.5 * magnet.coupling * square - magnet.field * along,
        free_energy=float(-0.5 * magnet.coupling - abs(magnet.field) - T / N * log_z),
        susceptibility=N * (variance / T),
        fluctuation=N * (variance_of_length / T),
    )


def _radial(n: int, N: int, a: float, b: float, turning: float) -> tuple[Array, Array]:
    """Return points r and logarithms of weights, whose sum is ``Z / area^N e^{-a N^2/2 - N b}``."""
    # -(r^2 + b^2)/2a + N r + b r/a is a Gaussian around the centre. To it spins and direction add
    # what they have less than N r and b r/a. Points are kept as distances from the centre, which
    # cold magnets stay close to. Hot ones without a field stay close to zero.
    share = _share(n, N, a) if b == 0.0 else 1.0
    centre, width = share * a * N + b, math.sqrt(a)

    def log_height(far: Array) -> Array:
        r = np.maximum(centre + far, LEAST)
        height = (n - 1) * np.log(r) - 0.5 * (far / width) ** 2 - 0.5 * (1.0 - share) * a * N * N
        height += N * log_partition_less(n, r, share)
        found: Array = height + log_partition_less(n, r * turning, share)
        return found

    end = a * N + b + (TAIL + math.sqrt(n)) * width
    low, high = _hill(log_height, -centre, end - centre, width)
    far, step = _panels(low, high, math.ceil((high - low) / (2.0 * width)))
    return np.maximum(centre + far, LEAST), np.log(step) + log_height(far) + _log_gauss(n, a)


def _share(n: int, N: int, a: float) -> float:
    """Return whether the energy of spins that all agree is to be taken out: below the transition.

    Above it spins hardly agree, and the difference would be the larger number.
    """
    return 1.0 if a * N > n else 0.0


def _hill(
    log_height: Callable[[Array], Array], low: float, high: float, width: float
) -> tuple[float, float]:
    """Return ends of the one hill of an integrand, somewhat outside `DEPTH` below its top.

    Few widths of a Gaussian need no search: the ends are as they were.
    """
    while high - low > 2 * LOOKS * width:
        places = np.linspace(low, high, LOOKS)
        height = log_height(places)
        inside = np.flatnonzero(height > height.max() - DEPTH)
        first, last = max(int(inside[0]) - 1, 0), min(int(inside[-1]) + 1, LOOKS - 1)
        low, high = float(places[first]), float(places[last])
        if last - first > LOOKS // 2:
            break
    return low, high


def _log_gauss(n: int, a: Array | float) -> Array:
    """Return the logarithm of ``area / (2 pi a)^{n/2}``, a Gaussian's factor in radial form."""
    return log_area(n) - 0.5 * n * np.log(2.0 * math.pi * np.asarray(a))


def _mean_length(n: int, N: int, a: float) -> float:
    """Return ``E|M|`` without a field."""
    if N == 1:
        return 1.0
    if N == 2:  # |R| = 2 cos(angle / 2), of the angle between the two
        root, bend = math.sqrt(a), math.sqrt(n)
        # cos(angle) - 1 <= -2 (angle / pi)^2, and sin(angle)^(n - 2) moves the hill outwards.
        end = math.pi * min(1.0, (TAIL + bend) / (2.0 * root))
        angle, step = _panels(0.0, end, 4 + math.ceil((root + bend) * end / math.pi))
        log_weight = (n - 2) * np.log(np.sin(angle)) - 2.0 * a * np.sin(angle / 2.0) ** 2
        weight = step * np.exp(log_weight - log_weight.max())
        return float(weight @ np.cos(angle / 2.0) / weight.sum())
    # |R| lies between sqrt(N) and N. Around the inverse of either the integrand bends; from there
    # on it goes over to 1/t^2, and panels may be wider and wider.
    edges = np.concatenate([np.linspace(0.0, 2.0, 5) / N, np.geomspace(2.5 / N, FURTHEST, WIDE)])
    parts = [_panels(float(low), float(high), 1) for low, high in pairwise(edges)]
    t, step = (np.concatenate(each) for each in zip(*parts, strict=True))
    gone = _gone(n, N, a, np.append(t, FURTHEST))
    total = float(step @ (gone[:-1] / t**2))
    # Beyond, where only the smallest |R| are left, what is left falls as t^-n.
    total += (1.0 - (1.0 - float(gone[-1])) / (n + 1)) / FURTHEST
    return math.sqrt(2.0 / math.pi) * total / N


def _gone(n: int, N: int, a: float, t: Array) -> Array:
    """Return ``1 - E[e^{-t^2 R^2 / 2}]`` for each t; they must grow."""
    t = np.concatenate([[0.0], t])  # the whole stands among the parts: the same rounding
    own = a - t**2
    size = np.maximum(np.abs(own), 1e-300)
    is_positive, is_tiny = own > 0, size * N <= 1e-9
    # Numbers of about the same size share the points of their integrals, if their hills are near.
    octave = np.floor(np.abs(np.log(size / a)) / 1.4)
    kind = octave + np.where(is_positive, np.floor(N * t**2 / (LOOKS * math.sqrt(a))), 0.0)
    is_new = (np.diff(kind) != 0) | np.diff(is_positive) | np.diff(is_tiny)
    share = _share(n, N, a)
    level = share * float(log_partition_less(n, np.asarray(a * N), 1.0))
    agreeing = N * level + 0.5 * share * a * N * N
    gone, whole = np.ones_like(t), 0.0
    for first, last in pairwise([0, *(1 + np.flatnonzero(is_new)), len(t)]):
        part = slice(first, last)
        if is_tiny[first]:
            left = 0.5 * N * own[part] - agreeing
        elif is_positive[first]:
            left = _log_z_positive(n, N, own[part], share, level)
            left -= 0.5 * share * (N * t[part]) ** 2
        else:
            left = _log_z_negative(n, N, size[part]) - agreeing
        whole = whole if first else float(left[0])
        gone[part] = -np.expm1(left - whole)
        if left[-1] - whole < -DEPTH:
            break  # from here on nothing is left
    return gone[1:]


def _log_z_positive(n: int, N: int, a: Array, share: float, level: float) -> Array:
    """Return ``log E_0[e^{a R^2 / 2}]`` over free spins, for each a ``(A,)``.

    Less N times the level, and ``a N^2/2`` if the share is 1.
    """
    least, most = float(a.min()), float(a.max())
    centre, width = share * most * N, math.sqrt(least)

    def log_height(far: Array, coupling: Array | float) -> Array:
        r = np.maximum(centre + far, LEAST)
        own = far + share * N * (most - coupling)  # the distance from that coupling's own centre
        height = (n - 1) * np.log(r) + N * (log_partition_less(n, r, share) - level)
        return np.asarray(height - 0.5 * own**2 / coupling)

    # The hill of a larger coupling begins and ends further out.
    end = most * N + (TAIL + math.sqrt(n)) * math.sqrt(most) - centre
    low = _hill(lambda far: log_height(far, least), -centre, end, width)[0]
    high = _hill(lambda far: log_height(far, most), -centre, end, width)[1]
    far, step = _panels(low, high, math.ceil((high - low) / (2.0 * width)))
    log_weight = np.log(step) + log_height(far, a[:, None])
    top = log_weight.max(axis=1)
    found: Array = top + np.log(np.exp(log_weight - top[:, None]).sum(axis=1)) + _log_gauss(n, a)
    return found


def _log_z_negative(n: int, N: int, a: Array) -> Array:
    """Return ``log E_0[e^{-a R^2 / 2}]``: the field is imaginary, a free spin's factor a wave."""
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
