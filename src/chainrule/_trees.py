"""Paths into nested data: one grammar and one tree walk for everybody.

Vocabulary
    tree      nested mappings, sequences, pydantic models, NamedTuples; everything else is a leaf.
    path      a string that names one node: segments joined by dots. A segment is an identifier
              (model field, attribute or mapping key), `[3]` (a sequence index) or `{any key}` (a
              mapping key; dots belong to the key, and `{`, `}`, `\\` are escaped with a backslash).
              The empty path is the root. Example: `params.{layer.0}.weights.[2]`.
    pattern   a path with the placeholders `[]` and `{}`, as schemas use them: `params.{}.weights.[]`.

Invariant: `get_at_path(set_at_path(tree, {p: v}), p) is v`, and `set_at_path` shares every node that is
not on the way to a changed leaf with the tree it was given.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from chainrule._errors import PathError

__all__ = [
    "LRUCache",
    "escape_dict_key",
    "filter_func",
    "flatten_with_paths",
    "get_at_path",
    "is_arraylike",
    "iterate_leaves",
    "join_path",
    "map_with_paths",
    "matches_pattern",
    "path_to_pattern",
    "pattern_to_regex",
    "set_at_path",
    "split_path",
    "unescape_dict_key",
]

# One segment: an index, a braced key (escapes allowed), or a bare identifier. What an identifier is,
# Python knows better than a regular expression: combining marks (NFD) are part of one, for example.
_SEGMENT = re.compile(
    r"\[(?P<index>[0-9]+)\]|\{(?P<key>(?:[^{}\\]|\\.)*)\}|(?P<name>[^.\[\]{}\\]+)", re.DOTALL
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
    return ".".join(_render_segment(segment) for segment in segments)


def _render_segment(segment: Segment) -> str:
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


def is_arraylike(value: Any) -> bool:
    """Whether a leaf is an array or array scalar (NumPy, JAX, torch, shapes included)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _is_model(node: Any) -> bool:
    return hasattr(type(node), "model_fields") and not isinstance(node, type)


def _is_namedtuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _children(node: Any) -> Iterator[tuple[Segment, Any]] | None:
    """The children of an inner node with their segments, or `None` for a leaf."""
    if isinstance(node, Mapping):
        return ((_key_segment(key), value) for key, value in node.items())
    if _is_model(node):
        if getattr(type(node), "__pydantic_root_model__", False):
            return _children(node.root)
        return ((name, getattr(node, name)) for name in type(node).model_fields)
    if _is_namedtuple(node):
        return zip(node._fields, node, strict=True)
    if isinstance(node, (list, tuple)):
        return iter(enumerate(node))
    return None


def _key_segment(key: Any) -> Segment:
    text = key if isinstance(key, str) else str(key)
    return text if text.isidentifier() else Key(text)


def iterate_leaves(tree: Any) -> Iterator[tuple[tuple[Segment, ...], Any]]:
    """Every leaf with its segments, in declaration order. Deep trees do not exhaust the stack."""
    stack: list[tuple[tuple[Segment, ...], Any]] = [((), tree)]
    while stack:
        segments, node = stack.pop()
        children = _children(node)
        if children is None:
            yield segments, node
        else:
            stack.extend(reversed([((*segments, s), child) for s, child in children]))


def flatten_with_paths(tree: Any, include_paths: Iterable[str] | None = None) -> dict[str, Any]:
    """A flat `{path: leaf}` view of a tree.

    Args:
        tree: nested data.
        include_paths: when given, only these paths, looked up one by one (a path may name an inner
            node); a path that does not exist is a `PathError`.
    """
    if include_paths is not None:
        return {path: get_at_path(tree, path) for path in include_paths}
    return {join_path(*segments): leaf for segments, leaf in iterate_leaves(tree)}


def get_at_path(tree: Any, path: str) -> Any:
    """The node at a path.

    Raises:
        PathError: nothing is there; the message says how far the path could be followed.
    """
    node = tree
    segments = split_path(path)
    for depth, segment in enumerate(segments):
        try:
            node = _step(node, segment)
        except (LookupError, AttributeError, TypeError):
            raise _no_such_path(path, node, segments[: depth + 1]) from None
    return node


