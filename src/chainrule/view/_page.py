"""Pages that need nothing else: one file with a script, a style and data; live, saved, or in a cell.

The page's policy lets it load nothing from elsewhere: no file, no font, no address but its own.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import orjson

from chainrule._codec import encode_array
from chainrule._trees import map_leaves
from chainrule._web import join_modules, read_folder, shared_files


def page(entry: str, title: str, data: Any, markup: str = "") -> str:
    """A whole document.

    Args:
        entry: the script that it starts with, such as `watch.js`.
        title: of the tab.
        data: what the script reads: JSON, and arrays in the form of the wire.
        markup: HTML that the script finds in `#main`.
    """
    # `</script>` inside a text would end the element that holds the data.
    text = to_json(data).decode().replace("<", "\\u003c")
    style, script = _parts(entry)
    return _template().substitute(
        title=escape(title), style=style, script=script, data=text, markup=markup
    )


def frame_of(address: str, title: str, height: int) -> str:
    """A page at an address for the output of a notebook's cell."""
    return (
        f'<iframe src="{escape(address)}" title="{escape(title)}" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def cell(document: str, title: str, height: int) -> str:
    """A document for the output of a notebook's cell: a frame that takes the height of what is in it."""
    return (
        f'<iframe srcdoc="{escape(document)}" title="{escape(title)}" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def to_json(data: Any) -> bytes:
    """JSON of data with arrays; numbers that JSON does not have are the texts `nan`, `inf` and `-inf`."""
    plain = map_leaves(_as_json, data, plain=True)
    return orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS)


def _as_json(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return encode_array(leaf, encoding="base64")
    return str(leaf) if isinstance(leaf, float) and not np.isfinite(leaf) else leaf


@cache
def _files() -> dict[str, str]:
    return {**shared_files(), **read_folder(files("chainrule.view") / "_web")}


@cache
def _template() -> Template:
    return Template(_files()["view.html"])


@cache
def _parts(entry: str) -> tuple[str, str]:
    texts = _files()
    return texts["theme.css"] + texts["view.css"], join_modules(entry, texts.__getitem__)
