"""The magnet and its mean field theory: Weiss's equation, and what follows from it.

N spins, unit vectors of n components, which all attract each other (section 3.1 of the paper; the
field h along the first axis is an addition):

    H     = -J/2 sum_{i,j} S_i . S_j - h . sum_i S_i          self-pairs i = j are in the sum
    H_MF  = J N^2/2 M . M - J N M . sum_i S_i - h . sum_i S_i
    M     = 1/N sum_i E[S_i]                                  E over e^{-H_MF / T}

Everything here is in units of ``coupling = J N``, the field on a spin when all others agree.
Energies are for each spin, and Boltzmann's constant is 1.

Dimensions: N spins, D = n components.
"""

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss.magnet.single_spin import (
    components_of,
    log_area,
    log_partition,
    mean_over_field,
    mean_slope,
    mean_spin,
    spin_entropy,
)

SMALLEST = 1e-305
"""The lowest temperature over the field on a spin; below it their quotient overflows."""
STEPS = 200
"""The most steps of Newton's method; at the transition each removes a third of the error."""


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
        components_of(self.n, "Magnet")
        checks.number("coupling", self.coupling, "Magnet", above=0.0)
        checks.number("field", self.field, "Magnet")

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


def energy(magnet: Magnet, spins_ND: Array) -> float:
    """Return ``H / N`` of a configuration ``(N, n)``."""
    spins_ND = spins_of(magnet_of(magnet, "energy"), spins_ND)
    mean_D = spins_ND.mean(axis=0)
    return float(-0.5 * magnet.coupling * mean_D @ mean_D - magnet.field * mean_D[0])


def mean_field_energy(magnet: Magnet, spins_ND: Array, mean_D: Array) -> float:
    """Return ``H_MF / N`` of a configuration ``(N, n)`` in the mean field M ``(n,)``.

    It is ``H/N + J N/2 |M - m|^2`` with m the mean of the spins: never below the true energy, and
    equal to it where the field is self-consistent.
    """
    spins_ND = spins_of(magnet_of(magnet, "mean_field_energy"), spins_ND)
    mean_D = np.asarray(mean_D, dtype=np.float64)
    if mean_D.shape != (magnet.n,) or not np.isfinite(mean_D).all():
        raise ValueError(
            f"mean_D must be {magnet.n} finite numbers, as many as a spin has components; "
            f"got {np.array2string(mean_D, threshold=6)} of shape {mean_D.shape}. Pass a vector."
        )
    found_D = spins_ND.mean(axis=0)
    pull = magnet.coupling * (0.5 * mean_D @ mean_D - mean_D @ found_D)
    return float(pull - magnet.field * found_D[0])


def landscape(magnet: Magnet, mean: Array | float, temperature: Array | float) -> Array:
    """Return ``-T/N log Z_MF`` as a function of the mean field, which the paper minimises.

    ``f(M, T) = J N M^2/2 - T log z_n(|J N M + h| / T)``

    At zero temperature it is ``min over spins of H_MF / N = J N M^2/2 - |J N M + h|``. A loss
    function is this: H_MF, minimised over the samples and over the field together.

    Args:
        magnet: which.
        mean: M along the first axis, any shape.
        temperature: T, zero or more, of a shape that broadcasts with it.

    Example:
        >>> from weiss.magnet import Magnet, landscape
        >>> [round(float(landscape(Magnet(1), 1.0, T)), 3) for T in (1.0, 0.1, 0.01, 0.0)]
        [-0.627, -0.5, -0.5, -0.5]
    """
    magnet_of(magnet, "landscape")
    T, mean = temperatures_of(temperature), np.asarray(mean, dtype=np.float64)
    pull = np.abs(magnet.coupling * mean + magnet.field)
    try:
        np.broadcast_shapes(T.shape, mean.shape)
    except ValueError as error:
        raise ValueError(
            "mean and temperature must have shapes that broadcast for landscape; got "
            f"{mean.shape} and {T.shape}. Give one of them another dimension: mean[:, None]."
        ) from error
    _refuse_nearly_zero(T, float(pull.max(initial=0.0)), "landscape")
    warm = np.where(T > 0, T, 1.0)
    thermal = warm * (log_partition(magnet.n, pull / warm) + log_area(magnet.n))
    return 0.5 * magnet.coupling * mean**2 - np.where(T > 0, thermal, pull)


