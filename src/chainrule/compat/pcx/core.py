"""Parameters, modules, random keys, and helpers for trees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey

from chainrule import stateful
from chainrule.stateful import (
    BaseParam,
    DynamicParam,
    Mode,
    Param,
    ParamCache,
    ParamDict,
    StaticParam,
    get,
)

__all__ = [
    "RKG",
    "BaseModule",
    "BaseParam",
    "DynamicParam",
    "Module",
    "Param",
    "ParamCache",
    "ParamDict",
    "RandomKeyGenerator",
    "get",
    "set",
    "static",
    "tree_apply",
    "tree_extract",
    "tree_inject",
    "tree_ref",
    "tree_unref",
]

Pairs = list[tuple[Any, Any]]


class Module(stateful.Module):
    """`chainrule.stateful.Module` whose attributes are visited in the order in which they were assigned.

    What a mask makes of a module is a module too. There every attribute is a leaf, as in the ancestor:
    `jax.tree.leaves(M(Kind).to((False, True))(model))` are truth values.
    """

    __slots__ = ("_holds_leaves",)

    MODE = Mode

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A module without mode, as in the ancestor."""
        self = super().__new__(cls, *args, **kwargs)
        self.__dict__["_mode"] = StaticParam(None)
        return self

    def pairs(self) -> Pairs:
        """Names and values of the attributes, in the order of assignment."""
        return list(self.__dict__.items())

    def parts(self) -> Pairs:
        """What a mask looks at: the pairs, without what only this implementation needs."""
        return self.pairs()

    @classmethod
    def of_leaves(cls, pairs: Pairs) -> Module:
        """A module of which every attribute is a leaf, or a tree of leaves."""
        self = cls.from_pairs(pairs)
        object.__setattr__(self, "_holds_leaves", True)
        return self

    def _flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        if not getattr(self, "_holds_leaves", False):
            return super()._flatten_with_keys()
        pairs = self.pairs()
        return [(GetAttrKey(name), value) for name, value in pairs], tuple(
            name for name, _ in pairs
        )

    @classmethod
    def _unflatten(cls, aux: Any, children: Iterable[Any]) -> Any:
        if all(isinstance(name, str) for name in aux):
            return cls.of_leaves(list(zip(aux, children, strict=True)))
        return super()._unflatten(aux, children)

    def mode(self, value: Mode | None) -> Any:  # type: ignore[override]  # the argument is required there
        """The mode for `None`; otherwise set it here and in every module inside, and return nothing."""
        if value is None:
            return self._mode.get()
        super().mode(value)
        return None


BaseModule = Module


class RKGState(stateful.RKGState, Param):
    """The state of a generator of the user, which masks of `Param` select.

    Under `vmap` it is what the mask says: with `None`, all lanes draw the same keys.
    """

    __slots__ = ()
    is_forked: ClassVar[bool] = False

    def split(self, count: int) -> Any:
        """Draw `count` raw keys and advance."""
        return jax.random.key_data(super().split(count))


class RandomKeyGenerator(Module):
    """Hands out raw random keys: `uint32` arrays, of shape `(2,)` for one key and `(n, 2)` for `n`.

    Args:
        seed: where the sequence starts.
    """

    def __init__(self, seed: int = 0) -> None:
        self.key: Any = RKGState(seed)

    def seed(self, seed: Any = 0) -> None:
        """Start again from a seed."""
        self.key.seed(seed)

    def __call__(self, n: int | None = None) -> jax.Array:
        """One raw key; with `n`, an array of that many."""
        keys = self.key.split(1 if n is None else n)
        # The state of the global generator is native, and gives typed keys.
        if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
            keys = jax.random.key_data(keys)
        return keys[0] if n is None else keys


RKG = RandomKeyGenerator()
RKG.key = stateful.RKG.key  # the state that every transformation tracks


def set(obj: Any, x: Any) -> Any:
    """Set a parameter and return it; return the value if `obj` is not a parameter."""
    return stateful.set_(obj, x)


def static(x: Any) -> Any:
    """A parameter whose value is part of the program, not of the data."""
    return stateful.static(x)


def tree_ref(pydag: Any) -> Any:
    """The tree with every further occurrence of a parameter replaced by a reference to its first one."""
    return stateful.tree_ref(pydag)


def tree_unref(pytree: Any) -> Any:
    """The inverse of `tree_ref`."""
    return stateful.tree_unref(pytree)


def tree_apply(
    fn: Callable[[Any], Any],
    filter_fn: Callable[[Any], bool],
    tree: Any,
    recursive: bool = True,
) -> None:
    """Call a function on every node of a tree that a predicate accepts.

    Args:
        fn: the function; its result is not used.
        filter_fn: the predicate.
        tree: modules, parameters and containers. A node that is shared is visited once per occurrence.
        recursive: also look inside the nodes that were accepted.
    """
    nodes = jax.tree.leaves(tree, is_leaf=filter_fn)
    for node in filter(filter_fn, nodes):
        fn(node)
        if recursive:
            for child in _children(node):
                tree_apply(fn, filter_fn, child, recursive)


def _children(node: Any) -> list[Any]:
    leaves, treedef = jax.tree.flatten(node, is_leaf=lambda other: other is not node)
    return [] if jax.tree_util.treedef_is_leaf(treedef) else leaves


def tree_extract(
    pydag: Any,
    *rest: Any,
    extract_fn: Callable[..., Any] = lambda x: x,
    filter_fn: Callable[[Any], bool] = lambda x: isinstance(x, DynamicParam),
    is_pytree: bool = False,
) -> tuple[Any, ...]:
    """The parameters of a tree, each once, in order.

    Args:
        pydag: modules, parameters and containers.
        *rest: trees of the same structure.
        extract_fn: what to take: a function of a parameter and of its counterparts in the other trees.
        filter_fn: which parameters; by default all that change.
        is_pytree: accepted; sharing is always seen.
    """
    columns = [stateful.tree_extract(tree, filter_fn) for tree in (pydag, *rest)]
    return tuple(extract_fn(*entry) for entry in zip(*columns, strict=True))


def tree_inject(
    pydag: Any,
    *,
    params: Any = None,
    values: Sequence[Any] | None = None,
    inject_fn: Callable[[Any, Any], Any] = lambda n, v: n.set(v),
    filter_fn: Callable[[Any], bool] = lambda x: isinstance(x, DynamicParam),
    is_pytree: bool = False,
    strict: bool = True,
) -> Any:
    """Set the parameters that `tree_extract` gives, in its order, and return the tree.

    Args:
        pydag: modules, parameters and containers.
        params: a tree whose parameters' values are taken, or
        values: as many parameters or plain values.
        inject_fn: what to do with a parameter and its new value.
        filter_fn: which parameters; by default all that change.
        is_pytree: accepted; sharing is always seen.
        strict: refuse surplus values; too few are always refused, before anything is set.

    Raises:
        ValueError: there are not as many values as parameters.
    """
    new = list(stateful.tree_extract(params, filter_fn) if values is None else values)
    held = stateful.tree_extract(pydag, filter_fn)
    if len(new) < len(held) or (strict and len(new) > len(held)):
        raise ValueError(f"Expected {len(held)} values, one for each parameter; found {len(new)}.")
    for param, value in zip(held, new, strict=False):
        inject_fn(param, get(value))
    return pydag
