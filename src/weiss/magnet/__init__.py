"""The infinite-range ferromagnet that the theory of the losses comes from."""

from weiss.magnet.exact import Moments, exact
from weiss.magnet.mean_field import Magnet, State, energy, landscape, mean_field_energy, solve
from weiss.magnet.simulation import Simulated, cool, simulate
from weiss.magnet.transition import Transition, transition

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
    "mean_field_energy",
    "simulate",
    "solve",
    "transition",
]