def _step(node: Any, segment: Segment) -> Any:
    if isinstance(node, Mapping):
        return node[_mapping_key(node, segment)]
    if getattr(type(node), "__pydantic_root_model__", False):
        return _step(node.root, segment)
    if isinstance(segment, int):
        if isinstance(node, Sequence) and not isinstance(node, (str, bytes)):
            return node[segment]
        raise LookupError(segment)
    if isinstance(segment, Key):
        raise LookupError(segment)
    if _is_model(node) and segment not in type(node).model_fields:
        raise LookupError(segment)
    return getattr(node, segment)


def _mapping_key(node: Mapping[Any, Any], segment: Segment) -> Any:
    """The mapping's own key for a segment: keys need not be strings, paths always are."""
    if segment in node:
        return str(segment) if isinstance(segment, Key) else segment
    for key in node:
        if not isinstance(key, str) and str(key) == str(segment):
            return key
    raise LookupError(segment)


def _no_such_path(path: str, node: Any, followed: tuple[Segment, ...]) -> PathError:
    children = _children(node)
    where = join_path(*followed[:-1]) or "the root"
    if children is None:
        found = f"{where} is a {type(node).__name__} and has no parts"
    else:
        names = [_render_segment(segment) for segment, _ in children]
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        found = f"{where} has: {shown or 'nothing'}"
    return PathError(
        f"No value at path {path!r}: {found}.", path=path, details={"stopped_at": where}
    )


def set_at_path(tree: Any, values: Mapping[str, Any]) -> Any:
    """A tree with new values at some paths.

    Only the nodes on the way to a changed leaf are copied (shallowly); all others are shared with
    `tree`, which is never changed. A mapping key that does not exist yet is added; any other missing
    node is a `PathError`.
    """
    plan = _Edit()
    for path, value in values.items():
        edit = plan
        for segment in split_path(path):
            edit = edit.parts.setdefault(segment, _Edit())
        edit.value, edit.parts = value, {}
    return _carry_out(plan, tree)


_UNCHANGED = object()


class _Edit:
    """What is to become of one node: a new value, new parts of the old or the new value, or both."""

    __slots__ = ("parts", "value")

    def __init__(self) -> None:
        self.value: Any = _UNCHANGED
        self.parts: dict[Segment, _Edit] = {}


class _Visit(NamedTuple):
    edit: _Edit
    node: Any
    parent: int
    segments: tuple[Segment, ...]


def _carry_out(plan: _Edit, tree: Any) -> Any:
    """Rebuild every node on the way to an edit once, in loops: trees may be deeper than the stack."""
    visits = [_Visit(plan, tree if plan.value is _UNCHANGED else plan.value, 0, ())]
    for index, visit in enumerate(visits):  # grows meanwhile: parents come before their parts
        for segment, edit in visit.edit.parts.items():
            segments = (*visit.segments, segment)
            visits.append(_Visit(edit, _edited_child(visit.node, edit, segments), index, segments))
    parts: list[dict[Segment, Any]] = [{} for _ in visits]
    for index in reversed(range(len(visits))):
        _, node, parent, segments = visits[index]
        if parts[index]:
            node = _with_parts(node, dict(reversed(parts[index].items())))
        if index == 0:
            return node
        parts[parent][segments[-1]] = node
    raise AssertionError("the root is always visited")


def _edited_child(node: Any, edit: _Edit, segments: tuple[Segment, ...]) -> Any:
    segment = segments[-1]
    is_new = edit.value is not _UNCHANGED
    try:
        child = _step(node, segment)
    except (LookupError, AttributeError, TypeError):
        if is_new and isinstance(node, Mapping) and not isinstance(segment, int):
            return edit.value
        raise _no_such_path(join_path(*segments), node, segments) from None
    return edit.value if is_new else child


