"""Modules that have an energy and a status, and `step`, which sets the status for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax

from chainrule._errors import InputError
from chainrule.predictive._kinds import clear
from chainrule.stateful import BaseParam, Module, ParamCache, StaticParam, tree_extract
from chainrule.stateful.internal import flatten, is_node, join, named_pairs


class EnergyModule(Module):
    """A network, or a part of one, whose energy is the sum over the nodes inside.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.predictive import EnergyModule, Vode
        >>> class Pair(EnergyModule):
        ...     def __init__(self):
        ...         self.a, self.b = Vode(), Vode()
        >>> pair = Pair()
        >>> for node in (pair.a, pair.b, pair.a):
        ...     _ = node.set("u", jnp.zeros(2)).set("h", jnp.ones(2))
        >>> float(pair.energy())
        2.0
    """

    _status: StaticParam
    # Whether a `step` is open. Tracked as the status is, so that a jitted function that was compiled
    # outside a step is not taken for one inside.
    _in_step: StaticParam

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls, *args, **kwargs)
        self.__dict__["_status"] = StaticParam(None)
        self.__dict__["_in_step"] = StaticParam(False)
        return self

    @property
    def status(self) -> Any:
        """What this module is doing, see `STATUS`; `step` sets it in a whole network for a while."""
        return self._status.get()

    @status.setter
    def status(self, status: Any) -> None:
        self._status.set(status)

    def energy(self) -> Any:
        """The sum of the energies of all nodes inside, each node once, however often it is referred to.

        A part that has its own `energy` method is asked, and not looked into.
        """
        return sum((part.energy() for _, part in _parts_inside(self, "", {id(self)})), 0.0)

    def clear_params(self, select: Any) -> None:
        """Set the selected parameters to `None`.

        Args:
            select: a kind, a tuple of kinds, a mask, or a predicate of the parameter.
        """
        clear(self, select)


def node_energies(module: EnergyModule) -> dict[str, Any]:
    """The terms of a module's energy by path: one for each part that has its own `energy` method."""
    if _has_own_energy(module):
        return {"": module.energy()}
    return {path: part.energy() for path, part in _parts_inside(module, "", {id(module)})}


def _has_own_energy(part: Any) -> bool:
    return isinstance(part, EnergyModule) and type(part).energy is not EnergyModule.energy


Parts = Iterator[tuple[str, EnergyModule]]


def _parts_inside(node: Any, path: str, seen: set[int]) -> Parts:
    """The parts of a module or container that have an energy of their own, with their paths; each once."""
    for name, part in named_pairs(node):
        yield from _parts_of(part, join(path, name), seen)


def _parts_of(tree: Any, path: str, seen: set[int]) -> Parts:
    for inner, node in flatten(tree)[0]:
        if isinstance(node, BaseParam) or not is_node(node) or id(node) in seen:
            continue
        seen.add(id(node))
        here = join(path, inner)
        if _has_own_energy(node):
            yield here, node
        else:
            yield from _parts_inside(node, here, seen)


T = TypeVar("T")
_AS_BEFORE = object()


@contextmanager
def step(tree: T, status: Any = None, *, clear_params: Any = None) -> Iterator[T]:
    """Give a network a status for the body of a `with` statement.

    Afterwards every module has the status it had before, also when the body raises. Steps nest: one that
    clears caches inside another one leaves behind what the outer step had in them.

    Args:
        tree: a module, or a container of modules.
        status: set in every `EnergyModule` inside. A pair `(during, after)` leaves the second behind
            when the body succeeds.
        clear_params: what to set to `None` after the body, also when it raises: usually
            `VodeParam.Cache`. A pair `(before, after)` clears before the body too. Caches that an enclosing
            step uses are not cleared but get back what they held.

    Example:
        >>> from chainrule.predictive import STATUS, Vode, VodeParam, step
        >>> node = Vode()
        >>> with step(node, STATUS.INIT, clear_params=VodeParam.Cache):
        ...     _ = node(1.0)
        >>> node.status, float(node.h), node.get("u")
        (None, 1.0, None)
    """
    clear_before, clear_after = _pair(clear_params, "clear_params", (None, clear_params))
    during, after = _pair(status, "status", (status, _AS_BEFORE))
    modules = list(_energy_modules(tree))
    marks = [mark for module in modules for mark in (module._status, module._in_step)]
    before = _Kept(marks)
    outer = _Kept(_caches([m for m in modules if m._in_step.get()], clear_after))
    if clear_before is not None:
        clear(tree, clear_before)
    try:
        for module in modules:
            module.status = during
            module._in_step.set(True)
        yield tree
    except BaseException:
        after = _AS_BEFORE
        raise
    finally:
        before.restore()
        if clear_after is not None:
            clear(tree, clear_after)
        outer.restore()
        if after is not _AS_BEFORE:
            for module in modules:
                module.status = after


class _Kept:
    """The values of some parameters at one moment."""

    def __init__(self, params: Iterable[BaseParam]) -> None:
        self._values = [(param, param.get()) for param in params]

    def restore(self) -> None:
        for param, value in self._values:
            if param.get() is not value:
                param.set(value)


def _caches(modules: list[EnergyModule], select: Any) -> list[BaseParam]:
    if select is None or not modules:
        return []
    return [param for param in tree_extract(modules, select) if isinstance(param, ParamCache)]


def _pair(value: Any, name: str, otherwise: tuple[Any, Any]) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)):
        return otherwise
    if len(value) != 2:
        raise InputError(
            f"`{name}` is one value or a pair of them; found {len(value)}.", code="bad_argument"
        )
    return value[0], value[1]


def _energy_modules(tree: Any, seen: set[int] | None = None) -> Iterator[EnergyModule]:
    seen = set() if seen is None else seen
    for module in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Module)):
        if not isinstance(module, Module) or id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, EnergyModule):
            yield module
        yield from _energy_modules(list(module.submodules()), seen)
