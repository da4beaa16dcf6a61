"""A magnet of finitely many spins, without an approximation.

**Counting.** Ising's energy depends only on how many spins point down: N + 1 terms with binomial
weights.

**One radial integral.** For any n, Hubbard's and Stratonovich's identity
``e^{a |R|^2 / 2} = (2 pi a)^{-n/2} int dy e^{-|y|^2 / 2a + y . R}`` with ``a = J/T`` makes spins
independent in a common Gaussian field y, and the angle of y can be integrated by hand:

    Z ~ e^{-b^2 / 2a} a^{-n/2} int_0^inf dr r^{n-1} e^{-r^2 / 2a} z_n(r)^N z_n(r b / a),    b = h/T

Without a field (h = 0) the last factor is 1, and with ``r = J N M / T`` the integrand is
``M^{n-1} e^{-N f(M, T) / T}``, f the mean-field `landscape`: mean field theory takes the integral
at its largest point. That is why it is exact for N to infinity.

Given y, spins are independent, so moments of their sum R follow without loss of digits. Only the
mean of ``|R|`` needs a second integral:
``E|R| = sqrt(2/pi) int_0^inf dt (1 - E[e^{-t^2 R^2 / 2}]) / t^2``, where the expectation is
``Z(a - t^2) / Z(a)``. A negative a is a Gaussian y along the imaginary axis.

**Cold magnets.** Below the transition the energy of parallel spins, ``J N^2/2 + N h``, is
subtracted from every exponent before anything is added: the rest is small at any temperature. In
``r^2`` the logarithm of the integrand is concave: it has one peak, and only that is integrated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss.magnet.mean_field import Magnet, magnet_of, temperatures_of
from weiss.magnet.single_spin import (
    log_area,
    log_partition_less,
    mean_over_field,
    mean_slope,
    mean_spin,
)

LOST = 5e-7
"""A variance of the length below this part of its square is lost to rounding."""
GAUSS = np.polynomial.legendre.leggauss(16)
"""Points and weights on each panel of an integral."""
FIRST, LAST = 3e-3, 24.0
"""The integral over t is a closed form below FIRST / N, and a power law above LAST."""
TAIL = 12.0
"""Standard deviations of a Gaussian beyond which nothing is left of it."""
DEPTH = 60.0
"""How far below its top, in logarithms, an integrand is still counted."""
LOOKS = 64
"""At how many points a peak is searched for at a time."""
WEAK = 1e-3
"""Couplings times N below this are expanded to second order."""
SMALLEST = 1e-290
"""Replaces a radius of zero, which has no logarithm."""
COLDEST = 1e-100
"""The lowest temperature, in units of the coupling; floating point ends not far below."""


@dataclass(frozen=True)
class Moments:
    """Averages over the Gibbs distribution of N spins; R is their sum and ``M = R / N``.

    Attributes:
        length: ``E|M|``; nan for n > 1 and N > 1 in a field, where it is not implemented.
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
        temperature: T, above zero, at least 1e-100 of the coupling.
        num_spins: N.

    Returns:
        Counted for n = 1, integrated otherwise: ten digits and more, but six or seven of
        ``length``. ``fluctuation`` is a difference of such numbers; it is nan where rounding may
        dominate it, far below the transition or for very many spins.

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
            f"{magnet.coupling:g}, for exact; got {T:g}. All spins agree there: use "
            "solve(magnet, 0.0)."
        )
    N = checks.count("num_spins", num_spins, "exact")
    return _counted(magnet, T, N) if magnet.n == 1 else integrated(magnet, T, N)


def _counted(magnet: Magnet, T: float, N: int) -> Moments:
    from scipy import special

    down = np.arange(N + 1.0)
    M = 1.0 - 2.0 * down / N
    log_weight = special.gammaln(N + 1) - special.gammaln(down + 1) - special.gammaln(N - down + 1)
    against = down if magnet.field >= 0 else N - down
    log_weight -= 2.0 * magnet.coupling / T * down * ((N - down) / N)
    log_weight -= 2.0 * abs(magnet.field) / T * against
    log_z, weight = float(special.logsumexp(log_weight)), special.softmax(log_weight)
    length, square = float(weight @ np.abs(M)), float(weight @ M**2)
    along = float(weight @ M) if magnet.field else 0.0
    variances = float(weight @ (M - along) ** 2), float(weight @ (np.abs(M) - length) ** 2)
    return _moments(magnet, T, N, (length, square, along), variances, log_z)


