"""A report as one self-contained HTML file: no network, no scripts, no other files."""

import base64
import re
from collections.abc import Collection, Sequence
from html import escape
from itertools import count
from pathlib import Path

from weiss._base import images
from weiss._base.files import replacing
from weiss.reporting.gallery import Row, Tile
from weiss.reporting.style import CSS

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
TILE = 76
"""The side of an image of a gallery on the page, in CSS pixels; `style.CSS` says 4.75 rem."""
SHARP = 2 * TILE
"""Larger images are reduced to this, enough for a screen of double resolution."""
KEY = (
    '<span class="right">✓</span> solid border: of the query\'s class; '
    '<span class="wrong">✗</span> dashed border: of another class'
)
MANY = 7
"""A table with more columns has smaller gaps."""
NUMBER = re.compile(r"[<+\-\N{MINUS SIGN}]?\d[\d,.]*+(?:e[+\-\N{MINUS SIGN}]?\d+)?(?!\w)")
CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
"""Characters that no page may hold."""
WORD = r"[^\W\d_]{3,}"
"""Three letters or more: neither a unit nor the 'to' of an interval."""
# The browser fetches nothing, whatever text the page contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Page:
    """A report, built from top to bottom and written as one file; ``lead`` is below the title.

    All text is plain text: markup is escaped. The same calls give the same bytes.

    Example:
        >>> page = Page("Glyphs", "Two losses on characters that training never saw.")
        >>> rows = [["mean field", "61.2"], ["pairs", "55.0"]]
        >>> page.table(["loss", "MAP@R"], rows, best={(0, 1)})
        >>> "<strong>61.2</strong>" in page.html()
        True
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title, self.lead = title, lead
        self._parts: list[str] = []
        self._num_sections = 0

    def heading(self, text: str, level: int = 2) -> None:
        """Start a section (level 2) or a part of one (level 3)."""
        if level not in (2, 3):
            raise ValueError(f"level must be 2 or 3; got {level!r}. The title has level 1.")
        place = ""
        if level == 2:
            self._num_sections += 1
            place = f' id="section-{self._num_sections}"'
        self._parts.append(f"<h{level}{place}>{_text(text)}</h{level}>")

    def announce(self, number: int, heading: str, text: str) -> None:
        """Add a paragraph on a later section, by its number from 1, with a link to it."""
        link = f'<a href="#section-{number}">{_text(heading)}</a>'
        self._parts.append(f"<p>{link}: {_text(text)}</p>")

    def paragraph(self, text: str) -> None:
        """Add a paragraph of plain text."""
        self._parts.append(f"<p>{_text(text)}</p>")

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        best: Collection[tuple[int, int]] = (),
        caption: str = "",
        groups: Sequence[tuple[str, int]] = (),
        apart: Collection[int] = (),
    ) -> None:
        """Add a table. The first column names the rows; columns of numbers are aligned right.

        Args:
            headers: the names of the columns.
            rows: cells, shown by `str`; None is a dash.
            best: the bold cells, as ``(row, column)`` from 0.
            caption: the text below.
            groups: headings above the headers, each with the number of columns it spans, from the
                left; an empty one for columns without a group.
            apart: rows to set apart from those above them, such as baselines.
        """
        uneven = [row for row in rows if len(row) != len(headers)]
        if uneven:
            raise ValueError(
                f"every row must have {len(headers)} cells, one a header; got {len(uneven[0])} in "
                f"{list(uneven[0])!r}. Pass None for a cell without a value."
            )
        outside = [at for at in best if not (0 <= at[0] < len(rows) and 0 <= at[1] < len(headers))]
        if outside:
            raise ValueError(
                f"best must name cells (row, column) of the {len(rows)} x {len(headers)} table, "
                f"from 0; got {outside[0]}. Count without the headers."
            )
        spanned = sum(number for _, number in groups)
        if groups and spanned != len(headers):
            raise ValueError(
                f"groups must span the {len(headers)} columns; got {spanned}. Add empty groups for "
                "columns without one."
            )
        classes = [
            ' class="number"' if are_numbers([row[column] for row in rows]) else ""
            for column in range(len(headers))
        ]
        head = "".join(
            f'<th scope="col"{kind}>{_text(name)}</th>'
            for name, kind in zip(headers, classes, strict=True)
        )
        above = "".join(
            f'<th scope="colgroup" colspan="{number}">{_text(name)}</th>'
            if name
            else f'<td colspan="{number}"></td>'
            for name, number in groups
        )
        above = f'<tr class="groups">{above}</tr>\n' if groups else ""
        body = ""
        for number, row in enumerate(rows):
            cells = [_cell(cell, (number, column) in best) for column, cell in enumerate(row)]
            body += '<tr class="apart">' if number in apart else "<tr>"
            body += f'<th scope="row"{classes[0]}>{cells[0]}</th>' if cells else ""
            body += "".join(
                f"<td{kind}>{cell}</td>" for cell, kind in zip(cells[1:], classes[1:], strict=True)
            )
            body += "</tr>\n"
        look = ' class="many"' if len(headers) > MANY else ""
        self._figure(
            f"{_scroll('table', caption or 'Table')}<table{look}>\n<thead>{above}<tr>{head}</tr>"
            "</thead>\n"
            f"<tbody>\n{body}</tbody>\n</table></div>",
            _text(caption),
        )

    def figure(self, path: str | Path, caption: str = "", *, alt: str = "") -> None:
        """Add a figure from a .png or .svg file, which is read now and becomes part of the page.

        ``alt`` is a description for screen readers; the caption if empty.
        """
        path = Path(path)
        if path.suffix.lower() not in KINDS:
            raise ValueError(
                f"path must end in {' or '.join(KINDS)}; got {path}. Draw it as one of them."
            )
        if not (alt or caption):
            raise ValueError(
                f"caption or alt must describe what {path.name} shows; got neither. "
                "Write a sentence for screen readers."
            )
        # An SVG as an image, not inline: ids of two inline SVGs would collide.
        source = inline(KINDS[path.suffix.lower()], path.read_bytes())
        shown = _text(alt or caption)
        self._figure(
            f'{_scroll("figure", alt or caption)}<img src="{source}" alt="{shown}"></div>',
            _text(caption),
        )

    def code(self, text: str, summary: str, *, folded: bool = True) -> None:
        """Add preformatted text below a summary line that opens and closes it."""
        if not summary:
            raise ValueError("summary must name the text; got nothing. Pass a few words.")
        kind, scroll = "<details>" if folded else "<details open>", _scroll("code", summary)
        self._parts.append(
            f"{kind}<summary>{_text(summary)}</summary>{scroll}<pre>{_text(text)}</pre></div>"
            "</details>"
        )

    def gallery(self, rows: Sequence[Row], caption: str) -> None:
        """Add rows of queries and their neighbours, right and wrong ones marked."""
        shown = ""
        for row in rows:
            tiles = "".join(map(_tile, (row.query, *row.neighbours), count()))
            shown += (
                f'<div class="row"><p><strong>{_text(row.query.name)}</strong> · {_text(row.note)}'
                f'</p>\n<ul class="tiles">\n{tiles}</ul></div>\n'
            )
        content = f"{_scroll('rows', caption)}\n{shown}</div>"
        self._figure(content, f"{_text(caption)}<br>{KEY}")

    def _figure(self, content: str, caption: str) -> None:
        """Add content with its caption, both as markup; only the content scrolls."""
        below = f"\n<figcaption>{caption}</figcaption>" if caption else ""
        self._parts.append(f"<figure>{content}{below}</figure>")

    def html(self) -> str:
        """Return the whole page."""
        lead = f'<p class="lead">{_text(self.lead)}</p>\n' if self.lead else ""
        body = "\n".join(self._parts)
        return whole_page(_text(self.title), CSS, f"{lead}{body}\n")

    def write(self, path: str | Path) -> None:
        """Write the page under a temporary name and rename it; its folder is created."""
        with replacing(path) as temporary:
            # File names may contain bytes that are not text; they become question marks.
            temporary.write_bytes(self.html().encode("utf-8", "replace"))


def whole_page(title: str, css: str, body: str) -> str:
    """Return a page that loads nothing, with its title above the body; both are markup."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{css}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )


