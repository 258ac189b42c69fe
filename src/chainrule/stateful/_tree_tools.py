"""Helpers for trees of parameters: take values out, put values in, copy, write sharing down and undo it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from chainrule._errors import InputError
from chainrule.stateful._frames import write_all
from chainrule.stateful._masks import Mask, listed, select
from chainrule.stateful._nodes import Node, is_node
from chainrule.stateful._params import BaseParam, DynamicParam, StaticParam, checked, unwrap
from chainrule.stateful._values import describe, same_type
from chainrule.stateful._walk import Structure, params_of, replicate

T = TypeVar("T")


def get(x: Any) -> Any:
    """The value of a parameter; anything else as it is."""
    return x.get() if isinstance(x, BaseParam) else x


def set_(target: Any, value: Any) -> Any:
    """Set a parameter and return it; for anything else, return the new value."""
    value = get(value)
    return target.set(value) if isinstance(target, BaseParam) else value


def frozen(tree: T, flag: bool = True) -> T:
    """Freeze every parameter in a tree (or thaw, with `False`), and return the tree.

    A frozen parameter is left out of every default selection: no gradient, no optimiser step.

    Raises:
        InputError: `flag` is something else, such as a mask, which would freeze everything.
    """
    if not isinstance(flag, (bool, np.bool_)):
        raise InputError(
            f"`frozen` takes True or False; found {flag!r}. To freeze what a mask selects, write "
            "`frozen(tree_extract(model, mask))`.",
            code="bad_argument",
        )
    for param in params_of(tree).values():
        param.frozen = flag
    return tree


def shared(tree: T, mask: Any = None) -> T:
    """A copy of a tree's modules that holds the same parameters, so that both always agree.

    Static parameters are copied: the copy has a mode (`train`, `eval`) of its own.

    Args:
        tree: usually a module.
        mask: which parameters are shared; the others are copied. By default all.
    """
    kept = {id(param) for param in tree_extract(tree, mask)}
    copies: dict[int, BaseParam] = {}

    def replace(path: str, param: BaseParam) -> BaseParam:
        if id(param) in kept:
            return param
        if id(param) not in copies:
            copies[id(param)] = copy.copy(param)
        return copies[id(param)]

    return replicate(tree, replace)


def clone(tree: T) -> T:
    """A tree like this one that changes on its own: other modules and parameters, with the same values.

    What is shared inside stays shared there. Values are copied, so that they outlive a program to which those
    of the original are donated; what modules hold beside parameters is not.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, clone
        >>> weight = Param(jnp.ones(2))
        >>> average = clone(weight)
        >>> weight *= 3
        >>> average.get().tolist()
        [1.0, 1.0]
    """
    copies: dict[int, Any] = {}

    def copied(part: Any) -> Any:
        if not isinstance(part, Node):
            return jax.tree.map(lambda x: copied(x) if is_node(x) else x, part, is_leaf=is_node)
        if id(part) not in copies:
            copies[id(part)] = _copied_param(part) if isinstance(part, BaseParam) else (
                type(part).from_pairs([(key, copied(item)) for key, item in part.pairs()])  # type: ignore[attr-defined]
            )  # fmt: skip
        return copies[id(part)]

    return copied(tree)


def _copied_param(param: BaseParam) -> BaseParam:
    new = copy.copy(param)
    if isinstance(new, DynamicParam):
        new.set(jax.tree.map(_copied_array, new.value))
    return new


def _copied_array(leaf: Any) -> Any:
    """An array with memory of its own; while a program is traced there is no memory yet."""
    is_held = isinstance(leaf, (jax.Array, np.ndarray)) and not isinstance(leaf, jax.core.Tracer)
    return copy.deepcopy(leaf) if is_held else leaf


def get_values(tree: Any, mask: Any = None) -> dict[str, Any]:
    """The values of a tree's parameters by path: `{path: array}`, the form that gradients have.

    Args:
        tree: modules, parameters, and containers of them. A parameter itself has the path `""`.
        mask: which parameters; by default all, with `True` all trainable ones.

    Returns:
        The arrays themselves. They end when the tree is donated to a program; those of a `clone` do not.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from chainrule.stateful import get_values, grad, layers, set_values
        >>> layer = layers.Linear(2, 1)
        >>> loss = lambda x, *, layer: jnp.sum(layer(x))
        >>> gradients = grad(loss, kwargs_mask=True)(jnp.ones(2), layer=layer)["layer"]
        >>> new = jax.tree.map(lambda v, g: v - 0.1 * g, get_values(layer, True), gradients)
        >>> _ = set_values(layer, new)
    """
    params = select(tree, mask if mask is True else Mask(mask))
    return {path: param.value for path, param in params.items()}


def set_values(tree: T, values: Mapping[str, Any], *, strict: bool = True) -> T:
    """Set parameters by path, all or none, and return the tree.

    Args:
        tree: modules, parameters, and containers of them.
        values: `{path: value}`, as `get_values` gives it. Parameters that it does not name stay as they are.
        strict: refuse values of another shape, dtype or structure than the parameter has.

    Raises:
        InputError: there is no parameter at a path, or a value does not fit; nothing has been set then.
    """
    structure = Structure().visit(tree)
    unknown = [path for path in values if structure.aliases.get(path, path) not in structure.params]
    if unknown:
        raise InputError(
            f"There is no parameter at {listed(unknown)}; the parameters are {listed(structure.params)}.",
            code="path_unknown",
            path=unknown[0],
        )
    params = {path: structure.params[structure.aliases.get(path, path)] for path in values}
    for path, param in params.items():
        old, new = param.value, values[path]
        if strict and not (old is None or new is None or same_type(old, new)):
            raise InputError(
                f"`{path}` is {describe(old)} and the new value {describe(new)}. Cast or reshape it, or pass "
                "`strict=False`. Nothing was set.",
                code="bad_value",
                path=path,
            )
    write_all((param, checked(values[path])) for path, param in params.items())
    return tree


def tree_extract(tree: Any, mask: Any = None) -> tuple[DynamicParam, ...]:
    """The parameters of a tree, each once, in the order of their paths' walk.

    Args:
        tree: modules, parameters, and containers of them.
        mask: which ones; by default all.
    """
    return tuple(select(tree, Mask(mask)).values())


def tree_inject(tree: T, values: Iterable[Any], mask: Any = None) -> T:
    """Set the parameters that `tree_extract` gives, in its order, and return the tree.

    Args:
        tree: modules, parameters, and containers of them.
        values: as many values (or parameters, whose values are taken) as parameters.
        mask: which ones; by default all.

    Raises:
        InputError: too few or too many values; nothing has been set then.
    """
    params = tree_extract(tree, mask)
    new = [value.value if isinstance(value, DynamicParam) else unwrap(value) for value in values]
    if len(new) != len(params):
        raise InputError(
            f"Expected {len(params)} values, one per parameter, found {len(new)}; nothing was set.",
            code="wrong_count",
        )
    write_all(zip(params, new, strict=True))
    return tree


class ParamRef(StaticParam):
    """Stands for a later occurrence of a shared parameter: the ordinal of the first one."""

    __slots__ = ()


def tree_ref(tree: T) -> T:
    """A copy of a tree in which every parameter occurs once; later occurrences become references.

    The result is a tree without sharing, as plain `jax.*` transformations take it. Applied twice, it has
    to be undone twice.
    """
    # The walk visits a tree in one order, here and in `tree_unref`: the ordinal of a first occurrence means
    # the same parameter in both. A reference that is there already is wrapped once more, so that undoing
    # twice works.
    seen: dict[int, int] = {}

    def replace(path: str, param: BaseParam) -> BaseParam:
        if isinstance(param, ParamRef):
            return ParamRef(param)
        if id(param) in seen:
            return ParamRef(seen[id(param)])
        seen[id(param)] = len(seen)
        return param

    return replicate(tree, replace)


def tree_unref(tree: T) -> T:
    """Undo `tree_ref`: references become the parameters they stand for.

    Raises:
        InputError: the tree has lost the parameter a reference stands for.
    """
    found: list[BaseParam] = []
    known: set[int] = set()

    def replace(path: str, param: BaseParam) -> BaseParam:
        if isinstance(param, ParamRef):
            return _resolve(param, found, path)
        if id(param) not in known:
            known.add(id(param))
            found.append(param)
        return param

    return replicate(tree, replace)


def _resolve(reference: ParamRef, found: list[BaseParam], path: str) -> BaseParam:
    target = reference.get()
    if isinstance(target, ParamRef):
        return target
    if target >= len(found):
        raise InputError(
            f"`{path}` refers to parameter number {target}, but only {len(found)} come before it. "
            "References can be resolved only in the tree they were made in.",
            code="dangling_reference",
            path=path,
        )
    return found[target]