def integrated(magnet: Magnet, temperature: float, num_spins: int) -> Moments:
    """Return the averages by the radial integral, for n above 1; in a field also for n = 1."""
    from scipy import special

    n, T, N = magnet.n, float(temperature), int(num_spins)
    a, b = magnet.coupling / (N * T), abs(magnet.field) / T
    turning = abs(magnet.field) * N / magnet.coupling  # b / a
    r, log_weight = _radial(n, N, a, b, turning)
    log_z, weight = float(special.logsumexp(log_weight)), special.softmax(log_weight)
    # Spins in the field r: mean, and mean square across it; the same of the field's own direction.
    mean, across = mean_spin(n, r), mean_over_field(n, r)
    cosine, off_axis = mean_spin(n, r * turning), mean_over_field(n, r * turning)
    square = float(weight @ (1.0 + (N - 1) * mean**2)) / N
    pull = mean * cosine
    top = pull[log_weight.argmax()]  # weights do not add up to 1 in the last digit
    along = float(top + weight @ (pull - top))
    # The variance is a sum of three parts, none of them negative: of each spin in the field, of
    # the direction of the field, and of its length.
    upright = (1.0 - (n - 1) * off_axis) * mean_slope(n, r) + (n - 1) * off_axis * across
    parts = upright / N + mean**2 * mean_slope(n, r * turning) + (pull - along) ** 2
    length = math.nan if b else _mean_length(n, N, a, r, weight, square)
    variance_of_length = square - length**2
    if variance_of_length < LOST * square:
        variance_of_length = math.nan
    sign = 1.0 if magnet.field >= 0 else -1.0
    variances = float(weight @ parts), variance_of_length
    means = length, square, sign * along
    return _moments(magnet, T, N, means, variances, log_z + N * log_area(n))


def _moments(
    magnet: Magnet,
    T: float,
    N: int,
    means: tuple[float, float, float],
    variances: tuple[float, float],
    log_z: float,
) -> Moments:
    """Return the averages that follow from ``E|M|, E[M . M], E[M_1]``, variances of M_1 and |M|.

    ``log_z`` is without the energy of parallel spins.
    """
    length, square, along = means
    variance, variance_of_length = variances
    if N == 1:
        length, square, variance_of_length = 1.0, 1.0, 0.0
    # Rounding and quadrature may go beyond what a mean can be.
    square, along = min(square, 1.0), min(max(along, -1.0), 1.0)
    return Moments(
        length=float(np.minimum(length, math.sqrt(square))),  # nan stays
        square=square,
        along=along,
        energy=-0.5 * magnet.coupling * square - magnet.field * along,
        free_energy=float(-0.5 * magnet.coupling - abs(magnet.field) - T / N * log_z),
        susceptibility=N * (variance / T),
        fluctuation=N * (variance_of_length / T),
    )


def _radial(n: int, N: int, a: float, b: float, turning: float) -> tuple[Array, Array]:
    """Return points r and logarithms of weights, whose sum is ``Z / area^N e^{-a N^2/2 - N b}``."""
    # -(r^2 + b^2)/2a + N r + b r/a is a Gaussian around the centre; the other terms are what the
    # spins and the direction have less than N r and b r/a. Points are distances from the centre,
    # which is close to the peak of a cold magnet. A hot one without a field has its peak near zero.
    share = 1.0 if b or a * N > n else 0.0
    centre, width = share * a * N + b, math.sqrt(a)

    def log_height(far: Array) -> Array:
        r = np.maximum(centre + far, SMALLEST)
        height = (n - 1) * np.log(r) - 0.5 * (far / width) ** 2 - 0.5 * (1.0 - share) * a * N * N
        height += N * log_partition_less(n, r, share) + log_partition_less(n, r * turning, share)
        return np.asarray(height)

    end = a * N + b + (TAIL + math.sqrt(n)) * width
    low, high = _peak(log_height, -centre, end - centre, width)
    far, step = _panels(np.linspace(low, high, 1 + math.ceil((high - low) / (2.0 * width))))
    return np.maximum(centre + far, SMALLEST), np.log(step) + log_height(far) + _log_gauss(n, a)


