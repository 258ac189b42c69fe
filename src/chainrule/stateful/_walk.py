"""One walk over a tree of nodes: which parameters it holds, where, and what its structure is.

The walk visits every node once (by identity), the attributes of modules in alphabetical order, and names
places in the path grammar of `chainrule._paths`: `model.layers.[0].weight`. The first path of a shared
parameter is its name; the others are its aliases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from chainrule._paths import Key, Segment, join_path
from chainrule.stateful._nodes import Branch, Node, has_leaves, is_node
from chainrule.stateful._params import BaseParam, DynamicParam, StaticParam
from chainrule.stateful._snapshots import Snapshot


def _segment(key: Any) -> Segment:
    match key:
        case SequenceKey(idx) | FlattenedIndexKey(idx):
            return idx
        case GetAttrKey(name):
            return name
        case DictKey(name):
            text = str(name)
            return text if text.isidentifier() else Key(text)
    return Key(str(key))


def key_path(keys: tuple[Any, ...]) -> str:
    """A JAX key path in our path grammar."""
    return join_path(*map(_segment, keys))


def join(*parts: str) -> str:
    """Join paths; empty parts vanish."""
    return ".".join(part for part in parts if part)


def flatten(
    tree: Any, is_leaf: Callable[[Any], bool] = is_node
) -> tuple[list[tuple[str, Any]], Any]:
    """The leaves of a tree with their paths, nodes being leaves, and the treedef around them."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [(key_path(keys), leaf) for keys, leaf in pairs], treedef


class Structure:
    """What a walk found.

    Attributes:
        params: path → parameter, each parameter once, under its first path.
        aliases: further path → first path, of shared parameters.
        statics: identity → static parameter.
        nodes: every node, in the order of the walk.
        editable: parts of the signature that can be edited in place.
        has_foreign: whether parameters sit in mutable pytrees that are not ours (an ordered dictionary, a
            registered data class), whose edits go unnoticed.
        signature: everything but the values of parameters and of static parameters, comparable and hashable:
            two trees with equal signatures and equal static values can run the same compiled code.
    """

    __slots__ = (
        "_seen", "_signature", "aliases", "editable", "has_foreign", "nodes", "params", "statics",
    )  # fmt: skip

    def __init__(self) -> None:
        self.params: dict[str, DynamicParam] = {}
        self.aliases: dict[str, str] = {}
        self.statics: dict[int, StaticParam] = {}
        self.nodes: list[Node] = []
        self.editable: list[Snapshot] = []
        self.has_foreign = False
        self._seen: dict[int, tuple[int, str]] = {}
        self._signature: list[Any] = []

    @property
    def signature(self) -> tuple[Any, ...]:
        return tuple(self._signature)

    def paths_of(self, path: str) -> tuple[str, ...]:
        """All paths of the parameter whose first one this is."""
        return (path, *(alias for alias, first in self.aliases.items() if first == path))

    def visit(self, tree: Any, path: str = "") -> Structure:
        """Add a tree, named `path`, to the structure."""
        if isinstance(tree, Node):
            self._visit_node(tree, path)
        elif has_leaves(tree):
            pairs, treedef = flatten(tree)
            self._signature.append(treedef)
            is_one_leaf = jax.tree_util.treedef_is_leaf(treedef)
            self.has_foreign |= not (is_one_leaf or isinstance(tree, tuple))
            for inner, leaf in pairs:
                if is_node(leaf):
                    self._visit_node(leaf, join(path, inner))
                else:
                    self._note(leaf)
        else:
            self._note(tree)
        return self

    def _note(self, value: Any) -> None:
        static = Snapshot(value)
        self._signature.append(static)
        if static.is_editable:
            self.editable.append(static)

    def _note_metadata(self, param: BaseParam) -> None:
        self._signature.append(param.metadata)
        self.editable += [
            static for static in map(Snapshot, param.metadata.value.values()) if static.is_editable
        ]

    def _visit_node(self, node: Node, path: str) -> None:
        known = self._seen.get(id(node))
        if known is not None:
            self._signature.append(("again", known[0]))
            if isinstance(node, DynamicParam):
                self.aliases[path] = known[1]
            elif not isinstance(node, BaseParam):
                self._alias_inside(node, path, known[1])
            return
        self._seen[id(node)] = (len(self.nodes), path)
        self.nodes.append(node)
        if isinstance(node, DynamicParam):
            self.params[path] = node
            self._signature.append(type(node))
            self._note_metadata(node)
        elif isinstance(node, StaticParam):
            self.statics[id(node)] = node
            self._signature.append(type(node))
            self._note_metadata(node)
        else:
            parts = named_pairs(node)
            # With their number, so that no other nesting of the same parts reads the same.
            self._signature.append((type(node), len(parts)))
            for name, value in parts:
                self._signature.append(name)
                self.visit(value, join(path, name))

    def _alias_inside(self, node: Node, path: str, first: str) -> None:
        """A shared module: all of its parameters have a second path."""
        for name in Structure().visit(node).params:
            original = join(first, name)
            self.aliases[join(path, name)] = self.aliases.get(original, original)


def named_pairs(node: Any) -> list[tuple[str, Any]]:
    """The parts of a module or container with their path segments."""
    return [(join_path(_segment(node._key_entry(key))), value) for key, value in node.pairs()]


def params_of(tree: Any) -> dict[str, DynamicParam]:
    """Path → parameter, each parameter once."""
    return Structure().visit(tree).params


def replicate(tree: Any, replace: Callable[[str, BaseParam], Any], path: str = "") -> Any:
    """A copy of a tree's modules and containers with `replace(path, param)` for every parameter.

    What is not a parameter is taken over; static parameters are offered to `replace` too.
    """
    if isinstance(tree, BaseParam):
        return replace(path, tree)
    if isinstance(tree, Branch):
        pairs = tree.pairs()
        names = [name for name, _ in named_pairs(tree)]
        copies = [
            (key, replicate(value, replace, join(path, name)))
            for name, (key, value) in zip(names, pairs, strict=True)
        ]
        return type(tree).from_pairs(copies)
    if not has_leaves(tree):
        return tree
    leaves, treedef = flatten(tree)
    copies = [
        replicate(leaf, replace, join(path, inner)) if is_node(leaf) else leaf
        for inner, leaf in leaves
    ]
    return jax.tree.unflatten(treedef, copies)
