"""The derivation as pure functions: interactions, distances, membership, both forms of a loss.

`weiss.losses` makes modules of it, `weiss.kernels` computes the same faster; both use its names.
"""

from weiss.theory.interactions import Interactions, LinearLink, Link, LogLink

__all__ = ["Interactions", "LinearLink", "Link", "LogLink"]