def _peak(
    log_height: Callable[[Array], Array], low: float, high: float, width: float
) -> tuple[float, float]:
    """Return ends of the one peak of an integrand, somewhat outside `DEPTH` below its top.

    An interval of few widths is returned as it is.
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


def _mean_length(n: int, N: int, a: float, r: Array, weight: Array, square: float) -> float:
    """Return ``E|M|`` without a field, from points and weights of the radial integral."""
    if N == 1:
        return 1.0
    if N == 2:  # |R| = 2 cos(angle / 2), of the angle between the two
        root, bend = math.sqrt(a), math.sqrt(n)
        # cos(angle) - 1 <= -2 (angle / pi)^2, and sin(angle)^(n - 2) moves the peak outwards.
        end = math.pi * min(1.0, (TAIL + bend) / (2.0 * root))
        angle, step = _panels(np.linspace(0.0, end, 5 + math.ceil((root + bend) * end / math.pi)))
        log_weight = (n - 2) * np.log(np.sin(angle)) - 2.0 * a * np.sin(angle / 2.0) ** 2
        gibbs = step * np.exp(log_weight - log_weight.max())
        return float(gibbs @ np.cos(angle / 2.0) / gibbs.sum())
    if a * N > n:
        # y is Gaussian around a R, which gives Var R^2. Where that is small, so is the correction.
        y_square = (r / a) ** 2
        mean = float(weight @ y_square)
        variance = float(weight @ (y_square - mean) ** 2) - 4.0 * mean / a + 2.0 * n / a**2
        part = max(variance, 0.0) / (N * N * square) ** 2
        if part < 4.0 * LOST:
            return math.sqrt(square) * (1.0 - part / 8.0)
    low, high = math.log(FIRST / N), math.log(LAST)
    log_t, step = _panels(np.linspace(low, high, 1 + math.ceil((high - low) / 2.0)))
    t = np.exp(log_t)
    log_z = _log_free_mean(n, N, a - np.concatenate([[0.0], t, [LAST]]) ** 2, float(r.max()))
    left = np.exp(log_z[1:] - log_z[0])
    total = float(step @ ((1.0 - left[:-1]) / t)) + 0.5 * FIRST * N * square
    # Above LAST only the smallest |R| count, and the expectation falls as t^-n.
    total += (1.0 - float(left[-1]) / (n + 1)) / LAST
    return math.sqrt(2.0 / math.pi) * total / N


def _log_free_mean(n: int, N: int, a: Array, end: float) -> Array:
    """Return ``log E_0[e^{a R^2 / 2}]`` over free spins, for each a ``(A,)``; r up to ``end``."""
    from scipy import special

    found: Array = 0.5 * N * a + a**2 * (N * (N - 1) / (4.0 * n))
    narrow = math.sqrt(WEAK / N)  # the narrowest of the Gaussians
    bulk = TAIL + math.sqrt(n)

    def width(r: float) -> float:
        # Half of the narrowest peak at r: around zero, or, by a bound of A_n, where
        # r = a N A_n(r), that of a magnet below its transition.
        q = math.hypot(r, n / 2)
        ordered = math.sqrt(q / N * (n / 2 + q) / max(q - n / 2, 1e-300))
        return 2.0 * min(max(narrow, r / bulk), ordered)

    is_positive = a * N > WEAK
    r, step = _panels(_graded(end, width))
    common = np.log(step) + (n - 1) * np.log(r) + N * log_partition_less(n, r, 0.0)
    own = a[is_positive, None]
    log_sums = special.logsumexp(common - r**2 / (2.0 * own), axis=1)
    found[is_positive] = log_sums + _log_gauss(n, own[:, 0])
    # Below zero y is imaginary, and the factor of a free spin a wave: the mean of cos(k S_1).
    is_negative = a * N < -WEAK
    own = -a[is_negative, None]
    if not len(own):
        return found
    # |wave| is at most Gamma(n/2) 2^{n/2 - 1/2} / sqrt(pi) k^{(1-n)/2}, and e^{-k^2 / 2n} before
    # its first zero. The integral ends where the N-th power is below rounding.
    log_bound = math.lgamma(n / 2) + 0.5 * (n - 1) * math.log(2.0) - 0.5 * math.log(math.pi)
    log_end = 2.0 * (log_bound + 42.0 / N) / (n - 1)
    end = min(bulk * math.sqrt(own.max()), math.exp(min(log_end, 50.0)), 8.0 * LAST)
    if 21 * n < N:
        end = min(end, math.sqrt(84.0 * n / N))
    most = min(1.0, 2.0 * math.sqrt(n / N))
    k, step = _panels(_graded(end, lambda k: 2.0 * min(max(narrow, k / bulk), most)))
    cosine, chance = special.roots_gegenbauer(32 + math.ceil(end), n / 2 - 1)
    wave = np.cos(np.outer(k, cosine)) @ (chance / chance.sum())
    common = np.log(step) + (n - 1) * np.log(k) + N * np.log(np.maximum(np.abs(wave), SMALLEST))
    log_weight = common - k**2 / (2.0 * own)
    log_sums, sign = special.logsumexp(log_weight, axis=1, b=np.sign(wave) ** N, return_sign=True)
    found[is_negative] = np.where(sign > 0, log_sums, -np.inf) + _log_gauss(n, own[:, 0])
    return found


def _graded(end: float, width: Callable[[float], float]) -> Array:
    """Return edges of panels from 0 to the end, each as wide as ``width`` allows."""
    edges = [0.0]
    while edges[-1] < end:
        edges.append(edges[-1] + width(edges[-1]))
    return np.array([*edges[:-1], end])


def _panels(edges: Array) -> tuple[Array, Array]:
    """Return Gauss points and weights on the panels between edges."""
    point, weight = GAUSS
    half = 0.5 * np.diff(edges)[:, None]
    return (edges[:-1, None] + half * (1.0 + point)).ravel(), (half * weight).ravel()
