"""The documentation site: it builds without a warning, leads nowhere wrong and loads nothing."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MARKDOWN = sorted(DOCS.rglob("*.md"))
# Attributes that make a browser fetch something, but for the href of an <a>.
FETCHING = {"src", "srcset", "poster", "data", "background", "action"}
pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What a page refers to, its anchors, and its text outside of code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.formulas = 0
        self.text: list[str] = []
        self.silent: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.formulas += tag == "math"
        if tag in ("code", "pre", "script", "style", "math"):
            self.silent.append(tag)
        if tag in ("a", "area") and given.get("href"):
            self.links.append(given["href"])
        elif given.get("href") and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(given["href"])
        self.fetched += [given[name] for name in FETCHING & given.keys() if given[name]]

    def handle_endtag(self, tag):
        if self.silent and self.silent[-1] == tag:
            self.silent.pop()

    def handle_data(self, data):
        if not self.silent:
            self.text.append(data)


def build(out):
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    for needed in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(needed, reason="the site needs the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(out)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def inner(address):
    parts = urlsplit(address)
    return not (parts.scheme or parts.netloc)


def ours(page, site):
    """Return whether a page is made from docs; reports are made elsewhere, 404 has no place."""
    name = page.relative_to(site).as_posix()
    return name != "404.html" and not name.endswith("report.html")


def test_every_document_has_a_page(site):
    for path in MARKDOWN:
        name = path.relative_to(DOCS).as_posix().replace("README.md", "index.md")
        assert (site / name).with_suffix(".html").exists(), name


def test_a_page_loads_nothing_from_elsewhere(pages):
    for path, page in pages.items():
        foreign = [each for each in page.fetched if not inner(each) and each[:5] != "data:"]
        assert not foreign, path


def test_a_stylesheet_loads_nothing_from_elsewhere(site):
    for path in site.rglob("*.css"):
        text = path.read_text()
        addresses = re.findall(r"url\(\s*['\"]?([^'\")]+)", text)
        addresses += re.findall(r"@import\s+['\"]([^'\"]+)", text)
        assert not [each for each in addresses if not inner(each) and each[:5] != "data:"], path


def test_every_link_and_picture_leads_somewhere(pages, site):
    for path, page in pages.items():
        if not ours(path, site):
            continue
        for address in filter(inner, page.links + page.fetched):
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{address} in {path}"
            if parts.fragment and target in pages and address in page.links:
                known = pages[target].anchors | {"__comments"}
                assert unquote(parts.fragment) in known, f"{address} in {path}"


def test_formulas_are_mathml_and_none_is_left_as_it_was_typed(pages, site):
    assert pages[site / "theory.html"].formulas > 50
    for path, page in pages.items():
        if ours(path, site):
            assert not re.search(r"\$[^$\s][^$]*\$|\\\(|\\\[", "".join(page.text)), path


def test_the_index_is_there_for_pages_opened_from_disk(site):
    script = (site / "search" / "search_index.js").read_text()
    assert script == f"var __index = {(site / 'search' / 'search_index.json').read_text()}"


def test_the_drawing_is_what_its_program_draws(tmp_path):
    out = tmp_path / "drawn.svg"
    program = DOCS / "drawings" / "pair_and_field.py"
    subprocess.run([sys.executable, program, "--out", out], check=True, capture_output=True)
    assert out.read_text() == (DOCS / "images" / "pair_and_field.svg").read_text()
