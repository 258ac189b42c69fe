"""The walk over nested data: leaves with their paths, single nodes by path, trees rebuilt with other leaves.

Vocabulary
    tree      nested mappings, sequences, pydantic models, NamedTuples; everything else is a leaf.
    path      names one node, in the grammar of `chainrule._paths`: `params.{layer.0}.weights.[2]`.

Which function a walk needs:

    iterate_leaves(tree)              look at every leaf, with the segments of its path
    map_leaves(function, tree)        the same tree with `function(leaf)` at every leaf
    map_leaves(…, plain=True)         the same as dictionaries and lists
    map_leaves(…, is_leaf=test)       stop at other nodes too: `test(node)` says which
    flatten_with_paths(tree)          `{path: leaf}`
    map_with_paths(function, tree)    `function(path, leaf)` at every leaf
    get_at_path, set_at_path          one node, or new values at some paths
    expand_pattern(pattern, tree)     the paths of a tree that a pattern stands for
    open_model(node)                  a model as a dictionary of its fields; for walks of one's own

`static_key` tells leaves apart that a compiled program depends on.

Invariant: `get_at_path(set_at_path(tree, {p: v}), p) is v`, and `set_at_path` shares every node that is
not on the way to a changed leaf with the tree it was given.

These have walks of their own: the codec, which replaces what JSON has no form for and keeps a budget;
`to_plain` of `runtime._schema._plain`, which also converts leaves and runs at every call; what goes
through two trees side by side, such as values and annotations (`runtime._schema`) or results and expectations
(`runtime.testing`); `bridge._types`, which compiles the walk that it repeats; and `stateful._walk`, whose
nodes are parameters and modules.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from chainrule._errors import PathError
from chainrule._lru_cache import LRUCache
from chainrule._paths import (
    Key,
    Segment,
    escape_dict_key,
    join_path,
    matches_pattern,
    path_to_pattern,
    pattern_to_regex,
    render_segment,
    split_path,
    unescape_dict_key,
)

__all__ = [
    "Key",
    "LRUCache",
    "Segment",
    "dtype_name",
    "escape_dict_key",
    "expand_pattern",
    "filter_func",
    "flatten_with_paths",
    "get_at_path",
    "is_arraylike",
    "is_tracer",
    "iterate_leaves",
    "join_path",
    "map_leaves",
    "map_with_paths",
    "matches_pattern",
    "open_model",
    "path_to_pattern",
    "pattern_to_regex",
    "set_at_path",
    "split_path",
    "static_key",
    "unescape_dict_key",
    "with_article",
]


def with_article(noun: str) -> str:
    """`a list`, `an int`: how messages call what they found."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def is_arraylike(value: Any) -> bool:
    """Whether a leaf is an array or array scalar (NumPy, JAX, torch, shapes included)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, which torch writes with its own name in front."""
    return _name_of_dtype(array.dtype)


