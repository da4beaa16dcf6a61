"""Formulas become MathML when the site is built, so that a page needs no script to show them.

pymdownx.arithmatex finds ``$...$`` and ``$$...$$`` and marks them; here the marked text is
replaced. A formula that cannot be translated stops the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

MARKED = re.compile(
    r'(?P<before>[(\["]*)'
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'(?P<after>[)\]".,;:]*)'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    re.DOTALL,
)

# The sign is raised already; raised once more, in an index, nobody would see it.
PRIME = re.compile(r"<msup>(<m[io]>[^<]*</m[io]>)<m[io]>&#x02032;</m[io]></msup>")
# Absolute values: a bar has the room of a bracket, not that of a sign between two numbers.
BAR = re.compile(r'<mo(?: stretchy="false")?>(&#x0007C;|&#x02016;)</mo>')
# Browsers know widths in numbers only.
WIDTHS = {'"thinmathspace"': '"0.167em"', '"negativethinmathspace"': '"-0.167em"'}
SLASH = "<mo>&#x0002F;</mo>"
# A name of several letters: a little room on both sides, none at the ends and before a bracket.
NAME = re.compile(
    r"(?P<follows></(?:mi|mn|msub|msup|msubsup|mfrac)>)?"
    r"<(?P<tag>m[io])>(?P<name>[a-z]{2,})</(?P=tag)>"
    r'(?P<closed>(?=<mo stretchy="false">&#x00028;|</mrow></math>))?'
)
LONG = 60
"""Characters from which on a formula in a line may be wider than a phone."""


def named(found: re.Match[str]) -> str:
    """Return the name of a function with the room that TeX gives it."""
    left = "0.167em" if found["follows"] else "0"
    right = "0" if found["closed"] is not None else "0.167em"
    room = f'form="prefix" lspace="{left}" rspace="{right}"'
    return f"{found['follows'] or ''}<mo {room}>{found['name']}</mo>"


def translated(formula: str, display: str = "inline") -> str:
    """Return the MathML of a formula."""
    written = convert(html.unescape(formula).strip(), display=display)
    left = re.search(r">\\[A-Za-z]+", written)
    if left:
        raise ValueError(f"latex2mathml must know all of a formula, not {left[0][1:]}: {formula}")
    written = PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', written)
    written = BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', written)
    for name, width in WIDTHS.items():
        written = written.replace(name, width)
    written = written.replace(SLASH, '<mo lspace="0.1em" rspace="0.1em">&#x0002F;</mo>')
    return NAME.sub(named, written)


def mathml(found: re.Match[str]) -> str:
    """Return what stands for one marked formula.

    A long one can be scrolled sideways; no line ends between a short one and its brackets or comma.
    """
    inline, block = found["inline"], found["block"]
    if inline is None:
        return f'<div class="formula" tabindex="0">{translated(block, "block")}</div>'
    before, after = found["before"], found["after"]
    if len(inline) >= LONG:
        return f'{before}<span class="long-formula">{translated(inline)}</span>{after}'
    if before or after:
        return f'<span class="unbroken">{before}{translated(inline)}{after}</span>'
    return translated(inline)


def on_page_content(content: str, **_: Any) -> str:
    """Replace every marked formula of a page."""
    return MARKED.sub(mathml, content)
