"""Every figure of the package; the only folder that imports matplotlib."""

from weiss.plots.averages import Averaged, averaged_curves, averaged_order, order_averages
from weiss.plots.boxes import Boxes, box_panels, box_plots
from weiss.plots.breakdowns import breakdown
from weiss.plots.dependences import Point, costs, dependence
from weiss.plots.drawing import COLOURS, DASHES, HELPFUL_RANGE, MARKERS, TEXT
from weiss.plots.heat_maps import heat_map, heat_panels
from weiss.plots.magnet import magnet_cooling, magnet_name, magnet_transition
from weiss.plots.runs import (
    ORDER,
    RETRIEVAL,
    Curve,
    Curves,
    Metrics,
    comparison,
    learning_curves,
    order_parameters,
)
from weiss.plots.samples import contact_sheet, settling
from weiss.plots.searches import search_history

__all__ = [
    "COLOURS",
    "DASHES",
    "HELPFUL_RANGE",
    "MARKERS",
    "ORDER",
    "RETRIEVAL",
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
