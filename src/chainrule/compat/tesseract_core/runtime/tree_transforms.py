"""Paths into nested data, with the ancestor's exceptions and copies. See `chainrule.compat._mirror`.

Natively (`chainrule._trees`) a path to nothing is a `PathError`, and changed trees share what did not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chainrule import _lru_cache, _paths
from chainrule._errors import PathError
from chainrule._paths import Key, join_path
from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.tree_transforms", "path_to_index_op")


class LRUCache(_lru_cache.LRUCache[Any, Any]):
    """A bounded mapping that forgets the least recently used entry, one entry by default."""

    def __init__(self, maxsize: int = 1) -> None:
        super().__init__(maxsize)

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self)


def split_path(path: str) -> list[str]:
    """The segments of a path as they are written: `["a", "[0]", "{b.c}"]`.

    Raises:
        ValueError: the text is not a path.
    """
    return [join_path(segment) for segment in _segments(path)]


def path_to_index_op(path: str) -> tuple[str, int | str]:
    """How one segment of a path goes on: `("seq", index)`, `("dict", key)` or `("getattr", name)`.

    Raises:
        ValueError: not exactly one segment.
    """
    segments = _segments(path)
    if len(segments) != 1:
        raise ValueError(f"Invalid path: {path}. Expected one segment.")
    segment = segments[0]
    if isinstance(segment, int):
        return "seq", segment
    return ("dict", str(segment)) if isinstance(segment, Key) else ("getattr", segment)


def get_at_path(tree: Any, path: str) -> Any:
    """The node at a path into dictionaries, sequences, models and plain objects.

    Raises:
        KeyError, IndexError, AttributeError, TypeError: there is none; which one depends on the node before.
        ValueError: the text is not a path.
    """
    for segment in _segments(path):
        tree = _part(tree, segment)
    return tree


def set_at_path(tree: Any, values: Mapping[str, Any]) -> Any:
    """A deep copy of a tree with new values at some paths.

    Raises:
        KeyError, IndexError, AttributeError, TypeError: there is no such place.
        ValueError: one of the texts is not a path.
    """
    tree = copy.deepcopy(tree)
    for path, value in values.items():
        if not path:
            raise ValueError("Invalid path: an empty path is the tree itself, which cannot be set.")
        *way, last = _segments(path)
        node = tree
        for segment in way:
            node = _part(node, segment)
        if _is_attribute(node, last):
            _part(node, last)  # what is not there is refused
            setattr(node, str(last), value)
        else:
            node[_key(last)] = value
    return tree


def flatten_with_paths(tree: Any, include_paths: Iterable[str]) -> dict[str, Any]:
    """`{path: node}` of some paths."""
    return {path: get_at_path(tree, path) for path in include_paths}


def filter_func(
    func: Callable[[Any], Any],
    default_inputs: Any,
    output_paths: Iterable[str] | None = None,
    input_paths: Sequence[str] | None = None,
) -> Callable[..., Any]:
    """A function of some leaves of a tree, made from a function of the tree.

    Args:
        func: function of one tree.
        default_inputs: the tree whose other leaves stay as they are.
        output_paths: when given, the result is `{path: value}` of these paths.
        input_paths: when given, the function takes values in this order; otherwise one `{path: value}`.

    Raises:
        ValueError: it is called with another number of arguments.
        TypeError: it is called with something else than a dictionary.
    """
    names = None if not input_paths else tuple(input_paths)

    def filtered(*args: Any) -> Any:
        if names is None:
            if len(args) != 1:
                raise ValueError(
                    f"Expected a single dictionary argument; found {len(args)} arguments."
                )
            if not isinstance(args[0], dict):
                raise TypeError(
                    f"Expected argument to be a dictionary; found {type(args[0]).__name__}."
                )
            updates = args[0]
        elif len(args) != len(names):
            raise ValueError(f"Mismatch between {len(names)} paths and {len(args)} arguments.")
        else:
            updates = dict(zip(names, args, strict=True))
        result = func(set_at_path(default_inputs, updates))
        return flatten_with_paths(result, output_paths) if output_paths else result

    return filtered


def _segments(path: str) -> tuple[Any, ...]:
    try:
        return _paths.split_path(path)
    except PathError as error:
        raise ValueError(f"Invalid path: {path}. {error.message}") from error


def _is_attribute(node: Any, segment: Any) -> bool:
    return not (isinstance(node, Mapping) or isinstance(segment, (int, Key)))


def _key(segment: Any) -> int | str:
    return segment if isinstance(segment, int) else str(segment)


def _part(node: Any, segment: Any) -> Any:
    if not _is_attribute(node, segment):
        return node[_key(segment)]
    if not hasattr(node, segment):
        raise AttributeError(f"Attribute {segment} not found in {type(node).__name__}.")
    return getattr(node, segment)
