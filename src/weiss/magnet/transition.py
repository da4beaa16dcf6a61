"""The transition of a magnet three ways: mean field theory, finite N exactly, and simulated."""

import math
from dataclasses import dataclass

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss.magnet.exact import exact
from weiss.magnet.mean_field import Magnet, check_magnet, solve
from weiss.magnet.simulation import simulate

HOTTEST = 2.0
"""The default last temperature, in critical temperatures."""
CLOSE = 0.2
"""Half of the interval with more points around the transition, in critical temperatures."""


@dataclass(frozen=True)
class Transition:
    """A magnet of N spins below, at and above its critical temperature.

    Attributes:
        magnet: which.
        num_spins: N.
        seed: of the simulation.
        lines: for each name an array ``(T,)``, on a fine grid: ``temperature``; ``theory_length``
            and ``theory_fluctuation``, for N to infinity; ``exact_length`` and
            ``exact_fluctuation``, for N.
        dots: for each name an array ``(t,)``, at a few temperatures: ``temperature``; ``length``,
            ``fluctuation`` and ``energy`` with ``*_error`` and ``*_exact``.
    """

    magnet: Magnet
    num_spins: int
    seed: int
    lines: dict[str, Array]
    dots: dict[str, Array]

    def deviations(self) -> Array:
        """Return ``(t,)``, simulated less exact length in standard errors; nan if none varied."""
        gap, error = self.dots["length"] - self.dots["length_exact"], self.dots["length_error"]
        found: Array = np.divide(gap, error, out=np.full_like(gap, np.nan), where=error > 0)
        return found


def transition(
    magnet: Magnet,
    num_spins: int,
    *,
    seed: int = 0,
    hottest: float | None = None,
    num_lines: int = 101,
    num_dots: int = 20,
    copies: int = 96,
    sweeps: int = 120,
) -> Transition:
    """Find magnetisation and fluctuation from far below the critical temperature to above it.

    Args:
        magnet: which, without a field.
        num_spins: N, at least two.
        seed: of the simulation.
        hottest: the last temperature, by default twice the critical one; the simulation never
            goes beyond that.
        num_lines: temperatures of the lines, about half of them close to the transition.
        num_dots: temperatures of the simulation.
        copies: see `simulate`.
        sweeps: see `simulate`.
    """
    check_magnet(magnet)
    if magnet.field:
        raise ValueError(
            f"field must be 0 for transition; got {magnet.field:g}. In a field there is none."
        )
    num_spins = checks.count("num_spins", num_spins, "transition", least=2)
    num_lines = checks.count("num_lines", num_lines, "transition")
    num_dots = checks.count("num_dots", num_dots, "transition")
    critical = magnet.critical_temperature
    hottest = HOTTEST * critical if hottest is None else hottest
    end = checks.number("hottest", hottest, "transition", above=0.0)
    evenly = np.linspace(0.0, end, num_lines // 2 + 2)[1:]
    close = critical * (1.0 + np.linspace(-CLOSE, CLOSE, num_lines // 2 + 1))
    fine = np.unique(np.concatenate([evenly, close[close <= end]]))
    few = np.linspace(0.0, min(HOTTEST * critical, end), num_dots + 1)[1:]
    # At the transition correlations last sqrt(N) sweeps.
    warm_up = 40 + math.ceil(4 * math.sqrt(num_spins))
    found = simulate(
        magnet, few, num_spins, copies=copies, sweeps=sweeps, warm_up=warm_up, seed=seed
    )
    theory = solve(magnet, fine)
    counted = [exact(magnet, float(T), num_spins) for T in fine]
    at_dots = [exact(magnet, float(T), num_spins) for T in few]
    dots = {"temperature": few}
    for name in ("length", "fluctuation", "energy"):
        dots[name] = getattr(found, name)
        dots[f"{name}_error"] = found.errors[name]
        dots[f"{name}_exact"] = np.array([getattr(each, name) for each in at_dots])
    lines = {
        "temperature": fine,
        "theory_length": theory.magnetisation,
        "theory_fluctuation": theory.fluctuation,
        "exact_length": np.array([each.length for each in counted]),
        "exact_fluctuation": np.array([each.fluctuation for each in counted]),
    }
    return Transition(magnet, num_spins, seed, lines, dots)
