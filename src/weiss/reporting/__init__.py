"""Reports of runs and comparisons: a self-contained HTML page, Markdown, LaTeX tables, figures.

`reading` reads folders, `report` and `sections` write the text, `tables` and `pictures` show the
scores, `published` has the paper's numbers, `gallery` queries as images, `document` and `page` the
formats.
"""

from weiss.reporting.gallery import Looked, Query, Row, Tile, choose_queries, retrieval_rows
from weiss.reporting.page import Page
from weiss.reporting.report import write_report

__all__ = [
    "Looked",
    "Page",
    "Query",
    "Row",
    "Tile",
    "choose_queries",
    "retrieval_rows",
    "write_report",
]
