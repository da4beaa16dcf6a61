"""No line ends inside an option such as --seeds, nor between a number of a table and its unit."""

import re
from typing import Any

CODE = re.compile(r"<code>[^<]*--[^<]*</code>")
OPTION = re.compile(r"--[a-z][a-z-]*")
CELL = re.compile(r"<td[^>]*>[^<]*</td>")
MEASURED = re.compile(r"(?<=\d) (±|%|ms|s|MiB|GiB)(?![A-Za-z])( (?=\d))?")


def kept_together(found: re.Match[str]) -> str:
    """Return code whose options are not cut after a hyphen, as browsers like to."""
    return OPTION.sub(r'<span class="unbroken">\g<0></span>', found[0])


def with_units(found: re.Match[str]) -> str:
    """Return a cell of a table with spaces that hold numbers and units together."""
    hold = "&nbsp;"
    return MEASURED.sub(lambda each: f"{hold}{each[1]}{hold if each[2] else ''}", found[0])


def on_page_content(content: str, **_: Any) -> str:
    """Hold together what belongs together."""
    return CELL.sub(with_units, CODE.sub(kept_together, content))
