"""The infinite-range ferromagnet that the theory of the losses comes from."""

from weiss.magnet.exact import Moments, exact
from weiss.magnet.mean_field import (
    Magnet,
    State,
    energy,
    landscape,
    log_partition,
    mean_field_energy,
    mean_slope,
    mean_spin,
    residual,
    solve,
)
from weiss.magnet.simulation import Simulated, cool, simulate
from weiss.magnet.transition import Transition, largest_deviation, transition

__all__ = [
    "Magnet",
    "Moments",
    "Simulated",
    "State",
    "Transition",
    "cool",
    "energy",
    "exact",
    "landscape",
    "largest_deviation",
    "log_partition",
    "mean_field_energy",
    "mean_slope",
    "mean_spin",
    "residual",
    "simulate",
    "solve",
    "transition",
]
