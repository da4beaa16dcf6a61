"""Documents: code runs and prints what follows it, links lead somewhere, formulas and lines hold.

GitHub reads a page as Markdown first and looks for ``$`` afterwards: a backslash before a comma is
gone by then, and underscores may have become italics. So no formula may contain what Markdown
changes.
"""

import contextlib
import io
import re
import subprocess
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("docs", "examples", "results", "tests", ".github")
GENERATED = {"report.md", "card.md"}  # written by `weiss report` and `weiss train`
WRITTEN = [
    path
    for place in (ROOT.glob("*.md"), *((ROOT / folder).rglob("*.md") for folder in FOLDERS))
    for path in sorted(place)
    if path.name not in GENERATED
]
LONGEST = 120
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(\n+```text\n(?P<output>.*?)```)?", re.DOTALL)
# A block that trains, optimises or draws every glyph takes seconds: it runs with the slow tests.
LONG = re.compile(r"\b(train|measure_untrained|suggest|glyphs)\(")
OTHER_CODE = re.compile(r"^[ \t]*```[ \t]*(py|py3|python3|pycon|Python)\b", re.MULTILINE)
BLOCKS = [
    pytest.param(
        match["code"],
        match["output"],
        id=f"{path.stem}-{number}",
        marks=pytest.mark.slow if LONG.search(match["code"]) else (),
    )
    for path in PAGES
    for number, match in enumerate(BLOCK.finditer(path.read_text()), start=1)
]
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.DOTALL)
WITH_FORMULAS = [path for path in PAGES if FORMULA.search(CODE.sub("", path.read_text()))]


def named(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_no_python_has_a_name_under_which_it_is_not_run(path):
    assert OTHER_CODE.findall(path.read_text()) == []


@pytest.mark.parametrize(("code", "output"), BLOCKS)
def test_a_code_block_runs_and_prints_what_follows_it(code, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a block writes is not left behind
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "block", "exec"), {"__name__": "block"})
    if output is not None:
        assert printed.getvalue() == output


def test_the_readme_is_short_and_has_code_with_output():
    here = [each for each in BLOCKS if each.id.startswith("README")]
    assert any(each.values[1] for each in here)
    assert not any(each.marks for each in here)
    assert README.count("\n") <= 130


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_manifests_and_scripts_are_whole(path):
    fences = re.findall(r"^```(yaml|bash)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    for kind, text in fences:
        if kind == "bash":
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        else:
            import yaml

            for each in yaml.safe_load_all(text):
                assert {"apiVersion", "kind", "metadata", "spec"} <= set(each)


def test_every_make_target_that_a_document_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = "\n".join(path.read_text() for path in WRITTEN)
    named = {*re.findall(r"`make ([a-z-]+)", text), *re.findall(r"\nmake ([a-z-]+)", README)}
    assert {"demo", "test", "test-hostile", "bench"} <= named <= targets


def anchors(path):
    """The anchors of the headings of a page, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        if not target.startswith("http"):
            there = path.parent / target if target else path
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def long_lines(text):
    """Return the lines of prose that are too long, with their numbers.

    Code, formulas, tables, HTML and headers are not prose; a line that is one link, one picture or
    one word cannot be broken.
    """
    found, fence = [], None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        opened = re.match(r"(```+|\$\$)", stripped)
        if fence is None and opened and not (opened[1] == "$$" and stripped.count("$$") > 1):
            fence = opened[1]
        elif fence is not None:
            fence = None if stripped.endswith(fence) else fence
        elif len(line) > LONGEST and not _cannot_be_broken(stripped):
            found.append((number, line))
    return found


def _cannot_be_broken(line):
    if line.startswith(("|", "<", "#", "$$", "    ")):
        return True
    without_links = re.sub(r"!?\[[^\]]*\]\([^)]*\)|`[^`]*`|\$[^$]*\$", "x", line)
    return " " not in without_links.lstrip("-*> ")


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_prose_has_lines_of_at_most_120_characters(path):
    assert not long_lines(path.read_text())


def test_long_prose_is_found_and_what_cannot_be_broken_is_not():
    words = "word " * 30
    code = f"```\n{words}\n```\n\n$$\n{words}\n$$\n"
    table = f"| {words} |\n<div>{words}</div>\n![{words}](picture.png)\n"
    assert [number for number, _ in long_lines(f"{words}\n{code}{table}- {words}\n")] == [1, 12]


def lost(text):
    """The formulas of a page that Markdown changes."""
    rendered = MarkdownIt("commonmark").enable("table").render(text)
    left = " ".join(unescape(re.sub(r"</?[a-z][^>]*>", "", rendered)).split())
    formulas = [found[0] for found in FORMULA.finditer(CODE.sub("", text))]
    return [each for each in formulas if " ".join(each.split()) not in left]


@pytest.mark.parametrize("path", WITH_FORMULAS, ids=named)
def test_markdown_leaves_formulas_alone_and_blocks_have_blank_lines_around_them(path):
    text = path.read_text()
    assert not lost(text)
    for found in FORMULA.finditer(text):
        if found["block"]:
            assert text[: found.start()].endswith("\n\n"), found[0]
            assert text[found.end() :].startswith("\n\n"), found[0]


def test_there_are_formulas_and_those_that_markdown_changes_are_found():
    assert {"theory.md", "magnet.md", "fluctuations.md"} <= {path.name for path in WITH_FORMULAS}
    for formula in (r"$a\, b$", r"$|x_{i}|_{a} + [y_{i}]_{b}$", r"$\{a\}$"):
        assert lost(f"Some {formula} here.") == [formula]
    assert lost(r"Some $a_i b_j$, `\, $x$` and" "\n\n$$\n\\frac12 c\n$$\n") == []
