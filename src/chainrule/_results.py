"""`Result`: what an endpoint gives, as a dictionary that can be looked at.

A line of a result is a leaf: its path, its type (`f64[3,4]`), its units, and its value, or for a large array
the range of its values. The terminal and `str` show the lines, a notebook adds a small picture of each array.
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

import numpy as np

from chainrule._describe import describe_array, describe_type
from chainrule._paths import join_path, path_to_pattern
from chainrule._tables import Html, html_table
from chainrule._trees import is_arraylike, iterate_leaves

_FEW = 6  # elements of an array that are written out
_LONGEST = 60  # characters of a text that are shown
_POINTS = 120  # of a curve in a thumbnail
_PIXELS = 64  # along a side of a thumbnail
_WIDTH, _HEIGHT = 120, 36

Units = Callable[[], Mapping[str, str]]
"""Path pattern → units, asked for when a result is shown."""


@dataclass(frozen=True)
class Line:
    """One leaf of a result, for people."""

    path: str
    type: str
    units: str
    text: str
    value: Any


class Result(dict[str, Any]):
    """The answer of an endpoint: a dictionary whose `str` and notebook view are made for people.

    Copies and pickles of it are plain dictionaries. JAX takes it for a tree, as it does dictionaries.

    Example:
        >>> print(Result({"lift": 1.25, "pressure": np.linspace(0.0, 1.0, 101)}))
        lift      float     1.25
        pressure  f64[101]  min 0 · mean 0.5 · max 1
    """

    _units: Units | None = None

    @classmethod
    def of(cls, answer: Any, units: Units | None = None) -> Any:
        """An answer that is a dictionary as a result; anything else as it is."""
        if type(answer) is not dict:
            return answer
        if "jax" in sys.modules:
            _register_with_jax()
        result = cls(answer)
        result._units = units
        return result

    def lines(self) -> list[Line]:
        """The leaves, in the order of the dictionary."""
        units = {} if self._units is None else self._units()
        found = []
        for segments, value in iterate_leaves(dict(self), _is_one_line):
            # Keys of derivatives are paths themselves: `section.height`, not `{section.height}`.
            path = ".".join(f"[{s}]" if isinstance(s, int) else str(s) for s in segments)
            own = units.get(path_to_pattern(join_path(*segments)), "")
            found.append(Line(path, _type_of(value), own, _text(value), value))
        return found

    def __str__(self) -> str:
        rows = [
            (line.path, line.type, f"{line.text} {line.units}".rstrip()) for line in self.lines()
        ]
        widths = [max((len(row[k]) for row in rows), default=0) for k in (0, 1)]
        return "\n".join(
            f"{path:<{widths[0]}}  {kind:<{widths[1]}}  {text}" for path, kind, text in rows
        )

    def _repr_html_(self) -> str:
        rows = (
            (
                Html(f"<code>{escape(line.path)}</code>"),
                Html(f"<code>{escape(line.type)}</code>"),
                f"{line.text} {line.units}",
                Html(_thumbnail(line.value, line.path)),
            )
            for line in self.lines()
        )
        return html_table(rows, has_row_heads=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)


@cache
def _register_with_jax() -> None:
    """Let JAX take results apart, once; it knows dictionaries by their exact type only."""
    import jax

    def flatten(result: Result) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        keys = tuple(sorted(result))
        return [(jax.tree_util.DictKey(key), result[key]) for key in keys], keys

    jax.tree_util.register_pytree_with_keys(
        Result, flatten, lambda keys, values: Result(zip(keys, values, strict=True))
    )


def _is_one_line(node: Any) -> bool:
    """Whether a container is shown by itself: an empty one, or the shape and dtype of an array."""
    return isinstance(node, dict | list | tuple) and (not node or _is_abstract(node))


def _is_abstract(node: Any) -> bool:
    is_pair = isinstance(node, dict) and node.keys() == {"shape", "dtype"}
    return is_pair and isinstance(node["shape"], list | tuple)


def _type_of(value: Any) -> str:
    if _is_abstract(value):
        return describe_type(tuple(value["shape"]), value["dtype"])
    return describe_array(value) if is_arraylike(value) else type(value).__name__


def _text(value: Any) -> str:
    """The value, or what can be said of it in a line."""
    if _is_abstract(value):
        return ""
    if not is_arraylike(value):
        text = value if isinstance(value, str) else _number(value)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    array = np.asarray(value)
    if array.ndim == 0:
        return _number(array[()])
    if array.size <= _FEW:
        return " ".join(np.array2string(array, precision=6, separator=", ").split())
    if array.dtype.kind not in "biufc":
        return f"{array.size} values"
    return range_text(array)


def range_text(array: np.ndarray) -> str:
    """`min 0 · mean 0.5 · max 1` of an array; complex numbers by their absolute values."""
    real = np.abs(array) if array.dtype.kind == "c" else array.astype(float)
    finite = real[np.isfinite(real)]
    odd = array.size - finite.size
    parts = [f"{odd} not finite"] if odd else []
    if finite.size:
        words = ("min", finite.min()), ("mean", finite.mean()), ("max", finite.max())
        parts = [f"{name} {_number(value)}" for name, value in words] + parts
    text = " · ".join(parts)
    return f"|·| {text}" if array.dtype.kind == "c" else text


def _number(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}"
    return str(value)


# Pictures of a notebook


def _thumbnail(value: Any, name: str) -> str:
    """A curve or an image of an array as HTML; empty where there is nothing to see."""
    if not is_arraylike(value):
        return ""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.size < 3:
        return ""
    real = np.abs(array) if array.dtype.kind == "c" else array.astype(float)
    while real.ndim > 2:
        real = real[0]
    if real.ndim == 1:
        return _curve(real, name)
    return _image(real, name)


def _curve(values: np.ndarray, name: str) -> str:
    shown = values[np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int)]
    low, high = _limits(shown)
    x = np.linspace(2, _WIDTH - 2, len(shown))
    y = _HEIGHT - 3 - (_HEIGHT - 6) * (shown - low) / (high - low)
    pieces = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b)]
    return (
        f'<svg role="img" aria-label="curve of {escape(name)}" width="{_WIDTH}" height="{_HEIGHT}">'
        f'<polyline points="{" ".join(pieces)}" fill="none" stroke="#6366f1" stroke-width="1.5"/></svg>'
    )


def _image(field: np.ndarray, name: str) -> str:
    rows, columns = (
        np.linspace(0, size - 1, min(size, _PIXELS)).astype(int) for size in field.shape
    )
    shown = field[np.ix_(rows, columns)]
    low, high = _limits(shown)
    share = np.nan_to_num((shown - low) / (high - low), nan=0.5, posinf=1.0, neginf=0.0)
    height = min(96, max(24, round(_WIDTH * field.shape[0] / field.shape[1])))
    data = base64.b64encode(
        _png(_colour_table()[np.clip(255 * share, 0, 255).astype(int)])
    ).decode()
    return (
        f'<img alt="image of {escape(name)}" src="data:image/png;base64,{data}" '
        f'style="width:{_WIDTH}px;height:{height}px;image-rendering:pixelated">'
    )


def _limits(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


@cache
def _colour_table() -> np.ndarray:
    """256 colours from dark blue to yellow, as on the page of a component."""
    anchors = ["1b0f3b", "3b2273", "5b3f9e", "3c6fb4", "2f9aa8", "5bbf82", "b5d957", "fbf3a8"]
    known = np.array([list(bytes.fromhex(anchor)) for anchor in anchors], float)
    at = np.linspace(0, len(anchors) - 1, 256)
    steps = [np.interp(at, np.arange(len(anchors)), known[:, c]) for c in range(3)]
    return np.stack(steps, axis=1).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    """A PNG file of an array of bytes, rows × columns × 3."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width, _ = pixels.shape
    lines: Iterator[bytes] = (b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"".join(lines)))
        + chunk(b"IEND", b"")
    )
