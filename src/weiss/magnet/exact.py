"""A magnet of finitely many spins, without an approximation.

**Counting.** Ising's energy depends only on how many spins point down: N + 1 terms with binomial
weights.

**One radial integral.** For n = 2 and 3, Hubbard's and Stratonovich's identity
``e^{a |R|^2 / 2} = (2 pi a)^{-n/2} int dy e^{-|y|^2 / 2a + y . R}`` with ``a = J/T`` makes spins
independent in a common Gaussian field y, and the angle of y can be integrated by hand:

    Z = (2 pi a)^{-n/2} e^{-b^2 / 2a} int_0^inf dr r^{n-1} e^{-r^2 / 2a} z_n(r)^N z_n(r b / a)

with ``b = h/T``. Without a field (h = 0) and with ``r = J N M / T`` the integrand is
``M^{n-1} e^{-N f(M, T) / T}``, f the mean-field `landscape`: mean field theory takes the integral
at its largest point. That is why it is exact for N to infinity.

Given y, spins are independent, so moments of their sum R follow without loss of digits. Only the
mean of ``|R|`` needs a second integral, see `_missing_length`.

The energy of parallel spins, ``J N^2/2 + N h``, is subtracted from every exponent before anything
is added: the rest is small at any temperature.
"""

import math
from dataclasses import dataclass

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss.magnet.mean_field import (
    Magnet,
    log_partition_less,
    mean_over_field,
    mean_slope,
    mean_spin,
    temperatures_of,
)

