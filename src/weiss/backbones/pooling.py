"""From maps to one vector: average, maximum, both, or a learned generalised mean.

Dimensions: B batch, F features, h and w height and width of the map.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class AveragePooling(nn.Module):
    """``mean_hw x``."""

    def forward(self, maps: Tensor) -> Tensor:
        """Pool ``(B, F, h, w)`` to ``(B, F)``."""
        return maps.mean(dim=(2, 3))


class MaxPooling(nn.Module):
    """``max_hw x``."""

    def forward(self, maps: Tensor) -> Tensor:
        """Pool ``(B, F, h, w)`` to ``(B, F)``."""
        return maps.amax(dim=(2, 3))


class AverageMaxPooling(nn.Module):
    """``mean_hw x + max_hw x``, the paper's choice for BN-Inception."""

    def forward(self, maps: Tensor) -> Tensor:
        """Pool ``(B, F, h, w)`` to ``(B, F)``."""
        return maps.mean(dim=(2, 3)) + maps.amax(dim=(2, 3))


class GeneralisedMeanPooling(nn.Module):
    """``(mean_hw max(x, eps)^p)^(1/p)`` with a learned p.

    The average at p = 1, the maximum at infinity; a p below 1 counts as 1. Computed in float32 or
    better, and relative to the largest entry of each map, so that no power overflows.

    Args:
        p: the exponent to start from.
        eps: smaller entries, also negative ones, count as this.

    Attributes:
        p: parameter, a scalar.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(p)))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        """Pool ``(B, F, h, w)`` to ``(B, F)``."""
        dtype = torch.promote_types(maps.dtype, torch.float32)
        p = self.p.to(dtype).clamp(min=1.0)
        x_BFhw = maps.to(dtype).clamp(min=self.eps)
        # The value does not depend on the unit, so the gradient needs no path through it.
        unit_BF = x_BFhw.detach().amax(dim=(2, 3))
        mean_BF = (x_BFhw / unit_BF[:, :, None, None]).pow(p).mean(dim=(2, 3))
        return (unit_BF * mean_BF.pow(1.0 / p)).to(maps.dtype)

    def extra_repr(self) -> str:
        """Show the settings when the module is printed."""
        return f"eps={self.eps:g}"


POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "avg": AveragePooling,
    "max": MaxPooling,
    "avg+max": AverageMaxPooling,
    "gem": GeneralisedMeanPooling,
}
"""Every pooling by its name."""
