"""Reports: what runs did and found, as one HTML file that needs nothing else, and as tables."""

from weiss.report.build import write_report
from weiss.report.gallery import Gallery, Query, Row, Tile, choose_queries, retrieval_rows
from weiss.report.looking import Looked
from weiss.report.page import Page

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