def _text(given: object) -> str:
    """Return plain text for a page: markup is escaped, control characters are replaced."""
    return re.sub(CONTROL, "\N{REPLACEMENT CHARACTER}", escape(str(given)))


def _scroll(kind: str, name: str) -> str:
    """Open a part that scrolls by itself, also by keyboard, if it is wider than the page."""
    return f'<div class="scroll {kind}" role="region" tabindex="0" aria-label="{_text(name)}">'


def _cell(cell: object, is_best: bool) -> str:
    shown = "\N{EN DASH}" if cell is None else _text(cell)
    return f"<strong>{shown}</strong>" if is_best else shown


def are_numbers(cells: Sequence[object]) -> bool:
    """Return whether the cells of a column show numbers, with or without an interval.

    None does not count; a name or a sentence that starts with digits is not a number.

    Example:
        >>> are_numbers(["61.2 ± 0.3", None, "<0.001"]), are_numbers(["001.Albatross"])
        (True, False)
    """
    shown = [str(cell) for cell in cells if cell is not None]
    return bool(shown) and all(NUMBER.match(cell) and not _is_sentence(cell) for cell in shown)


def _is_sentence(text: str) -> bool:
    first = re.search(WORD, text)
    return first is not None and bool(re.search(rf"\s{WORD}", text[first.end() :]))


def _tile(tile: Tile, place: int) -> str:
    """Return an image with its name; the place of a neighbour starts at 1, the query's is 0."""
    if tile.is_right is None:
        kind, sign, role = "query", "", "query"
    else:
        kind, sign = ("right", "✓ ") if tile.is_right else ("wrong", "✗ ")
        role = f"neighbour {place}, {kind}"
    pixels = images.reduced(tile.pixels, SHARP)
    # Small images are enlarged without blur.
    look = ' class="small"' if max(pixels.shape[:2]) < TILE else ""
    name, source = _text(tile.name), inline("image/png", images.encode_png(pixels))
    return (
        f'<li class="tile {kind}"><img{look} src="{source}" alt="{role}: {name}" '
        f'width="{pixels.shape[1]}" height="{pixels.shape[0]}">'
        f'<span title="{name}">{sign}<bdi>{name if sign else "query"}</bdi></span></li>\n'
    )


def inline(kind: str, content: bytes) -> str:
    """Return the address of a file that is inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
