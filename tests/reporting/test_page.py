"""Pages: one file that needs nothing else, in which nothing given is obeyed as markup."""

import base64
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from weiss import figures
from weiss._base import images
from weiss.reporting import Page, Row, Tile
from weiss.reporting.tables import significant

RNG = np.random.default_rng(0)
EVIL = "<script>alert('x')</script> & \"quotes\" \x00"
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Read a page; every tag that is opened must be closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"an attribute of {tag} is given twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def tile(name="A", is_right=None, side=8, channels=1):
    return Tile(RNG.integers(0, 256, (side, side, channels), dtype=np.uint8), name, is_right)


@pytest.fixture
def drawn(tmp_path):
    for suffix in ("png", "svg"):
        figures.search_history({"a": [0.2]}, tmp_path / f"a.{suffix}")
    return tmp_path


def everything(drawn, text="text"):
    page = Page(text, text)
    page.heading(text)
    page.heading(text, 3)
    page.paragraph(text)
    page.table([text, "MAP@R"], [[text, "61.2"], ["b", None]], best={(0, 1)}, caption=text)
    page.figure(drawn / "a.png", text)
    page.figure(drawn / "a.svg", text, alt=text)
    page.gallery([Row(tile(text), (tile(text, True), tile(text, False, 300, 3)), text)], text)
    return page


@pytest.mark.parametrize("text", ["text", EVIL])
def test_a_page_is_well_formed_needs_nothing_else_and_obeys_nothing_as_markup(drawn, text):
    html = everything(drawn, text).html()
    read = Reader(html)
    assert [name for name, _ in read.tags if re.fullmatch(r"h\d", name)] == ["h1", "h2", "h3"]
    assert read.all("html") == [{"lang": "en"}]
    assert len(read.all("img")) == 5
    assert all(image["alt"] for image in read.all("img"))
    # Wherever it stands it is shown as it was given, but for the character no page may hold.
    assert read.text.count(text.replace("\x00", "\N{REPLACEMENT CHARACTER}")) == 16
    assert "\x00" not in html
    for _, attributes in read.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not re.search(r"https?:|url\(|@import", html)
    assert {"link", "script", "iframe"}.isdisjoint(name for name, _ in read.tags)
    # What is wide scrolls by itself, and by keyboard.
    parts = [attributes for attributes in read.all("div") if "scroll" in attributes["class"]]
    assert len(parts) == 4
    assert all(part["tabindex"] == "0" and part["aria-label"] for part in parts)


def test_a_figure_is_embedded_byte_for_byte_and_described_by_its_caption_or_other_words(drawn):
    page = Page("t")
    page.figure(drawn / "a.png", "a caption")
    page.figure(drawn / "a.svg", "a caption", alt="a curve that rises")
    first, second = Reader(page.html()).all("img")
    assert (first["alt"], second["alt"]) == ("a caption", "a curve that rises")
    for image, path, kind in ((first, "a.png", "png"), (second, "a.svg", "svg+xml")):
        head, _, content = image["src"].partition(",")
        assert head == f"data:image/{kind};base64"
        assert base64.b64decode(content) == (drawn / path).read_bytes()
    with pytest.raises(ValueError, match="caption or alt must describe what a.png shows"):
        page.figure(drawn / "a.png")


def test_right_and_wrong_differ_by_sign_word_and_border_and_large_images_are_reduced():
    small, large = tile("A", True, side=8), tile("B", False, side=400, channels=3)
    page = Page("t")
    page.gallery([Row(tile("A"), (small, large), "note")], "caption")
    read = Reader(page.html())
    kinds = [tag["class"] for tag in read.all("li")]
    assert kinds == ["tile query", "tile right", "tile wrong"]
    assert "✓ A" in read.text
    assert "✗ B" in read.text
    alts = [attributes["alt"] for attributes in read.all("img")]
    assert alts == ["query: A", "neighbour 1, right: A", "neighbour 2, wrong: B"]
    assert re.search(r"\.wrong img \{[^}]*border-style: dashed", page.html())
    _, first, second = (base64.b64decode(tag["src"].split(",")[1]) for tag in read.all("img"))
    np.testing.assert_array_equal(images.decode(first, channels=1), small.pixels)
    assert images.decode(second).shape == (152, 152, 3)


def test_best_cells_are_bold_numbers_stand_right_and_none_is_a_dash():
    page = Page("t")
    rows = [["a", "61.2 ± 0.3", 9], ["b", "-55", None]]
    page.table(["loss", "MAP@R", "epoch"], rows, best={(0, 1)})
    html = page.html()
    assert '<td class="number"><strong>61.2 ± 0.3</strong></td>' in html
    assert html.count("<strong>") == 1
    assert '<td class="number">\N{EN DASH}</td>' in html
    assert '<th scope="row">a</th>' in html
    assert '<th scope="col" class="number">MAP@R</th>' in html
    # A name that begins with digits is no number.
    page.table(["class", "p"], [["001.Albatross", "<0.001"], ["2nd", significant(-4e-17)]])
    assert '<th scope="row">001.Albatross</th>' in page.html()
    assert '<td class="number">&lt;0.001</td>' in page.html()
    # However long a text is, to look at it takes no time.
    page.table(["why"], [["1 " + 100_000 * "a"], ["2 or more words"]])
    assert '<th scope="row">2 or more words</th>' in page.html()


def test_tables_that_do_not_fit_are_refused():
    page = Page("t")
    with pytest.raises(ValueError, match="every row must have 2 cells, one a header; got 1"):
        page.table(["a", "b"], [["x"]])
    with pytest.raises(ValueError, match=r"best must name cells.*1 x 2.*got \(1, 0\)"):
        page.table(["a", "b"], [["x", "y"]], best={(1, 0)})
    with pytest.raises(ValueError, match="level must be 2 or 3; got 1"):
        page.heading("t", 1)
    with pytest.raises(ValueError, match="must end in .png or .svg; got a.jpg"):
        page.figure("a.jpg", "caption")


def test_groups_span_their_columns_and_rows_can_be_set_apart():
    page = Page("t")
    rows = [["a", "1", "2"], ["untrained", "0", None]]
    page.table(["loss", "x", "y"], rows, groups=[("", 1), ("both & more", 2)], apart={1})
    html = page.html()
    Reader(html)
    assert '<th scope="colgroup" colspan="2">both &amp; more</th>' in html
    assert '<tr class="apart"><th scope="row">untrained</th>' in html
    with pytest.raises(ValueError, match="groups must span the 2 columns; got 1"):
        page.table(["a", "b"], [], groups=[("x", 1)])


def test_code_keeps_its_lines_and_is_folded_or_not():
    page = Page("t")
    page.code("a = 1\n  <b>", "Recipe")
    page.code("weiss train", "Command", folded=False)
    read = Reader(page.html())
    assert "a = 1\n  <b>" in read.text
    assert read.all("details") == [{}, {"open": None}]
    with pytest.raises(ValueError, match="summary must name the text"):
        page.code("x", "")


def test_a_name_that_is_no_text_can_still_be_written(tmp_path):
    page = Page("file \udcff.png")
    page.write(tmp_path / "a.html")
    assert "file ?.png" in (tmp_path / "a.html").read_text(encoding="utf-8")
