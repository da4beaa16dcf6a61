"""Reports: what a run did and found, as one HTML file that needs nothing else."""

from weiss.report.gallery import Gallery, Query, Row, Tile, choose_queries, retrieval_rows
from weiss.report.page import Page

__all__ = ["Gallery", "Page", "Query", "Row", "Tile", "choose_queries", "retrieval_rows"]
