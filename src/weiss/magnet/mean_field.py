"""The magnet and its mean field theory: Weiss's equation, and what follows from it.

N spins, unit vectors of n components, which all attract each other (section 3.1 of the paper; the
field h along the first axis is an addition):

    H     = -J/2 sum_{i,j} S_i . S_j - h . sum_i S_i          self-pairs i = j are in the sum
    H_MF  = J N^2/2 M . M - J N M . sum_i S_i - h . sum_i S_i
    M     = 1/N sum_i E[S_i]                                  E over e^{-H_MF / T}

Everything here is in units of ``coupling = J N``, the field on a spin when all others agree.
Energies are for each spin, and Boltzmann's constant is 1. One spin in a field of length x (over
the temperature) has the distribution ``e^{x cos(theta)}`` on the sphere, and

    z_n(x) = int dS e^{x S_1}             2 cosh x,   2 pi I_0(x),      4 pi sinh(x) / x
    A_n(x) = E[S_1] = d log z_n / dx      tanh x,     I_1(x) / I_0(x),  coth x - 1/x

for n = 1 (Ising), 2 (XY) and 3 (Heisenberg).

Dimensions: N spins, D = n components.
"""

import math
from dataclasses import dataclass

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array

COLDEST = 1e-8
"""The lowest temperature above zero, in units of the coupling."""
STEPS = 200
"""The most steps of Newton's method; at the transition each removes a third of the error."""
LENGTH_VARIANCE = {1: 1 - 2 / math.pi, 2: 2 - math.pi / 2, 3: 3 - 8 / math.pi}
"""The variance of the length of a vector of n independent standard Gaussians."""
NAMES = {1: "Ising", 2: "XY", 3: "Heisenberg"}


@dataclass(frozen=True)
class Magnet:
    """An infinite-range ferromagnet.

    Attributes:
        n: components of a spin: 1 is Ising's magnet, 2 the XY magnet, 3 Heisenberg's.
        coupling: ``J N``, above zero.
        field: h, the component of an outer field along the first axis.

    Example:
        >>> from weiss.magnet import Magnet
        >>> Magnet(n=2).critical_temperature
        0.5
    """

    n: int = 3
    coupling: float = 1.0
    field: float = 0.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        if isinstance(self.n, bool) or self.n not in (1, 2, 3):
            raise ValueError(
                "n must be 1 (Ising), 2 (XY) or 3 (Heisenberg), the components of a spin; "
                f"got {self.n!r}. Pass one of the three."
            )
        checks.number("coupling", self.coupling, "Magnet", above=0.0)
        checks.number("field", self.field, "Magnet")

    @property
    def name(self) -> str:
        """The usual name of the magnet."""
        return NAMES[self.n]

    @property
    def critical_temperature(self) -> float:
        """``T_c = J N / n``: below it, without a field, the spins agree on a direction."""
        return self.coupling / self.n


@dataclass(frozen=True)
class State:
    """The solution of mean field theory: arrays of the shape of the temperatures.

    One temperature gives arrays without dimensions; ``float`` converts each to a number.

    Attributes:
        temperature: T.
        magnetisation: M along the first axis, with the sign of the field; without one not negative.
        free_energy: ``f = -T/N log Z_MF``, with the paper's measure ``prod_i dS_i``.
        energy: ``u = E[H_MF] / N = -J N M^2/2 - h M``.
        entropy: ``s = (u - f) / T``; at zero temperature 0 for n = 1 and minus infinity else.
        susceptibility: ``dM/dh`` along M; infinite at the transition.
        transverse: ``dM/dh`` across M, ``M / h``; infinite for M without a field, nan for n = 1.
        fluctuation: the limit of ``N Var|M| / T`` for N to infinity: the susceptibility, where M
            is zero times the variance of the length of a Gaussian vector.
    """

    temperature: Array
    magnetisation: Array
    free_energy: Array
    energy: Array
    entropy: Array
    susceptibility: Array
    transverse: Array
    fluctuation: Array


