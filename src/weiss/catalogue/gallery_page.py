"""The results of searches as one HTML file, in the style of a report, without scripts."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from weiss._base.arrays import Array
from weiss._base.files import replacing
from weiss.catalogue.records import Hit, printable, verdict
from weiss.catalogue.search import Catalogue
from weiss.catalogue.segments import make_thumbnail, media_type, thumbnail_file
from weiss.reporting.style import CSS

# The browser loads nothing, whatever the page contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
MORE_CSS = """
.hits { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .8rem;
        margin: 0; padding: 0; list-style: none; }
.hit { font-size: .82rem; line-height: 1.35; color: var(--soft); }
.hit img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 6px;
           background: var(--tint); border: 3px solid var(--line); }
.hit img.small { image-rendering: pixelated; }
.hit.match img { border-color: var(--right); }
.hit b { color: var(--ink); font-weight: 600; }
.asked { display: flex; flex-wrap: wrap; gap: 1rem; align-items: center; margin: 0 0 1.2rem; }
.asked img { max-width: 10rem; max-height: 10rem; min-width: 4rem; border-radius: 6px;
             border: 3px double var(--ink); }
.asked p { margin: 0; flex: 1 1 14rem; }
.basis { margin-top: 2rem; color: var(--soft); font-size: .9rem; }
"""


Search = tuple[str, Array, Sequence[Hit]]
"""The name of a picture, the picture, uint8 ``(height, width, 1 or 3)``, and its hits."""


def write_gallery(path: str | Path, catalogue: Catalogue, searches: Sequence[Search]) -> None:
    """Write an HTML page of searches in a catalogue."""
    sections = "".join(_section(catalogue, *search) for search in searches)
    title = _text(f"Search in {catalogue.name}")
    lead = f"{len(catalogue):,} images, nearest first by the cosine of their embeddings."
    threshold = catalogue.threshold
    basis = ""
    if threshold is not None:
        words = f"✓ marks a match. The threshold was measured on {threshold.basis}."
        basis = f'<p class="basis">{_text(words)}</p>'
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{CSS}{MORE_CSS}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{title}</h1>\n<p class="lead">{lead}</p>\n{sections}{basis}'
        "</main>\n</body>\n</html>\n"
    )
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _section(catalogue: Catalogue, name: str, pixels: Array, hits: Sequence[Hit]) -> str:
    kept, height, width = make_thumbnail(pixels)
    picture = _data(media_type(height), thumbnail_file(kept, height, width))
    name = _text(name)
    shown = "".join(_hit(catalogue, hit, rank) for rank, hit in enumerate(hits, 1))
    return (
        f'<h2>{name}</h2>\n<div class="asked"><img src="{picture}" alt="the query: {name}">'
        f"<p>{_text(verdict(hits, catalogue.threshold))}.</p></div>\n"
        f'<ol class="hits">\n{shown}</ol>\n'
    )


def _hit(catalogue: Catalogue, hit: Hit, rank: int) -> str:
    kind, content = catalogue.thumbnail_type(hit.item.id), catalogue.thumbnail(hit.item.id)
    classes = _text(", ".join(hit.item.class_names))
    name = _text(hit.item.name)
    look = ' class="small"' if kind == "image/png" else ""
    match = " match" if hit.is_match else ""
    sign = "✓ " if hit.is_match else ""
    return (
        f'<li class="hit{match}"><img{look} src="{_data(kind, content)}" '
        f'alt="number {rank}: {classes or name}">{sign}<b>{classes}</b> {hit.similarity:.3f}'
        f"<br>{name}</li>\n"
    )


def _text(given: str) -> str:
    return escape(printable(given))


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
