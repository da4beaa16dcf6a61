"""Reports: what runs did and found, as one HTML file that needs nothing else, and as tables."""

from weiss.reporting.gallery import Gallery, Query, Row, Tile, choose_queries, retrieval_rows
from weiss.reporting.page import Page
from weiss.reporting.report import write_report
from weiss.reporting.worst_classes import Looked

__all__ = [
    "Gallery",
    "Looked",
    "Page",
    "Query",
    "Row",
    "Tile",
    "choose_queries",
    "retrieval_rows",
    "write_report",
]
