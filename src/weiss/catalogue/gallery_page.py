"""The results of searches as one HTML file, in the style of a report, without scripts."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from weiss._base.arrays import Array
from weiss._base.files import replacing
from weiss._base.images import decode
from weiss.catalogue.records import Hit, in_short, printable, verdict
from weiss.catalogue.search import Catalogue
from weiss.catalogue.segments import make_thumbnail, media_type, thumbnail_file
from weiss.reporting.page import inline, whole_page
from weiss.reporting.style import CSS

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
MOST_HITS = 6
"""Neighbours that are shown beside a doubtful item."""

Search = tuple[str, Array, Sequence[Hit]]
"""The name of a picture, the picture, uint8 ``(height, width, 1 or 3)``, and its hits."""


def write_doubtful(path: str | Path, catalogue: Catalogue) -> None:
    """Write an HTML page of the items that are nearer to another class than to their own."""
    searches, says = [], []
    doubtful = catalogue.doubtful()
    for item, nearer, own, other in doubtful:
        hits = catalogue.search(catalogue.vector(item.id)[None], MOST_HITS, leave_out=[item.id])[0]
        searches.append((item.name, decode(catalogue.thumbnail(item.id)), hits))
        says.append(
            f"Its label is {', '.join(item.class_names)} (similarity {own:.3f} to the others of "
            f"this class), but it lies nearer to {nearer} ({other:.3f}). Below: the nearest items"
        )
    number = len(doubtful)
    lead = (
        f"{number:,} of {len(catalogue):,} images {'lies' if number == 1 else 'lie'} nearer to the "
        "mean of another class than to that of their own, the clearest first. A label may be "
        "wrong, or the classes look alike."
    )
    write_gallery(
        path,
        catalogue,
        searches,
        title=f"Doubtful labels in {catalogue.name}",
        lead=lead,
        says=says,
    )


def write_gallery(
    path: str | Path,
    catalogue: Catalogue,
    searches: Sequence[Search],
    *,
    title: str = "",
    lead: str = "",
    says: Sequence[str] | None = None,
    where: Sequence[str] = (),
) -> None:
    """Write an HTML page of searches in a catalogue; ``where`` are the conditions of its hits.

    ``says`` has a sentence for each search, without its full stop; by default whether it found a
    match. Then matches are marked.
    """
    is_marked = says is None
    words = says or [verdict(hits, catalogue.threshold, where) for *_, hits in searches]
    parts = zip(searches, words, strict=True)
    sections = "".join(_section(catalogue, *search, word, is_marked) for search, word in parts)
    title = _text(title or f"Search in {catalogue.name}")
    only = f" Only items with {' and '.join(where)}." if where else ""
    usual = f"{len(catalogue):,} images, nearest first by the cosine of their embeddings.{only}"
    lead = _text(lead or usual)
    threshold = catalogue.threshold
    basis = ""
    if threshold is not None and is_marked:
        told = f"✓ marks a match. The threshold was measured on {threshold.basis}."
        basis = f'<p class="basis">{_text(told)}</p>'
    body = f'<p class="lead">{lead}</p>\n{sections}{basis}'
    with replacing(path) as temporary:
        temporary.write_text(whole_page(title, CSS + MORE_CSS, body), encoding="utf-8")


def _section(
    catalogue: Catalogue, name: str, pixels: Array, hits: Sequence[Hit], says: str, is_marked: bool
) -> str:
    kept, height, width = make_thumbnail(pixels)
    picture = inline(media_type(height), thumbnail_file(kept, height, width))
    shown = "".join(_hit(catalogue, hit, rank, is_marked) for rank, hit in enumerate(hits, 1))
    return (
        f'<h2>{_name(name)}</h2>\n<div class="asked"><img src="{picture}" '
        f'alt="the query: {_text(name)}">'
        f"<p>{_text(says)}.</p></div>\n"
        f'<ol class="hits">\n{shown}</ol>\n'
    )


def _hit(catalogue: Catalogue, hit: Hit, rank: int, is_marked: bool) -> str:
    kind, content = catalogue.thumbnail_type(hit.item.id), catalogue.thumbnail(hit.item.id)
    classes = ", ".join(hit.item.class_names)
    known = (f"{each}: {in_short(value)}" for each, value in hit.item.columns.items())
    columns = "".join(f"<br>{_text(each)}" for each in known)
    look = ' class="small"' if kind == "image/png" else ""
    match, sign = (" match", "✓ ") if hit.is_match and is_marked else ("", "")
    return (
        f'<li class="hit{match}"><img{look} src="{inline(kind, content)}" '
        f'alt="number {rank}: {_text(classes or hit.item.name)}">{sign}<b>{_name(classes)}</b> '
        f"{hit.similarity:.3f}<br>{_name(hit.item.name)}{columns}</li>\n"
    )


def _name(given: str) -> str:
    """Return a name that a narrow column breaks behind its signs, not within a word."""
    return "<wbr>".join(map(_text, re.split(r"(?<=[_/.\-])", given)))


def _text(given: str) -> str:
    return escape(printable(given))
