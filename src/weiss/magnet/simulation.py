"""The magnet on a computer: spins drawn one after another in the field of all others.

A *heat bath* draws spin i from its exact distribution in the field of the rest,
``J sum_{j != i} S_j + h``, which leaves the Gibbs distribution invariant. The sum of the spins is
kept, so a step costs the same for any N. Many independent copies, at many temperatures, take each
step together; the scatter between them is the error of their mean.

Dimensions: N spins, W copies (walkers), T temperatures, D = n components.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss.magnet.mean_field import Magnet, solve, temperatures_of

WEAKEST = 1e-9
"""Smaller fields over temperature get a random direction."""
COLDEST = 1e-12
"""Replaces lower temperatures, in units of the coupling: the spins are parallel there."""


@dataclass(frozen=True)
class Simulated:
    """Averages ``(T,)`` over copies and sweeps, as in `weiss.magnet.Moments`, and their errors.

    Without a field the susceptibility is ``N E[M . M] / (n T)``. ``errors`` holds one standard
    error of each average, by name: a jackknife over the copies.
    """

    temperature: Array
    length: Array
    square: Array
    along: Array
    energy: Array
    susceptibility: Array
    fluctuation: Array
    errors: dict[str, Array]


def simulate(
    magnet: Magnet,
    temperatures: Sequence[float] | Array,
    num_spins: int,
    *,
    copies: int = 32,
    sweeps: int = 300,
    warm_up: int = 100,
    seed: int = 0,
) -> Simulated:
    """Simulate a magnet at several temperatures.

    Args:
        magnet: which.
        temperatures: ``(T,)``, above zero.
        num_spins: N.
        copies: W, independent magnets at each temperature; at least two.
        sweeps: how often each spin is drawn and measured.
        warm_up: sweeps before, without measuring; from random spins, or in an outer field from
            parallel spins.
        seed: of numpy's generator; the same seed gives the same numbers.

    Example:
        >>> from weiss.magnet import Magnet, exact, simulate
        >>> found = simulate(Magnet(n=2), [0.3], num_spins=20, sweeps=50, warm_up=30)
        >>> gap = found.length[0] - exact(Magnet(n=2), 0.3, 20).length
        >>> bool(abs(gap) < 4 * found.errors["length"][0])
        True
    """
    T = _list_of(magnet, temperatures, above_zero=True)
    copies = checks.count("copies", copies, "simulate", least=2)
    sweeps = checks.count("sweeps", sweeps, "simulate")
    warm_up = checks.count("warm_up", warm_up, "simulate", least=0)
    bath = HeatBath(magnet, np.tile(T, copies), num_spins, seed)
    if magnet.field:
        bath.align()
    sums_4R = np.zeros((4, len(bath.temperature)))
    for sweep in range(warm_up + sweeps):
        bath.sweep()
        if sweep >= warm_up:
            mean_RD = bath.total_RD / bath.num_spins
            square_R = (mean_RD**2).sum(axis=1)
            sums_4R += [np.sqrt(square_R), square_R, mean_RD[:, 0], mean_RD[:, 0] ** 2]
    means_4WT = (sums_4R / sweeps).reshape(4, copies, len(T))
    values = _derived(magnet, T, bath.num_spins, means_4WT.mean(axis=1))
    # A jackknife: the same without one copy, for each of them.
    others_4WT = (means_4WT.sum(axis=1, keepdims=True) - means_4WT) / (copies - 1)
    again = _derived(magnet, T, bath.num_spins, others_4WT)
    errors = {
        name: np.sqrt((copies - 1) * ((each - each.mean(axis=0)) ** 2).mean(axis=0))
        for name, each in again.items()
    }
    return Simulated(temperature=T, errors=errors, **values)


def cool(
    magnet: Magnet,
    temperatures: Sequence[float] | Array,
    num_spins: int,
    *,
    sweeps: int = 1,
    seed: int = 0,
) -> Array:
    """Simulate one magnet at temperatures ``(T,)``, in order, and return its spins ``(T, N, n)``.

    Each spin is drawn ``sweeps`` times at each temperature, which may be zero.
    """
    T, sweeps = _list_of(magnet, temperatures), checks.count("sweeps", sweeps, "cool")
    bath = HeatBath(magnet, T[:1], num_spins, seed)
    found = np.empty((len(T), bath.num_spins, magnet.n))
    for place, temperature in enumerate(T):
        bath.temperature = np.array([temperature])
        for _ in range(sweeps):
            bath.sweep()
        found[place] = bath.spins_NRD[:, 0]
    return found


class HeatBath:
    """Copies of a magnet, each at its temperature ``(R,)``; they start with random spins.

    Attributes:
        spins_NRD: all spins ``(N, R, n)``.
        total_RD: their sums ``(R, n)``.
    """

    def __init__(self, magnet: Magnet, temperature: Array, num_spins: int, seed: int) -> None:
        self.magnet, self.temperature = magnet, temperature
        self.num_spins = checks.count("num_spins", num_spins, "")
        self._generator = np.random.default_rng(checks.count("seed", seed, "", least=0))
        drawn = self._generator.standard_normal((self.num_spins, len(temperature), magnet.n))
        self.spins_NRD = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
        self.total_RD = self.spins_NRD.sum(axis=0)

    def _draw(self, field_RD: Array) -> Array:
        warmth_R = np.maximum(self.temperature, COLDEST * self.magnet.coupling)
        return draw_spins(self._generator, field_RD / warmth_R[:, None])

    def align(self) -> None:
        """Make all spins of a copy parallel; the direction is drawn in the outer field.

        From random spins a cold Ising magnet would fall to either side with equal chance, and stay
        there for longer than any simulation.
        """
        pull_RD = np.zeros_like(self.total_RD)
        mean_R = np.abs(solve(self.magnet, self.temperature).magnetisation)
        pull_RD[:, 0] = self.num_spins * self.magnet.field * mean_R
        self.spins_NRD[:] = self._draw(pull_RD)

    def sweep(self) -> None:
        """Draw every spin once, one after another."""
        exchange = self.magnet.coupling / self.num_spins
        self.total_RD = self.spins_NRD.sum(axis=0)  # again: rounding must not accumulate
        for spin_RD in self.spins_NRD:
            field_RD = exchange * (self.total_RD - spin_RD)
            field_RD[:, 0] += self.magnet.field
            drawn_RD = self._draw(field_RD)
            self.total_RD += drawn_RD - spin_RD
            spin_RD[:] = drawn_RD


def draw_spins(generator: np.random.Generator, field_RD: Array) -> Array:
    """Draw a spin in each field from its exact distribution ``e^{x . S}``.

    One component: up with chance ``1 / (1 + e^{-2x})``. Two: von Mises' distribution of the angle.
    Three: the cosine to the field has the density ``e^{x c}`` on [-1, 1], whose integral can be
    inverted, ``c = 1 + log(1 - u (1 - e^{-2x})) / x`` with u uniform. Fields over temperatures and
    spins are ``(R, n)``.
    """
    rows, n = field_RD.shape
    if n == 1:
        with np.errstate(over="ignore"):
            chance_R1 = 1.0 / (1.0 + np.exp(-2.0 * field_RD))
        return np.where(generator.random((rows, 1)) < chance_R1, 1.0, -1.0)
    if n == 2:
        size_R = np.hypot(field_RD[:, 0], field_RD[:, 1])
        angle_R = np.arctan2(field_RD[:, 1], field_RD[:, 0])
        angle_R = generator.vonmises(angle_R, size_R)
        return np.stack([np.cos(angle_R), np.sin(angle_R)], axis=1)
    size_R1 = np.sqrt((field_RD**2).sum(axis=1, keepdims=True))
    weak_R1 = size_R1 < WEAKEST
    if weak_R1.any():
        # Without a direction the spin would not have unit length.
        field_RD = np.where(weak_R1, generator.standard_normal((rows, n)), field_RD)
    axis_RD = field_RD / np.sqrt((field_RD**2).sum(axis=1, keepdims=True))
    size_R1 = np.maximum(size_R1, WEAKEST)
    cosine_R1 = 1.0 + np.log1p(generator.random((rows, 1)) * np.expm1(-2.0 * size_R1)) / size_R1
    cosine_R1 = np.maximum(cosine_R1, -1.0)
    around_RD = generator.standard_normal((rows, n))
    around_RD -= (around_RD * axis_RD).sum(axis=1, keepdims=True) * axis_RD
    around_RD /= np.sqrt((around_RD**2).sum(axis=1, keepdims=True))
    found: Array = cosine_R1 * axis_RD + np.sqrt(1.0 - cosine_R1**2) * around_RD
    return found


def _derived(magnet: Magnet, T: Array, N: int, means: Array) -> dict[str, Array]:
    length, square, along, along_square = means
    # Without a field all directions are equal, and their sum has less noise.
    variance = along_square - along**2 if magnet.field else square / magnet.n
    return {
        "length": length,
        "square": square,
        "along": along,
        "energy": -0.5 * magnet.coupling * square - magnet.field * along,
        "susceptibility": N * variance / T,
        "fluctuation": N * (square - length**2) / T,
    }


def _list_of(magnet: Magnet, given: object, *, above_zero: bool = False) -> Array:
    T = np.atleast_1d(temperatures_of(magnet, given, above_zero=above_zero))
    if T.ndim != 1 or not T.size:
        raise ValueError(
            f"temperatures must be a list of at least one number; got shape {T.shape}. "
            "Pass a flat list."
        )
    return T