@lru_cache(maxsize=256)  # NumPy takes as long for a name as for a small array
def _name_of_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def is_tracer(value: Any) -> bool:
    """Whether a value is JAX's stand-in for an array while a function is traced."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def _is_model(node: Any) -> bool:
    return hasattr(type(node), "model_fields") and not isinstance(node, type)


def _is_root_model(node: Any) -> bool:
    # `issubclass(type(node), pydantic.RootModel)`, in what pydantic documents of its classes: paths and trees
    # serve commands that never import pydantic.
    return getattr(type(node), "__pydantic_root_model__", False)


@lru_cache(maxsize=1024)  # asking takes longer than copying a small array
def _is_container(kind: type) -> bool:
    """Whether nodes of a class have children."""
    is_model = hasattr(kind, "model_fields") and not issubclass(kind, type)
    return is_model or issubclass(kind, (Mapping, list, tuple))


def _is_namedtuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _children(node: Any) -> Iterator[tuple[Segment, Any]] | None:
    """The children of an inner node with their segments, or `None` for a leaf."""
    kind: Any = type(node)
    if not _is_container(kind):
        return None
    if isinstance(node, Mapping):
        return ((_key_segment(key), value) for key, value in node.items())
    if _is_model(node):
        if _is_root_model(node):
            return _children(node.root)
        return ((name, getattr(node, name)) for name in _field_names(node))
    if _is_namedtuple(node):
        return zip(node._fields, node, strict=True)
    return enumerate(node)


def _field_names(model: Any) -> tuple[str, ...]:
    """The fields of a model, and those that it holds beyond its declaration (`extra="allow"`)."""
    return (*type(model).model_fields, *(model.model_extra or ()))


def open_model(node: Any) -> Any:
    """A model as what it holds: a dictionary of its fields, or its root; any other node as it is."""
    if not _is_model(node):
        return node
    if _is_root_model(node):
        return open_model(node.root)
    return {name: getattr(node, name) for name in _field_names(node)}


def _key_segment(key: Any) -> Segment:
    text = key if isinstance(key, str) else str(key)
    return text if text.isidentifier() else Key(text)


def iterate_leaves(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Iterator[tuple[tuple[Segment, ...], Any]]:
    """Every leaf with its segments, in declaration order. Deep trees do not exhaust the stack.

    Args:
        tree: nested data.
        is_leaf: what else counts as a leaf.
    """
    stack: list[tuple[tuple[Segment, ...], Any]] = [((), tree)]
    while stack:
        segments, node = stack.pop()
        children = None if is_leaf is not None and is_leaf(node) else _children(node)
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
    if type(tree) is dict and all(map(_is_leaf_with_name, tree, tree.values())):
        return dict(tree)
    return {join_path(*segments): leaf for segments, leaf in iterate_leaves(tree)}


def _is_leaf_with_name(key: Any, node: Any) -> bool:
    """Whether a part of a mapping is a leaf whose path is its key."""
    kind: Any = type(node)
    return isinstance(key, str) and key.isidentifier() and not _is_container(kind)


def get_at_path(tree: Any, path: str) -> Any:
    """The node at a path.

    Raises:
        PathError: nothing is there; the message says how far the path could be followed.
    """
    if type(tree) is dict and path.isidentifier() and path in tree:  # the most usual of all
        return tree[path]
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
    if _is_root_model(node):
        return _step(node.root, segment)
    if isinstance(segment, int):
        if isinstance(node, Sequence) and not isinstance(node, (str, bytes)):
            return node[segment]
        raise LookupError(segment)
    if isinstance(segment, Key):
        raise LookupError(segment)
    if _is_model(node) and segment not in _field_names(node):
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
        found = f"{where} is {with_article(type(node).__name__)} and has no parts"
    else:
        names = [render_segment(segment) for segment, _ in children]
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
    if type(tree) is dict and all(path.isidentifier() and path in tree for path in values):
        return {**tree, **values}
    plan = _Edit()
    for path, value in values.items():
        edit = plan
        for segment in split_path(path):
            edit = edit.parts.setdefault(segment, _Edit())
        edit.value, edit.parts = value, {}
    return _carry_out(plan, tree)


_UNCHANGED = object()


class _Edit:
    """The change of one node: a new value, new parts of the old or the new value, or both."""

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
        return _with_items(node, {_own_key(node, segment): part for segment, part in parts.items()})
    if _is_model(node):
        if _is_root_model(node):
            return node.model_copy(update={"root": _with_parts(node.root, parts)})
        return node.model_copy(update=parts)
    if _is_namedtuple(node):
        return type(node)(*(parts.get(name, part) for name, part in _namedtuple_items(node, parts)))
    if isinstance(node, (list, tuple)) and all(isinstance(segment, int) for segment in parts):
        return _with_sequence(node, [parts.get(index, part) for index, part in enumerate(node)])
    raise PathError(
        f"Cannot set {', '.join(map(render_segment, parts))} of {with_article(type(node).__name__)}: "
        "only mappings, models, lists and tuples can be rebuilt with a new part.",
        path=render_segment(next(iter(parts))),
    )


def _with_items(node: Mapping[Any, Any], items: Mapping[Any, Any]) -> Any:
    """A copy of a mapping with some items replaced or added; of its own class if that is a dictionary."""
    if type(node) is dict or not isinstance(node, dict):
        return {**node, **items}
    # A class of the author's may need other arguments than items: copying knows how to make one.
    clone = copy.copy(node)
    clone.update(items)
    return clone


def _with_sequence(node: Any, parts: list[Any]) -> Any:
    """A list or tuple of the same class with all parts replaced."""
    if type(node) is list or not isinstance(node, list):
        return type(node)(parts)
    clone = copy.copy(node)
    clone[:] = parts
    return clone


def _own_key(node: Mapping[Any, Any], segment: Segment) -> Any:
    try:
        return _mapping_key(node, segment)
    except LookupError:
        return str(segment)


def _namedtuple_items(node: Any, parts: Mapping[Segment, Any]) -> Iterator[tuple[Segment, Any]]:
    """The fields of a named tuple under the segment by which they are replaced: name or position."""
    for index, (name, part) in enumerate(zip(node._fields, node, strict=True)):
        yield (index if index in parts else name), part


def expand_pattern(pattern: str, tree: Any) -> Iterator[str]:
    """The concrete paths of a pattern that exist in a tree of mappings and lists, in its order.

    Parts that are absent or `None` yield nothing; keys of mappings are taken in sorted order.

    Example:
        >>> list(expand_pattern("wings.[].chord", {"wings": [{"chord": 1.0}, {"chord": 2.0}]}))
        ['wings.[0].chord', 'wings.[1].chord']
    """
    yield from (join_path(*segments) for segments in _expand(pattern.split("."), tree, ()))


def _expand(parts: list[str], node: Any, done: tuple[Segment, ...]) -> Iterator[tuple[Any, ...]]:
    if node is None:
        return
    if not parts or parts == [""]:  # the pattern of a root is empty
        yield done
        return
    part, rest = parts[0], parts[1:]
    children: Iterable[tuple[Segment, Any]]
    if part == "[]":
        children = enumerate(node)
    elif part == "{}":
        children = ((Key(key), node[key]) for key in sorted(node, key=str))
    elif part.startswith("["):
        children = [(int(part[1:-1]), node[int(part[1:-1])])]
    else:
        children = [(part, node[part])] if part in node else []
    for segment, child in children:
        yield from _expand(rest, child, (*done, segment))


def map_leaves(
    function: Callable[[Any], Any],
    tree: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    plain: bool = False,
) -> Any:
    """A new tree with `function(leaf)` at every leaf; no container is shared with the old one.

    Recursive, for trees as deep as Python's stack allows (some hundred levels).

    Args:
        function: of one leaf.
        tree: nested data.
        is_leaf: what else counts as a leaf.
        plain: mappings and models become dictionaries, sequences lists; otherwise every container is made
            again as what it is.

    Example:
        >>> map_leaves(lambda x: 2 * x, {"a": [1, 2], "b": (3,)})
        {'a': [2, 4], 'b': (6,)}
        >>> map_leaves(lambda x: 2 * x, {"b": (3,)}, plain=True)
        {'b': [6]}
    """

    def visit(node: Any) -> Any:
        if is_leaf is not None and is_leaf(node):
            return function(node)
        kind: Any = type(node)
        if kind is dict:
            return {key: visit(child) for key, child in node.items()}
        if kind is list:
            return [visit(child) for child in node]
        if not _is_container(kind):
            return function(node)
        if isinstance(node, Mapping):
            items = {key: visit(child) for key, child in node.items()}
            return items if plain else _with_items(node, items)
        if isinstance(node, (list, tuple)):
            parts = [visit(child) for child in node]
            if plain:
                return parts
            return kind(*parts) if _is_namedtuple(node) else _with_sequence(node, parts)
        return visit_model(node)

    def visit_model(node: Any) -> Any:
        if plain:
            return visit(open_model(node))
        # `model_copy` does not validate again, and puts extra fields where they belong.
        return node.model_copy(
            update={name: visit(getattr(node, name)) for name in _field_names(node)}
        )

    return visit(tree)


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


def static_key(value: Any) -> Hashable:
    """What is equal for leaves that compile to the same program, and hashable also where the leaf is not."""
    # The type is part of the key because 1 == 1.0 == True, and each compiles to something else. So does
    # -0.0, which equals 0.0; and NaN, which equals nothing, would compile anew each time.
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return type(value), value.dtype.str, value.shape, repr(value.tolist())
    try:
        hash(value)
    except TypeError:
        return type(value), _content_of(value)
    return type(value), value


def _content_of(value: Any) -> Any:
    """A key for what cannot be hashed; a value whose content cannot be seen equals no other."""
    try:
        return pickle.dumps(value)
    except Exception:
        return object()
