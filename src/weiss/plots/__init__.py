"""Every figure of the package; the only folder that imports matplotlib."""

from weiss.plots.boxes import Boxes, box_panels, box_plots
from weiss.plots.breakdowns import breakdown
from weiss.plots.dependences import Point, costs, dependence
from weiss.plots.drawing import COLOURS, DASHES, HELPFUL_RANGE, MARKERS, TEXT
from weiss.plots.heat_maps import heat_map, heat_panels
from weiss.plots.runs import (
    RETRIEVAL,
    Curve,
    Curves,
    Metrics,
    averaged_curves,
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
    "RETRIEVAL",
    "TEXT",
    "Boxes",
    "Curve",
    "Curves",
    "Metrics",
    "Point",
    "averaged_curves",
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
    "order_parameters",
    "search_history",
    "settling",
]
