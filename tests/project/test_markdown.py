"""Documents can be read in an editor: prose has lines of at most 120 characters."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "results", "tests", ".github")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]
GENERATED = {"report.md", "card.md"}  # written by `weiss report` and `weiss train`
LONGEST = 120


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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_has_lines_of_at_most_120_characters(path):
    if path.name not in GENERATED:
        assert not long_lines(path.read_text())


def test_long_prose_is_found_and_what_cannot_be_broken_is_not():
    words = "word " * 30
    code = f"```\n{words}\n```\n\n$$\n{words}\n$$\n"
    table = f"| {words} |\n<div>{words}</div>\n![{words}](picture.png)\n"
    assert [number for number, _ in long_lines(f"{words}\n{code}{table}- {words}\n")] == [1, 12]
