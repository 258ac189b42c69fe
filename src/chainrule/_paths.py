"""The grammar of paths: text that names one node of nested data.

    path      segments joined by dots. A segment is an identifier (model field, attribute or mapping key),
              `[3]` (a sequence index) or `{any key}` (a mapping key; dots belong to the key, and `{`,
              `}`, `\\` are escaped with a backslash). The empty path is the root.
    pattern   a path with the placeholders `[]` and `{}`, as schemas use them: `params.{}.weights.[]`.

Invariant: `split_path(join_path(*segments)) == segments`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from chainrule._errors import PathError

# One segment: an index (of no more digits than a machine can count to), a braced key (escapes allowed), or
# a bare identifier. What an identifier is, Python knows better than a regular expression: combining marks
# (NFD) are part of one, for example.
_SEGMENT = re.compile(
    r"\[(?P<index>[0-9]{1,18})\]|\{(?P<key>(?:[^{}\\]|\\.)*)\}|(?P<name>[^.\[\]{}\\]+)", re.DOTALL
)
_ESCAPE = re.compile(r"([{}\\])")
_UNESCAPE = re.compile(r"\\(.)", re.DOTALL)

Segment = str | int
"""A parsed segment. Strings are names or keys, integers are indices."""


class Key(str):
    """A segment that was written in braces: a mapping key, never an attribute."""

    __slots__ = ()


def escape_dict_key(key: str) -> str:
    """Escape `{`, `}` and backslash so that the key can stand between braces."""
    return _ESCAPE.sub(r"\\\1", key)


def unescape_dict_key(key: str) -> str:
    """Undo `escape_dict_key`."""
    return _UNESCAPE.sub(r"\1", key)


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[Segment, ...]:
    """Parse a path into segments: `int` for indices, `Key` for braced keys, `str` for names.

    Raises:
        PathError: the text is not a path.
    """
    segments: list[Segment] = []
    position = 0
    while position < len(path):
        match = _SEGMENT.match(path, position)
        end = match.end() if match else -1
        is_segment = match is not None and (match["name"] is None or match["name"].isidentifier())
        if not is_segment or (end < len(path) and (path[end] != "." or end + 1 == len(path))):
            raise PathError(
                f"Malformed path {path!r} at character {position}: a segment is a name, an index "
                "like [0], or a key like {any text}, and segments are joined by dots.",
                code="path_malformed",
                path=path,
            )
        assert match is not None
        if match["index"] is not None:
            segments.append(int(match["index"]))
        elif match["key"] is not None:
            segments.append(Key(unescape_dict_key(match["key"])))
        else:
            segments.append(match["name"])
        position = end + 1
    return tuple(segments)


def join_path(*segments: Segment) -> str:
    """Write segments as a path; the inverse of `split_path`."""
    return ".".join(render_segment(segment) for segment in segments)


def add_segment(prefix: str, segment: str) -> str:
    """A path or pattern with one more written segment; an empty one (of a union, or a root) adds nothing."""
    return f"{prefix}.{segment}" if prefix and segment else prefix or segment


def loc_to_path(loc: Iterable[str | int]) -> str:
    """A location of pydantic, a tuple of names, keys and indices, as a path."""
    segments = [part if isinstance(part, int) or part.isidentifier() else Key(part) for part in loc]
    return join_path(*segments)


def render_segment(segment: Segment) -> str:
    """One segment as it stands in a path."""
    if isinstance(segment, int):
        return f"[{segment}]"
    if isinstance(segment, Key):
        return f"{{{escape_dict_key(segment)}}}"
    return segment


def path_to_pattern(path: str) -> str:
    """Replace indices by `[]` and braced keys by `{}`."""
    placeholders = (
        "[]" if isinstance(s, int) else "{}" if isinstance(s, Key) else s for s in split_path(path)
    )
    return ".".join(placeholders)


def pattern_to_regex(pattern: str) -> str:
    """The anchored regular expression of the concrete paths that a pattern stands for."""
    parts = []
    for segment in pattern.split("."):
        if segment == "[]":
            parts.append(r"\[\d+\]")
        elif segment == "{}":
            parts.append(r"\{(?:[^{}\\]|\\.)+\}")
        else:
            parts.append(re.escape(segment))
    return "^" + r"\.".join(parts) + "$"


def matches_pattern(path: str, pattern: str) -> bool:
    """Whether a concrete path is one that the pattern stands for."""
    return re.fullmatch(pattern_to_regex(pattern), path, re.ASCII | re.DOTALL) is not None
