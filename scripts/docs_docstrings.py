"""Docstrings as the reference shows them: an extension of griffe, which reads them for mkdocstrings.

The examples of a docstring are code. Of a package's docstring the reference shows the first paragraph; the
rest is for readers of the source.
"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.M)  # griffe knows the section `Examples`


class Docstrings(griffe.Extension):
    """Changes the text of docstrings before griffe divides it into sections."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring is None:
            return
        text = _EXAMPLE.sub("Examples:", obj.docstring.value)
        obj.docstring.value = text.partition("\n\n")[0] if obj.is_module else text
