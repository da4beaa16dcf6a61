"""One report in three formats: each part is added once and written as HTML, Markdown and LaTeX.

HTML has everything, Markdown all but the images of galleries, LaTeX only the tables, for a paper.
Figures are files beside them, .svg and .pdf.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from weiss._base.files import replacing
from weiss._version import __version__
from weiss.reporting.gallery import Row
from weiss.reporting.page import CONTROL, Page
from weiss.reporting.tables import MINUS, Cell, Table

DASH = "\N{EN DASH}"
WIDE = 6
"""A table with more columns has smaller letters."""
LONG = 40
"""A column with a text longer than this many characters has several lines in LaTeX."""
BROKEN_HYPHEN = "\x00"
LATEX = {
    BROKEN_HYPHEN: "-{}",
    # At the start of a row LaTeX reads these as arguments of the line break before it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    MINUS: "$-$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    DASH: "--",
    "\N{EM DASH}": "---",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "β": r"$\beta$",
    "δ": r"$\delta$",
    "λ": r"$\lambda$",
}
# Of ASCII digits: other digits are letters without a font.
NUMBER = re.compile(rf"([+{MINUS}-]?)(\d[\d,]*(?:\.\d+)?)(?: ± (\d[\d,]*(?:\.\d+)?))?", re.ASCII)


class Document:
    """A report, built from top to bottom, in three formats at once, as `Page` builds one.

    ``out`` is the .html file; the other files are written beside it with the same stem.
    """

    def __init__(self, out: Path, title: str, lead: str) -> None:
        self.out = out
        self.figures = out.with_name(f"{out.stem}-figures")
        self.written: list[Path] = []
        self._page = Page(title, lead)
        self._markdown = [f"# {markdown_text(title)}", *([markdown_text(lead)] if lead else [])]
        self._latex: list[str] = []
        self._title = title

    def heading(self, text: str, level: int = 2) -> None:
        """Start a section (level 2) or a part of one (level 3)."""
        self._page.heading(text, level)
        self._markdown.append(f"{'#' * level} {markdown_text(text)}")
        self._latex.append(f"% {_one_line(text)}")

    def announce(self, number: int, heading: str, text: str) -> None:
        """Add a paragraph on a later section, by its number; on the page with a link."""
        self._page.announce(number, heading, text)
        self._markdown.append(markdown_text(f"{heading}: {text}"))

    def paragraph(self, text: str) -> None:
        """Add a paragraph of plain text; not in LaTeX."""
        self._page.paragraph(text)
        self._markdown.append(markdown_text(text))

    def table(self, table: Table) -> None:
        """Add a table."""
        self._page.table(**vars(table))
        self._markdown.append(markdown_table(table))
        number = 1 + sum(part.startswith("\\begin{table}") for part in self._latex)
        label = re.sub(r"[^A-Za-z0-9-]+", "-", self.out.stem)
        self._latex.append(latex_table(table, f"tab:{label}-{number}"))

    def figure(self, name: str, draw: Callable[[Path], str | None]) -> None:
        """Draw a figure for screens and for papers, and add it.

        ``name`` is that of its files, without suffix; unique in the report. ``draw`` returns the
        caption; None if there is nothing to draw: then nothing is added.
        """
        path = self.figures / f"{name}.svg"
        caption = draw(path)
        if caption is None:
            return
        draw(path.with_suffix(".pdf"))
        self.written += [path, path.with_suffix(".pdf")]
        self._page.figure(path, caption)
        place = quote(f"{self.figures.name}/{path.name}")
        text = markdown_text(caption)
        self._markdown.append(f"![{text}]({place})\n\n{text}")
        self._latex.append(f"% Figure: {_one_line(f'{self.figures.name}/{name}.pdf')}")

    def gallery(self, rows: Sequence[Row], caption: str) -> None:
        """Add queries and their neighbours; in Markdown without the images."""
        self._page.gallery(rows, caption)
        lines = [f"- {markdown_text(row.query.name)}: {markdown_text(row.note)}" for row in rows]
        where = f"The images are in [{markdown_text(self.out.name)}]({quote(self.out.name)})."
        self._markdown.append("\n".join([f"{markdown_text(caption)} {where}\n", *lines]))

    def code(self, text: str, summary: str, *, folded: bool = True) -> None:
        """Add text with line breaks, such as a recipe, folded if the format can."""
        self._page.code(text, summary, folded=folded)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        body = f"{fence}text\n{re.sub(CONTROL, '?', text).rstrip()}\n{fence}"
        kind = "<details>" if folded else "<details open>"
        opening = f"{kind}<summary>{escape(_one_line(summary), quote=False)}</summary>"
        self._markdown.append(f"{opening}\n\n{body}\n\n</details>")

    def write(self) -> list[Path]:
        """Write the three files; return these and the figures."""
        self._page.write(self.out)
        opening = [
            f"% {_one_line(self._title)}",
            f"% Made by weiss report (Weiss {__version__}); do not edit, run weiss report again.",
            r"% Read it with \input; the document needs \usepackage{booktabs}.",
        ]
        latex = "\n\n".join(["\n".join(opening), *self._latex])
        texts = {".md": "\n\n".join(self._markdown), ".tex": latex}
        for suffix, text in texts.items():
            with replacing(self.out.with_suffix(suffix)) as temporary:
                # File names may contain bytes that are not text; they become question marks.
                temporary.write_bytes(f"{text}\n".encode("utf-8", "replace"))
        return [self.out, *(self.out.with_suffix(suffix) for suffix in texts), *self.written]


def markdown_text(text: str) -> str:
    """Return plain text for Markdown: markup is escaped."""
    text = escape(_one_line(text), quote=False)
    text = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)
    return re.sub(r"^([+-]|\d+[.)])(?=\s|$)", r"\\\1", text)


def markdown_table(table: Table) -> str:
    """Return a table in GitHub's Markdown; headings of groups come before those of columns."""
    above = [name for name, number in table.groups for _ in range(number)]
    headers = [
        markdown_text(f"{group}: {name}" if group else name)
        for group, name in zip(above or [""] * len(table.headers), table.headers, strict=True)
    ]
    rules = ["---:" if table.is_number(at) else "---" for at in range(len(headers))]
    lines = [headers, rules]
    for number, row in enumerate(table.rows):
        cells = []
        for column, cell in enumerate(row):
            shown = DASH if cell is None else markdown_text(cell)
            if (number, column) in table.best:
                shown = f"**{shown}**"
            elif column == 0 and number in table.apart:
                shown = f"*{shown}*"
            cells.append(shown)
        lines.append(cells)
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{body}\n\n{markdown_text(table.caption)}" if table.caption else body


