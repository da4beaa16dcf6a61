"""Docstrings here say ``Example:``; the tool that reads them knows ``Examples:`` only."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Call the section by the name that shows it as code with its output."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Look at the docstring of everything that was read."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