def solve(magnet: Magnet, temperature: Array | float) -> State:
    """Solve the self-consistency equation ``M = A_n((J N M + h) / T)`` for its stable solution.

    With ``x = (J N M + h) / T`` it is ``T x = J N A_n(x) + h``, and the right side is concave:
    Newton's method from the right end decreases to the largest solution. The temperature, of any
    shape, is zero or at least 1e-8 of the coupling.

    Example:
        >>> from weiss.magnet import Magnet, solve
        >>> solve(Magnet(n=1), [0.0, 0.5, 0.99, 1.5]).magnetisation.round(4)
        array([1.    , 0.9575, 0.1725, 0.    ])
    """
    T = temperatures_of(magnet, temperature)
    n, coupling, outer = magnet.n, magnet.coupling, abs(magnet.field)
    is_warm = T > 0
    warm = np.where(is_warm, T, 1.0)
    is_free = (outer == 0.0) & (warm >= magnet.critical_temperature)
    x = (coupling + outer) / warm
    # Not scipy's brentq, which solves one temperature at a time; a simulation needs thousands.
    for _ in range(STEPS):
        excess = coupling * mean_spin(n, x) + outer - warm * x
        slope = np.minimum(coupling * mean_slope(n, x) - warm, -1e-300)
        before, x = x, np.maximum(np.where(is_free, 0.0, x - excess / slope), 0.0)
        if np.all(np.abs(x - before) <= 1e-15 * before):
            break
    mean, variance = mean_spin(n, x), mean_slope(n, x)
    M = np.where(is_warm, mean, 1.0)
    u = -0.5 * coupling * M**2 - outer * M
    # The entropy is log z - x A; x (1 - A) is written as a sum of positive numbers.
    s = log_partition_less(n, x) + (x * variance + (n - 1) * mean) / (1.0 + mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        along = np.where(is_warm, variance / np.maximum(warm - coupling * variance, 0.0), 0.0)
        across = np.where(M > 0, np.divide(M, outer), along)
    return State(
        temperature=T,
        magnetisation=M if magnet.field >= 0 else np.asarray(-M),
        free_energy=np.asarray(u - np.where(is_warm, warm * s, 0.0)),
        energy=np.asarray(u),
        entropy=np.where(is_warm, s, 0.0 if n == 1 else -np.inf),
        susceptibility=along,
        transverse=across if n > 1 else np.full_like(T, np.nan),
        fluctuation=np.where(M > 0, along, along * LENGTH_VARIANCE[n]),
    )


def landscape(magnet: Magnet, mean: Array | float, temperature: Array | float) -> Array:
    """Return ``-T/N log Z_MF`` as a function of the mean field, which the paper minimises.

    ``f(M, T) = J N M^2/2 - T log z_n(|J N M + h| / T)``

    At zero temperature it is ``min over spins of H_MF / N = J N M^2/2 - |J N M + h|``. A loss
    function is this: H_MF, minimised over the samples and over the field together. M, along the
    first axis, and T broadcast.

    Example:
        >>> from weiss.magnet import Magnet, landscape
        >>> [round(float(landscape(Magnet(1), 1.0, T)), 3) for T in (1.0, 0.1, 0.01, 0.0)]
        [-0.627, -0.5, -0.5, -0.5]
    """
    T, mean = temperatures_of(magnet, temperature), np.asarray(mean, dtype=np.float64)
    pull = np.abs(magnet.coupling * mean + magnet.field)
    warm = np.where(T > 0, T, 1.0)
    thermal = np.where(T > 0, T * log_partition_less(magnet.n, pull / warm), 0.0)
    return np.asarray(0.5 * magnet.coupling * mean**2 - pull - thermal)


def energy(magnet: Magnet, spins_ND: Array) -> float:
    """Return ``H / N`` of a configuration ``(N, n)``."""
    mean_D = _mean_of(magnet, spins_ND)
    return float(-0.5 * magnet.coupling * mean_D @ mean_D - magnet.field * mean_D[0])


def mean_field_energy(magnet: Magnet, spins_ND: Array, mean_D: Array) -> float:
    """Return ``H_MF / N`` of a configuration ``(N, n)`` in the mean field M ``(n,)``.

    It is ``H/N + J N/2 |M - m|^2`` with m the mean of the spins: never below the true energy, and
    equal to it where the field is self-consistent.
    """
    found_D, mean_D = _mean_of(magnet, spins_ND), np.asarray(mean_D, dtype=np.float64)
    if mean_D.shape != (magnet.n,) or not np.isfinite(mean_D).all():
        raise ValueError(
            f"mean_D must be {magnet.n} finite numbers, as many as a spin has components; "
            f"got {np.array2string(mean_D, threshold=6)} of shape {mean_D.shape}. Pass a vector."
        )
    pull = magnet.coupling * (0.5 * mean_D @ mean_D - mean_D @ found_D)
    return float(pull - magnet.field * found_D[0])


def mean_spin(n: int, x: Array | float) -> Array:
    """Return ``A_n(x)``, the mean of a spin along its field: odd, 0 at zero, 1 for large x."""
    return np.asarray(np.clip(np.asarray(x) * mean_over_field(n, x), -1.0, 1.0))


def mean_over_field(n: int, x: Array | float) -> Array:
    """Return ``A_n(x) / x``, which is ``1/n`` at zero, and even: ``I_{n/2} / I_{n/2-1} / x``."""
    from scipy import special

    x = _size(x)
    near = special.ive(0.5 * n, x) / special.ive(0.5 * n - 1.0, x)
    # SciPy has no Bessel functions of larger numbers; the next term is below a rounding error.
    return np.asarray(np.where(x < 1e8, near, 1.0 - 0.5 * (n - 1) / x) / x)


def mean_slope(n: int, x: Array | float) -> Array:
    """Return ``dA_n/dx = 1 - (n - 1) A_n / x - A_n^2``, the variance of a spin along its field."""
    x = _size(x)
    if n == 1:  # 1 / cosh^2: the terms above cancel for every x
        shrunk = np.exp(-2.0 * x)
        return np.asarray(4.0 * shrunk / (1.0 + shrunk) ** 2)
    over = mean_over_field(n, x)
    near = 1.0 - (n - 1) * over - (x * over) ** 2
    # A series in 1/x, where the difference loses its digits.
    series = (0.5, 0.25, 0.375, 25 / 32, 65 / 32, 3219 / 512) if n == 2 else (1.0,)
    far = np.polynomial.polynomial.polyval(1.0 / x, series) / x / x
    return np.where(x < 200, near, far)


def log_partition_less(n: int, x: Array | float) -> Array:
    """Return ``log z_n(x) - |x|``; subtracting x afterwards would lose digits for large x."""
    from scipy import special

    x = _size(x)
    if n == 1:
        return np.asarray(np.log1p(np.exp(-2.0 * x)))
    shrunk = special.i0e(x) if n == 2 else -np.expm1(-2.0 * x) / x
    return np.asarray(np.log(2.0 * math.pi * shrunk))


def _size(x: Array | float) -> Array:
    """Return ``|x|``, at least 1e-20, so that it can divide."""
    return np.asarray(np.maximum(np.abs(np.asarray(x, dtype=np.float64)), 1e-20))


def check_magnet(given: object) -> None:
    """Refuse what is not a magnet."""
    if not isinstance(given, Magnet):
        raise TypeError(f"magnet must be a Magnet; got {given!r}. Pass one, such as Magnet(n=3).")


def temperatures_of(magnet: Magnet, given: object, *, above_zero: bool = False) -> Array:
    """Return temperatures of a magnet as float64; check both."""
    check_magnet(magnet)
    try:
        T = np.asarray(given, dtype=np.float64)
        is_number = np.asarray(given).dtype.kind in "iufO"
    except (TypeError, ValueError):
        is_number = False
    if not is_number:
        raise TypeError(
            f"temperature must be a number or an array of numbers; got {given!r}. "
            "Pass it in the units of J N, with Boltzmann's constant 1."
        )
    is_allowed = (COLDEST * magnet.coupling <= T) | ((T == 0) & (not above_zero))
    bad = T[~(np.isfinite(T) & is_allowed)]
    if bad.size:
        zero = "" if above_zero else "zero, or "
        raise ValueError(
            f"temperature must be {zero}finite and at least {COLDEST:g} of the coupling, which is "
            f"{magnet.coupling:g}; got {bad.flat[0]:g}. At zero use solve: all spins agree there."
        )
    return T


def _mean_of(magnet: Magnet, given: Array) -> Array:
    """Return the mean ``(n,)`` of a configuration ``(N, n)``; check both."""
    check_magnet(magnet)
    spins_ND = np.asarray(given, dtype=np.float64)
    if spins_ND.ndim != 2 or spins_ND.shape[1] != magnet.n or not len(spins_ND):
        raise ValueError(
            f"spins must have shape (N, {magnet.n}), N at least 1; got {spins_ND.shape}. "
            "Pass one row a spin."
        )
    lengths_N = np.linalg.norm(spins_ND, axis=1)
    if not np.allclose(lengths_N, 1.0, rtol=0.0, atol=1e-6):
        worst = lengths_N[np.argmax(np.abs(lengths_N - 1.0))]
        raise ValueError(
            f"spins must be of length 1; got one of length {worst:g}. Divide each by its length."
        )
    return np.asarray(spins_ND.mean(axis=0))