def solve(magnet: Magnet, temperature: Array | float) -> State:
    """Solve the self-consistency equation ``M = A_n((J N M + h) / T)`` for its stable solution.

    With ``x = (J N M + h) / T`` it is ``T x = J N A_n(x) + h``, and the right side is concave:
    Newton's method from the right end decreases to the largest solution.

    Args:
        magnet: which.
        temperature: T, zero or more, any shape.

    Returns:
        Magnetisation, free energy, energy, entropy, susceptibilities at each temperature.

    Example:
        >>> from weiss.magnet import Magnet, solve
        >>> solve(Magnet(n=1), [0.0, 0.5, 0.99, 1.5]).magnetisation.round(4)
        array([1.    , 0.9575, 0.1725, 0.    ])
    """
    magnet_of(magnet, "solve")
    T = temperatures_of(temperature)
    n, coupling, outer = magnet.n, magnet.coupling, abs(magnet.field)
    _refuse_nearly_zero(T, coupling + outer, "solve")
    is_warm = T > 0
    warm = np.where(is_warm, T, 1.0)
    is_free = (outer == 0.0) & (warm >= magnet.critical_temperature)
    x = (coupling + outer) / warm
    # Not scipy's brentq, which solves one temperature at a time; a simulation needs thousands.
    for _ in range(STEPS):
        excess = coupling * mean_spin(n, x) + outer - warm * x
        slope = np.minimum(coupling * mean_slope(n, x) - warm, -1e-300)
        moved = np.maximum(np.where(is_free, 0.0, x - excess / slope), 0.0)
        is_done = np.all(np.abs(moved - x) <= 1e-15 * x)
        x = moved
        if is_done:
            break
    M = np.where(is_warm, mean_spin(n, x), 1.0)
    u = -0.5 * coupling * M**2 - outer * M
    s = np.where(is_warm, spin_entropy(n, x), 0.0 if n == 1 else -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = mean_slope(n, x)
        along = np.where(is_warm, variance / np.maximum(warm - coupling * variance, 0.0), 0.0)
        across = np.where(M > 0, M / outer, along) if outer else np.where(M > 0, np.inf, along)
    return State(
        temperature=T,
        magnetisation=M if magnet.field >= 0 else np.asarray(-M),
        free_energy=np.where(is_warm, u - warm * np.where(is_warm, s, 0.0), u),
        energy=np.asarray(u),
        entropy=s,
        susceptibility=along,
        transverse=across if n > 1 else np.full_like(T, np.nan),
        fluctuation=np.where(M > 0, along, along * _length_variance(n)),
    )


def residual(magnet: Magnet, mean: Array | float, temperature: float) -> Array:
    """Return ``A_n((J N M + h) / T) - M``, the slope of the `landscape` over ``-J N``.

    Args:
        magnet: which.
        mean: M along the first axis, any shape.
        temperature: T, above zero.
    """
    magnet_of(magnet, "residual")
    T = checks.number("temperature", temperature, "residual", above=0.0)
    mean = np.asarray(mean, dtype=np.float64)
    pull = magnet.coupling * mean + magnet.field
    _refuse_nearly_zero(np.asarray(T), float(np.abs(pull).max(initial=0.0)), "residual")
    x = pull / T
    found: Array = x * mean_over_field(magnet.n, np.abs(x)) - mean
    return found


def magnet_of(given: object, owner: str) -> Magnet:
    """Return ``given`` if it is a magnet."""
    if not isinstance(given, Magnet):
        raise TypeError(
            f"magnet must be a Magnet for {owner}; got {given!r}. Pass one, such as Magnet(n=3)."
        )
    return given


def temperatures_of(given: object) -> Array:
    """Return temperatures as float64, checked."""
    try:
        found = np.asarray(given)
    except ValueError:  # rows of several lengths
        found = np.asarray(None)
    kind = found.dtype.kind
    if kind not in "iufO" or (kind == "O" and not all(isinstance(T, Real) for T in found.flat)):
        raise TypeError(
            f"temperature must be a number or an array of numbers; got {given!r}. "
            "Pass it in the units of J N, with Boltzmann's constant 1."
        )
    T = found.astype(np.float64)
    bad = T[~(np.isfinite(T) & (T >= 0))]
    if bad.size:
        raise ValueError(
            f"temperature must be finite and zero or more; got {bad.flat[0]:g}. "
            "Pass it in the units of J N, with Boltzmann's constant 1."
        )
    return T


def _refuse_nearly_zero(T: Array, pull: float, owner: str) -> None:
    bad = T[(T > 0) & (pull * SMALLEST > T)]
    if bad.size:
        raise ValueError(
            f"temperature must be zero, or at least {SMALLEST:g} of the field on a spin, which is "
            f"{pull:g}, for {owner}; got {bad.flat[0]:g}. Take a higher one, or 0."
        )


def spins_of(magnet: Magnet, given: Array) -> Array:
    """Return a configuration ``(N, n)`` as float64, checked."""
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
    return spins_ND


def _length_variance(n: int) -> float:
    """Return the variance of the length of a vector of n independent standard Gaussians."""
    return n - 2.0 * math.exp(2.0 * (math.lgamma((n + 1) / 2) - math.lgamma(n / 2)))
