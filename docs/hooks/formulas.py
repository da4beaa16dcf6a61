"""Formulas become MathML when the site is built, so that a page needs no script to show them.

pymdownx.arithmatex finds ``$...$`` and ``$$...$$`` and marks them; here the marked text is
replaced. A formula that cannot be translated stops the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

MARKED = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    re.DOTALL,
)

# The sign is raised already; raised once more, in an index, nobody would see it.
PRIME = re.compile(r"<msup>(<m[io]>[^<]*</m[io]>)<m[io]>&#x02032;</m[io]></msup>")
LONG = 60
"""Characters from which on a formula in a line may be wider than a phone."""


def translated(formula: str, display: str = "inline") -> str:
    """Return the MathML of a formula."""
    written = convert(html.unescape(formula).strip(), display=display)
    left = re.search(r">\\[A-Za-z]+", written)
    if left:
        raise ValueError(f"latex2mathml must know all of a formula, not {left[0][1:]}: {formula}")
    return PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', written)


def mathml(found: re.Match[str]) -> str:
    """Return what stands for one marked formula; a long one can be scrolled sideways."""
    inline, block = found["inline"], found["block"]
    if inline is None:
        return f'<div class="formula" tabindex="0">{translated(block, "block")}</div>'
    if len(inline) < LONG:
        return translated(inline)
    return f'<span class="long-formula">{translated(inline)}</span>'


def on_page_content(content: str, **_: Any) -> str:
    """Replace every marked formula of a page."""
    return MARKED.sub(mathml, content)
