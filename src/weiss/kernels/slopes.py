"""Energies together with their slopes by distance: by heart where known, else through autograd."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from weiss.kernels.problem import Problem


def attraction_and_slope(problem: Problem, dist: Tensor) -> tuple[Tensor, Tensor | float]:
    """Return ``a(d)`` on the scale of its link, and ``a'(d)``; distances of any shape."""
    form = problem.form
    if form is None:
        return _by_autograd(problem.interactions.attraction, dist)
    return _known(form.kind, dist - form.pull_at, form.pull_rate)


def repulsion_and_slope(problem: Problem, dist: Tensor) -> tuple[Tensor, Tensor | float]:
    """Return ``r(d)`` on the scale of its link, and ``r'(d)``; distances of any shape."""
    form = problem.form
    if form is None:
        return _by_autograd(problem.interactions.repulsion, dist)
    energy, slope = _known(form.kind, form.push_at - dist, form.push_rate)
    return energy, -slope


def _known(kind: str, beyond: Tensor, rate: float) -> tuple[Tensor, Tensor | float]:
    """Return the energy and its slope by ``beyond``, how far a pair is on the wrong side."""
    if kind == "hinge":
        return beyond.relu(), (beyond > 0).to(beyond.dtype)
    if kind == "exp":
        return rate * beyond, rate
    exponent = rate * beyond
    return softplus(exponent, threshold=40.0) / rate, exponent.sigmoid()


def _by_autograd(energy: Callable[[Tensor], Tensor], dist: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate a function of each distance alone; what does not depend on it has slope 0."""
    dist = dist.detach().requires_grad_()
    with torch.enable_grad():
        value = energy(dist)
    if not value.requires_grad:
        return value, torch.zeros_like(dist)
    (slope,) = torch.autograd.grad(value, dist, torch.ones_like(value))
    return value.detach(), slope