LOST = 5e-7
"""A variance of the length below this part of its square is lost to rounding."""
GAUSS = np.polynomial.legendre.leggauss(16)
"""Points and weights on each panel of an integral."""
TAIL = 12.0
"""Standard deviations of a Gaussian beyond which nothing is left of it."""
DEPTH = 60.0
"""How far below its top, in logarithms, an integrand is still counted."""


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

    Counted for n = 1, integrated otherwise: ten digits and more, but six or seven of ``length``.
    ``fluctuation`` is nan where rounding may dominate it, far below the transition or for very many
    spins. The temperature is at least 1e-8 of the coupling.

    Example:
        >>> from weiss.magnet import Magnet, exact
        >>> round(exact(Magnet(n=1), temperature=0.5, num_spins=1000).length, 3)
        0.957
    """
    T = float(temperatures_of(magnet, temperature, above_zero=True))
    N = checks.count("num_spins", num_spins, "exact")
    find = _counted if magnet.n == 1 else _integrated
    length, square, along, variance, variance_of_length, log_z = find(magnet, T, N)
    if N == 1:
        length, square, variance_of_length = 1.0, 1.0, 0.0
    square, along = min(square, 1.0), min(along, 1.0)  # rounding may go beyond
    return Moments(
        length=length,
        square=square,
        along=math.copysign(along, magnet.field) if magnet.field else 0.0,
        energy=-0.5 * magnet.coupling * square - abs(magnet.field) * along,
        free_energy=-0.5 * magnet.coupling - abs(magnet.field) - T / N * log_z,
        susceptibility=N * (variance / T),
        fluctuation=N * (variance_of_length / T),
    )


def _counted(magnet: Magnet, T: float, N: int) -> tuple[float, ...]:
    """Return the means of ``|M|, M . M, M_1``, variances of M_1 and ``|M|``, and log Z.

    M_1 is along the field; log Z is without the energy of parallel spins.
    """
    from scipy import special

    down = np.arange(N + 1.0)
    M = 1.0 - 2.0 * down / N
    log_weight = special.gammaln(N + 1) - special.gammaln(down + 1) - special.gammaln(N - down + 1)
    log_weight -= 2.0 / T * down * (magnet.coupling * (N - down) / N + abs(magnet.field))
    weight = special.softmax(log_weight)
    length, square = float(weight @ np.abs(M)), float(weight @ M**2)
    along = float(weight @ M) if magnet.field else 0.0
    variances = float(weight @ (M - along) ** 2), float(weight @ (np.abs(M) - length) ** 2)
    return length, square, along, *variances, float(special.logsumexp(log_weight))


def _integrated(magnet: Magnet, T: float, N: int) -> tuple[float, ...]:
    """Return the same as `_counted` by the radial integral; in a field also for n = 1."""
    from scipy import special

    n, a, b = magnet.n, magnet.coupling / (N * T), abs(magnet.field) / T
    turning = b / a
    # -(r^2 + b^2)/2a + N r + b r/a is a Gaussian around the centre. `log_partition_less` gives
    # log z(x) - x: for the spins beyond N r, and for the direction beyond b r/a.
    centre, width = a * N + b, math.sqrt(a)

    def log_height(far: Array) -> Array:
        r = np.maximum(centre + far, 1e-290)
        height = (n - 1) * np.log(r) - 0.5 * (far / width) ** 2
        height += N * log_partition_less(n, r) + log_partition_less(n, r * turning)
        return np.asarray(height)

    low, high = -centre, (TAIL + math.sqrt(n)) * width
    for _ in range(3):  # the integrand has one peak, which may be narrow
        places = np.linspace(low, high, 1001)
        height = log_height(places)
        inside = np.flatnonzero(height > height.max() - DEPTH)
        low, high = places[max(inside[0] - 1, 0)], places[min(inside[-1] + 1, 1000)]
    far, step = _panels(low, high, 2.0 * width)
    log_weight = np.log(step) + log_height(far) - 0.5 * n * math.log(2.0 * math.pi * a)
    r, weight = centre + far, special.softmax(log_weight)
    # Spins in the field r: mean, and mean square across it; the same of the field's own direction.
    mean, across = mean_spin(n, r), mean_over_field(n, r)
    cosine, off_axis = mean_spin(n, r * turning), mean_over_field(n, r * turning)
    square = float(weight @ (1.0 + (N - 1) * mean**2)) / N
    along = float(weight @ (mean * cosine))
    # The variance is a sum of three parts, none of them negative: of each spin in the field, of
    # the direction of the field, and of its length.
    upright = (1.0 - (n - 1) * off_axis) * mean_slope(n, r) + (n - 1) * off_axis * across
    parts = upright / N + mean**2 * mean_slope(n, r * turning) + (mean * cosine - along) ** 2
    log_z, variance = float(special.logsumexp(log_weight)), float(weight @ parts)
    if b:
        return math.nan, square, along, variance, math.nan, log_z
    # y is Gaussian around a R, which gives the variance of R^2. Where that is small, it gives the
    # length too.
    y_square = (r / a) ** 2
    mean_square = float(weight @ y_square)
    spread = float(weight @ (y_square - mean_square) ** 2) - 4.0 * mean_square / a + 2.0 * n / a**2
    root, part = math.sqrt(square), max(spread, 0.0) / (N * N * square) ** 2
    is_narrow = N > 2 and a * N > n and part < 40.0 * LOST
    missing = root * part / 8.0 if is_narrow else _missing_length(n, N, a, root)
    missing = max(missing, 0.0)  # rounding may go below
    variance_of_length = missing * (2.0 * root - missing)
    if variance_of_length < LOST * square:
        variance_of_length = math.nan
    return root - missing, square, along, variance, variance_of_length, log_z


def _missing_length(n: int, N: int, a: float, root: float) -> float:
    """Return ``sqrt(E[M . M]) - E|M|`` without a field, given the root.

    ``|R| = sqrt(2/pi) int_0^inf dt (1 - e^{-t^2 R^2 / 2}) / t^2``, and the expectation of the
    exponential is ``F(a - t^2) / F(a)`` with F of `_log_free_mean`.
    """
    last = 1e4 if N == 2 else 24.0  # above it F falls as a power, since only the smallest |R| count
    log_t, step = _panels(math.log(1e-3 / (N * root)), math.log(last), 1.0)
    t = np.exp(np.append(log_t, math.log(last)))
    log_f = _log_free_mean(n, N, a - np.append(t, 0.0) ** 2)
    # F is relative to parallel spins where its argument is positive, so that few digits cancel.
    left = np.exp(log_f[:-1] - log_f[-1] - 0.5 * N * N * np.minimum(t**2, a))
    total = float(step @ ((left - np.exp(-0.5 * (t * N * root) ** 2))[:-1] / t[:-1]))
    power = n - 1 if N == 2 else n
    total += float(left[-1]) / (power + 1) / last
    return math.sqrt(2.0 / math.pi) * total / N


def _log_free_mean(n: int, N: int, a: Array) -> Array:
    """Return ``log F(a) - max(a, 0) N^2 / 2`` for each a ``(A,)``, F the mean of ``e^{a R^2 / 2}``.

    The mean is over free spins, which a Gaussian y makes independent. For a below zero y lies on
    the imaginary axis, and ``z_n(ik) / z_n(0)`` is a wave, ``J_0(k)`` or ``sin(k) / k``.
    """
    from scipy import special

    if N == 2:  # R^2 / 2 = 1 + cosine of the angle between the two
        return np.asarray(log_partition_less(n, a) - log_partition_less(n, 0.0))
    found = np.empty_like(a)
    is_positive = a > 0
    width = np.sqrt(a[is_positive, None])
    u, step = _panels(0.0, float(width.max(initial=0.0)) * N + TAIL, 2.0)
    log_weight = np.log(step) + (n - 1) * np.log(u) - 0.5 * (u - width * N) ** 2
    log_weight = log_weight + N * (log_partition_less(n, width * u) - log_partition_less(n, 0.0))
    found[is_positive] = special.logsumexp(log_weight, axis=1)
    # The wave's N-th power is about e^{-N k^2 / 2n}; its other maxima count for few spins only.
    size = -a[~is_positive, None]
    narrowing = 1.0 + size * N / n
    k_width = np.sqrt(size / narrowing)
    end = TAIL * (math.sqrt(float(narrowing.max(initial=1.0))) if N < 50 else 1.0)
    u, step = _panels(0.0, end, 2.0)
    wave = special.j0(k_width * u) if n == 2 else np.sinc(k_width * u / math.pi)
    terms = step * u ** (n - 1) * np.exp(-0.5 * u**2 / narrowing) * wave**N
    total = terms.sum(axis=1) * narrowing[:, 0] ** (-0.5 * n)
    found[~is_positive] = np.log(np.maximum(total, 1e-300))
    log_sphere = log_partition_less(n, 0.0) - 0.5 * n * math.log(2.0 * math.pi)
    return found + log_sphere


def _panels(low: float, high: float, widest: float) -> tuple[Array, Array]:
    """Return Gauss points and weights on equal panels, none wider than ``widest``."""
    point, weight = GAUSS
    edges = np.linspace(low, high, 1 + math.ceil((high - low) / widest))
    half = 0.5 * np.diff(edges)[:, None]
    return (edges[:-1, None] + half * (1.0 + point)).ravel(), (half * weight).ravel()