def latex_text(text: str) -> str:
    """Return plain text for LaTeX: special characters are escaped, unknown ones left out."""
    text = _one_line(text)
    # Two hyphens would become a dash, but options of commands start with them.
    text = re.sub("-(?=-)", BROKEN_HYPHEN, text)
    # A letter without a font stops the compiler: it is left out; a text of such letters alone
    # becomes a question mark.
    known = "".join(letter for letter in text if letter in LATEX or ord(letter) < 0x180).strip()
    known = known if known or not text else "?"
    return "".join(LATEX.get(letter, letter) for letter in known)


def latex_cell(cell: Cell, *, is_best: bool = False) -> str:
    """Return a cell: numbers in math mode, None as a dash, the best one bold."""
    if cell is None:
        return "--"
    found = NUMBER.fullmatch(cell)
    if found is None:
        return rf"\textbf{{{latex_text(cell)}}}" if is_best else latex_text(cell)
    sign, mean, half = found.groups()
    sign, mean = sign.replace(MINUS, "-"), mean.replace(",", "{,}")
    shown = rf"\mathbf{{{sign}{mean}}}" if is_best else f"{sign}{mean}"
    return f"${shown}$" if half is None else rf"${shown} \pm {half.replace(',', '{,}')}$"


def latex_table(table: Table, label: str) -> str:
    """Return a table environment with the rules of booktabs."""
    width = len(table.headers)
    longest = [max((len(row[at] or "") for row in table.rows), default=0) for at in range(width)]
    is_long = [longest[at] > LONG and not table.is_number(at) for at in range(width)]
    # Columns of sentences share the width that the others leave.
    share = max(0.9 - 0.1 * (width - sum(is_long)), 0.4) / max(sum(is_long), 1)
    kinds = "".join(
        rf"p{{{share:.2f}\linewidth}}" if is_long[at] else "r" if table.is_number(at) else "l"
        for at in range(width)
    )
    lines = [r"\begin{table}[t]", r"\centering"]
    lines += [r"\footnotesize"] if width > WIDE else []
    lines += [rf"\caption{{{latex_text(table.caption)}}}"]
    lines += [rf"\label{{{label}}}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
    if table.groups:
        heads, rules, at = [], [], 1
        for name, number in table.groups:
            heads.append(rf"\multicolumn{{{number}}}{{c}}{{{latex_text(name)}}}")
            rules += [rf"\cmidrule(lr){{{at}-{at + number - 1}}}"] if name else []
            at += number
        lines += [" & ".join(heads) + r" \\", *(["".join(rules)] if rules else [])]
    lines += [" & ".join(map(latex_text, table.headers)) + r" \\", r"\midrule"]
    for number, row in enumerate(table.rows):
        if number in table.apart and number and number - 1 not in table.apart:
            lines.append(r"\midrule")
        cells = [
            latex_cell(cell, is_best=(number, column) in table.best)
            for column, cell in enumerate(row)
        ]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """Return text in one line, so that a comment cannot end early; control characters as ?."""
    return re.sub(r"\s+", " ", re.sub(CONTROL, "?", text)).strip()
