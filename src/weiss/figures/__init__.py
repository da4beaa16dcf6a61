"""Every figure of the package; the only folder that imports matplotlib."""

from weiss.figures.averages import Averaged, averaged_curves, averaged_order, order_averages
from weiss.figures.boxes import Boxes, box_panels, box_plots
from weiss.figures.breakdowns import breakdown
from weiss.figures.dependences import Point, costs, dependence
from weiss.figures.drawing import COLOURS, DASHES, HELPFUL_RANGE, MARKERS, TEXT
from weiss.figures.heat_maps import heat_map, heat_panels
from weiss.figures.magnet import magnet_cooling, magnet_name, magnet_transition
from weiss.figures.runs import (
    ORDER,
    Curve,
    Curves,
    Metrics,
    comparison,
    learning_curves,
    order_parameters,
)
from weiss.figures.samples import contact_sheet, settling
from weiss.figures.searches import search_history

__all__ = [
    "COLOURS",
    "DASHES",
    "HELPFUL_RANGE",
    "MARKERS",
    "ORDER",
    "TEXT",
    "Averaged",
    "Boxes",
    "Curve",
    "Curves",
    "Metrics",
    "Point",
    "averaged_curves",
    "averaged_order",
    "box_panels",
    "box_plots",
    "breakdown",
    "comparison",
    "contact_sheet",
    "costs",
    "dependence",
    "heat_map",
    "heat_panels",
    "learning_curves",
    "magnet_cooling",
    "magnet_name",
    "magnet_transition",
    "order_averages",
    "order_parameters",
    "search_history",
    "settling",
]
