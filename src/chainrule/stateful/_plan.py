"""The protocol between a transformation and the keyword arguments of a call.

A `Plan` is everything about keyword arguments that does not change from call to call: which parameters they
hold (each once, the default random generator included), where, and their structure. From it follow the flat
values a pure function takes, and the live keyword arguments the user's function gets.

A *slot* is a position in the flat values: first the parameters, then the plain arrays among the keyword
arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from chainrule.stateful._frames import peek_static, structure_edited
from chainrule.stateful._nodes import Node, has_identity
from chainrule.stateful._params import BaseParam, DynamicParam, StaticParam
from chainrule.stateful._random import RKG
from chainrule.stateful._snapshots import Static
from chainrule.stateful._values import is_arraylike
from chainrule.stateful._walk import Structure, flatten, replicate

_DEFAULT_GENERATOR = "<RKG>.key"  # no keyword argument can have this name


@jax.tree_util.register_static
class Live:
    """Stands for the caller's own object in the result of a pure function."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Live) and other.index == self.index

    def __hash__(self) -> int:
        return hash((Live, self.index))


def keyword_of(path: str) -> str:
    """The keyword argument that a slot's path begins with."""
    return path.split(".", 1)[0]


def plain_values(positions: Sequence[int], kwargs: Mapping[str, Any]) -> list[Any]:
    """The plain arrays among the leaves of keyword arguments."""
    if not positions:
        return []
    leaves = jax.tree.leaves(dict(kwargs), is_leaf=has_identity)
    return [leaves[position] for position in positions]


class Plan:
    """The tracked content of some keyword arguments.

    Attributes:
        params: every parameter once, in the order of the slots.
        paths: the path of every slot; the first segment is the keyword.
        names: the keywords.
        plain: positions of plain arrays among the leaves of the keyword arguments.
        statics: every static parameter once.
        key: equal for keyword arguments that can run the same compiled code, if their static parameters
            are equal too.
    """

    __slots__ = (
        "_leaves", "_treedef", "key", "names", "params", "paths", "plain", "statics", "structure",
    )  # fmt: skip

    def __init__(self, kwargs: Mapping[str, Any], static_names: Collection[str] = ()) -> None:
        leaves, self._treedef = flatten(dict(kwargs), has_identity)
        self.structure = Structure()
        self.plain = [
            index
            for index, (path, leaf) in enumerate(leaves)
            if is_arraylike(leaf)
            and not has_identity(leaf)
            and keyword_of(path) not in static_names
        ]
        plain = set(self.plain)
        for index, (path, leaf) in enumerate(leaves):
            if index not in plain:
                self.structure.visit(leaf, path)
        self._leaves = [None if i in plain else leaf for i, (_, leaf) in enumerate(leaves)]
        self.key = (self.structure.signature, self._treedef)
        self.statics = tuple(self.structure.statics.values())
        self.names = tuple(kwargs)
        self._add_default_generator()
        self.params: tuple[DynamicParam, ...] = tuple(self.structure.params.values())
        self.paths = (*self.structure.params, *(leaves[i][0] for i in self.plain))

    def _add_default_generator(self) -> None:
        if all(param is not RKG.key for param in self.structure.params.values()):
            self.structure.params[_DEFAULT_GENERATOR] = RKG.key

    def read(self, kwargs: Mapping[str, Any]) -> list[Any]:
        """The values of all slots now."""
        return [*(param.get() for param in self.params), *plain_values(self.plain, kwargs)]

    def live_kwargs(self, plain: Sequence[Any]) -> dict[str, Any]:
        """The keyword arguments for the user's function: live nodes, given values for plain arrays."""
        leaves = list(self._leaves)
        for index, value in zip(self.plain, plain, strict=True):
            leaves[index] = value
        return jax.tree.unflatten(self._treedef, leaves)

    def path_of(self, param: Any) -> str:
        """The path of a tracked parameter."""
        return next(path for path, p in self.structure.params.items() if p is param)

    def tracks_static(self, param: StaticParam) -> bool:
        """Whether a static parameter is among the tracked ones."""
        return id(param) in self.structure.statics

    def check_unedited(self) -> None:
        """Refuse edits of containers that are not ours, as our own modules and containers do at once.

        Raises:
            TrackingError: a foreign container inside a module holds other parameters than before.
        """
        if not self.structure.has_foreign:
            return
        now = Structure()
        for node in self.structure.nodes:
            now.visit(node)
        if [*map(id, now.nodes)] != [*map(id, self.structure.nodes)]:
            raise structure_edited("A container that a module holds was edited")

    def slots_of(self, params: set[int]) -> Iterator[int]:
        """The slots of parameters given by identity."""
        return (slot for slot, param in enumerate(self.params) if id(param) in params)

    def static_values(self) -> list[Static]:
        """What the static parameters hold now."""
        return [Static(peek_static(param)) for param in self.statics]

    def positions(self, statics: Collection[int]) -> set[int]:
        """The positions of static parameters given by identity, the same in all equal structures."""
        return {place for place, param in enumerate(self.statics) if id(param) in statics}

    def static_writes(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """What static parameters were set to, by position."""
        return {place: values[id(self.statics[place])] for place in self.positions(values)}

    def commit_statics(self, writes: Mapping[int, Any]) -> None:
        """Set static parameters by their position."""
        for place, value in writes.items():
            self.statics[place].set(value)

    def detach(self, result: Any) -> tuple[Any, bool]:
        """Replace the caller's own objects in a result by tokens; say whether there were any."""
        order = {id(node): i for i, node in enumerate(self.structure.nodes)}
        order.setdefault(id(RKG), -1)
        found = False

        def copy_live(path: str, param: BaseParam) -> BaseParam:
            return copy.copy(param) if id(param) in order else param

        def token(x: Any) -> Any:
            nonlocal found
            if not isinstance(x, Node):
                return x
            if id(x) not in order:
                return replicate(x, copy_live)  # a new object, which may hold live ones
            found = True
            return Live(order[id(x)])

        return jax.tree.map(token, result, is_leaf=has_identity), found

    def attach(self, result: Any) -> Any:
        """Replace tokens by the caller's own objects."""
        nodes = self.structure.nodes
        return jax.tree.map(
            lambda x: (RKG if x.index < 0 else nodes[x.index]) if isinstance(x, Live) else x,
            result,
            is_leaf=lambda x: isinstance(x, Live),
        )
