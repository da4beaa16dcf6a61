"""Formulas reach a reader of the bare Markdown too, on a site that knows ``$`` only after Markdown.

GitHub reads a page as Markdown first: a backslash before a comma is gone by then, and underscores
may have become italics. What is left between dollars is then taken for a formula.
"""

import re
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.DOTALL)
WITH_FORMULAS = [path for path in PAGES if FORMULA.search(CODE.sub("", path.read_text()))]


def plain(text):
    """What a page says once Markdown is done, without tags, spaces made alike."""
    rendered = MarkdownIt("commonmark").enable("table").render(text)
    return " ".join(unescape(re.sub(r"</?[a-z][^>]*>", "", rendered)).split())


def lost(text):
    """The formulas of a page that Markdown changes."""
    left = plain(text)
    formulas = [found[0] for found in FORMULA.finditer(CODE.sub("", text))]
    return [each for each in formulas if " ".join(each.split()) not in left]


@pytest.mark.parametrize("path", WITH_FORMULAS, ids=lambda path: path.name)
def test_markdown_leaves_formulas_alone(path):
    assert not lost(path.read_text())


@pytest.mark.parametrize("path", WITH_FORMULAS, ids=lambda path: path.name)
def test_a_formula_on_lines_of_its_own_has_blank_lines_around_it(path):
    text = path.read_text()
    for found in FORMULA.finditer(text):
        if found["block"]:
            assert text[: found.start()].endswith("\n\n"), found[0]
            assert text[found.end() :].startswith("\n\n"), found[0]


@pytest.mark.parametrize("formula", [r"$a\, b$", r"$|x_{i}|_{a} + [y_{i}]_{b}$", r"$\{a\}$"])
def test_what_markdown_changes_is_found(formula):
    assert lost(f"Some {formula} here.") == [formula]


def test_what_markdown_leaves_alone_is_not_found():
    assert lost(r"Some $a_i b_j$, `\, $x$` and" "\n\n$$\n\\frac12 c\n$$\n") == []


def test_there_are_formulas():
    assert {"theory.md", "magnet.md", "fluctuations.md"} <= {path.name for path in WITH_FORMULAS}