def _with_parts(node: Any, parts: dict[Segment, Any]) -> Any:
    """A shallow copy of a node with some of its parts replaced."""
    if isinstance(node, Mapping):
        return {**node, **{_own_key(node, segment): part for segment, part in parts.items()}}
    if _is_model(node):
        if getattr(type(node), "__pydantic_root_model__", False):
            return node.model_copy(update={"root": _with_parts(node.root, parts)})
        return node.model_copy(update=parts)
    if _is_namedtuple(node):
        return type(node)(*(parts.get(name, part) for name, part in _namedtuple_items(node, parts)))
    if isinstance(node, (list, tuple)) and all(isinstance(segment, int) for segment in parts):
        return type(node)(parts.get(index, part) for index, part in enumerate(node))
    raise PathError(
        f"Cannot set {', '.join(map(_render_segment, parts))} of a {type(node).__name__}: only "
        "mappings, models, lists and tuples can be rebuilt with a new part.",
        path=_render_segment(next(iter(parts))),
    )


def _own_key(node: Mapping[Any, Any], segment: Segment) -> Any:
    try:
        return _mapping_key(node, segment)
    except LookupError:
        return str(segment)


def _namedtuple_items(node: Any, parts: Mapping[Segment, Any]) -> Iterator[tuple[Segment, Any]]:
    """The fields of a named tuple under the segment by which they are replaced: name or position."""
    for index, (name, part) in enumerate(zip(node._fields, node, strict=True)):
        yield (index if index in parts else name), part


def map_with_paths(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Rebuild a tree of mappings, models and sequences with `function(path, leaf)` at every leaf."""
    return set_at_path(
        tree, {path: function(path, leaf) for path, leaf in flatten_with_paths(tree).items()}
    )


def filter_func(
    func: Callable[[Any], Any],
    default_inputs: Any,
    output_paths: Iterable[str] | None = None,
    input_paths: Iterable[str] | None = None,
) -> Callable[..., Any]:
    """Narrow a tree function to a flat one, so that a derivative is taken of just what was asked.

    Args:
        func: function of one tree.
        default_inputs: the tree whose other leaves stay fixed.
        output_paths: when given, the result is `{path: value}` of these paths.
        input_paths: when given, the narrowed function takes positional values in this order;
            otherwise it takes one mapping `{path: value}`.
    """
    names = None if input_paths is None else tuple(input_paths)
    selected = None if output_paths is None else tuple(output_paths)

    def filtered(*args: Any) -> Any:
        if names is None:
            (updates,) = args
        else:
            updates = dict(zip(names, args, strict=True))
        result = func(set_at_path(default_inputs, updates))
        return result if selected is None else flatten_with_paths(result, selected)

    return filtered


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A bounded mapping that forgets the least recently used entry. Safe between threads.

    Args:
        maxsize: number of entries kept; 0 keeps nothing.
        max_bytes: when given, also bounds the sum of `size_of(value)`.
        size_of: the size of a value in bytes.
    """

    def __init__(
        self,
        maxsize: int,
        *,
        max_bytes: int | None = None,
        size_of: Callable[[V], int] = lambda value: 0,
    ) -> None:
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._bytes = 0
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self._maxsize} entries, {self._bytes} bytes)"

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of a key, which becomes the most recently used one."""
        with self._lock:
            if key not in self._entries:
                return default
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Keep a value; the least recently used ones make room for it."""
        with self._lock:
            self._discard(key)
            self._entries[key] = value
            self._bytes += self._size_of(value)
            while self._is_over():
                self._discard(next(iter(self._entries)))

    def pop(self, key: K, default: V | None = None) -> V | None:
        """Forget a key and return its value."""
        with self._lock:
            value = self._entries.get(key, default)
            self._discard(key)
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def _discard(self, key: K) -> None:
        if key in self._entries:
            self._bytes -= self._size_of(self._entries.pop(key))

    def _is_over(self) -> bool:
        too_large = self._max_bytes is not None and self._bytes > self._max_bytes
        return bool(self._entries) and (len(self._entries) > self._maxsize or too_large)
