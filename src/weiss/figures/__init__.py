"""Every figure of the package; the only folder that imports matplotlib.

A figure is written to ``path`` as PNG, SVG or PDF, by its suffix; its folder is created.
"""

from weiss.figures.comparisons import Boxes, box_panels, heat_panels, search_history
from weiss.figures.curves import (
    ORDER,
    Averaged,
    averaged_curves,
    averaged_order,
    averages,
    learning_curves,
    order_parameters,
)
from weiss.figures.dependences import Point, breakdown, costs, dependence
from weiss.figures.drawing import COLOURS
from weiss.figures.magnet import magnet_cooling, magnet_transition
from weiss.figures.samples import Found, attribute_rows, draw_sheet, settling
from weiss.figures.spreads import corrections, residuals

__all__ = [
    "COLOURS",
    "ORDER",
    "Averaged",
    "Boxes",
    "Found",
    "Point",
    "attribute_rows",
    "averaged_curves",
    "averaged_order",
    "averages",
    "box_panels",
    "breakdown",
    "corrections",
    "costs",
    "dependence",
    "draw_sheet",
    "heat_panels",
    "learning_curves",
    "magnet_cooling",
    "magnet_transition",
    "order_parameters",
    "residuals",
    "search_history",
    "settling",
]
