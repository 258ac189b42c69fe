"""One call of a transformed function: collect, run purely, commit.

The protocol is the same for all transformations: collect the tracked parameters, make a pure function of
their flat values, hand it to a JAX transformation, commit what was written.

    Inventory        everything about keyword arguments that does not change from call to call: which
                     parameters they hold (each once, the default random generator included), where, and
                     their structure
    execute          the core of the pure function: the user's function on live objects
    Call             the whole protocol, for transformations that trace anew each time; they add only how
                     JAX has to treat the values (mapped, differentiated, carried, …). `jit`, which
                     replays, has its own (`_jit`)
    Transformation   what all of them are to a user: a callable object around a function
    Retracing        those that trace anew each time: a function of a `Call` says what each of them does

A *slot* is a position in the flat values: first the parameters, then the plain arrays among the keyword
arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from chainrule.stateful._errors import TrackingError
from chainrule.stateful._frames import Frame, enter, peek_static, structure_edited, write_all
from chainrule.stateful._module import Module
from chainrule.stateful._nodes import Node, has_identity
from chainrule.stateful._params import BaseParam, DynamicParam, StaticParam
from chainrule.stateful._random import RKG
from chainrule.stateful._snapshots import Snapshot, same
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


class Inventory:
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

    def static_values(self) -> list[Snapshot]:
        """What the static parameters hold now."""
        return [Snapshot(peek_static(param)) for param in self.statics]

    def positions(self, statics: Collection[int]) -> set[int]:
        """The positions of static parameters given by identity, the same in all equal structures."""
        return {place for place, param in enumerate(self.statics) if id(param) in statics}

    def static_writes(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """What static parameters were set to, by position."""
        places = sorted(self.positions(values))
        return {place: values[id(self.statics[place])] for place in places}

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


class Outcome(NamedTuple):
    """What one run of the user's function left behind."""

    result: Any
    frame: Frame
    returns_live: bool


def execute(
    inventory: Inventory,
    function: Callable[..., Any],
    values: Sequence[Any],
    args: tuple[Any, ...],
    *,
    is_barrier: bool = False,
) -> Outcome:
    """Run the user's function on the caller's live objects, with `values` for what they hold."""
    count = len(inventory.params)
    # Taken apart outside of the frame, put together inside: a positional module is a copy that belongs
    # to the frame, never the caller's.
    leaves, treedef = jax.tree.flatten(args)
    with enter(inventory, values[:count], is_barrier=is_barrier) as frame:
        copies = jax.tree.unflatten(treedef, leaves)
        kwargs = inventory.live_kwargs(values[count:])
        before = _contents(kwargs)
        result = function(*copies, **kwargs)
        result, returns_live = inventory.detach(result)
    inventory.check_unedited()
    _check_contents(before)
    return Outcome(result, frame, returns_live)


Contents = list[tuple[str, Any, list[Any]]]


def _contents(kwargs: Mapping[str, Any]) -> Contents:
    """The plain dictionaries and lists among keyword arguments: the keyword, the container, what is in it."""
    found: Contents = []

    def search(keyword: str, value: Any) -> None:
        if isinstance(value, Node) or not isinstance(value, (dict, list, tuple)):
            return
        if not isinstance(value, tuple):
            found.append((keyword, value, _items(value)))
        for item in value.values() if isinstance(value, dict) else value:
            search(keyword, item)

    for keyword, value in kwargs.items():
        search(keyword, value)
    return found


def _items(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else [*container]


def _check_contents(contents: Contents) -> None:
    """The function got copies of plain containers, so an edit of one would be lost."""
    for keyword, container, before in contents:
        now = _items(container)
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            kind = type(container).__name__
            raise TrackingError(
                f"The {kind} passed as `{keyword}` was edited inside a transformed function, where it is a "
                f"copy: the caller's {kind} would not change. Return what is new, keep it in a `Param` or "
                f"`ParamDict`, or edit a copy of your own, `{kind}({keyword})`.",
                code="structure_changed",
                path=keyword,
            )


def name_of(function: Callable[..., Any]) -> str:
    """The name a function has in jaxprs, profiles and messages."""
    return getattr(function, "__name__", type(function).__name__)


class Call:
    """The tracked state of one call.

    Attributes:
        inventory: the parameters and their paths.
        values: the values of all slots at the start.
        written: slots that any run of the function has set.
    """

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        self.inventory = Inventory(kwargs)
        self.values = self.inventory.read(kwargs)
        self.written: set[int] = set()
        self._static_runs: list[dict[int, Any]] = []
        self._returns_live = False

    def pure(
        self, function: Callable[..., Any], *, within: str | None = None
    ) -> Callable[..., Any]:
        """A pure function `(values, *args) -> (result, values of the parameters)`.

        Args:
            function: the user's function; it gets `args` and the live keyword arguments.
            within: in loops and branches, their name for messages: types must not change there.
        """

        def run(values: Sequence[Any], *args: Any) -> tuple[Any, list[Any]]:
            result, frame, returns_live = execute(self.inventory, function, values, args)
            if within is not None:
                frame.check_types_kept(within)
            self.written.update(self.inventory.slots_of(frame.written))
            self._static_runs.append(self.inventory.static_writes(frame.statics))
            self._returns_live |= returns_live
            return result, frame.results()

        run.__name__ = run.__qualname__ = name_of(function)
        return run

    def finish(self, result: Any, values: Sequence[Any], *, is_loop: bool = False) -> Any:
        """Commit what was written, and put the caller's own objects back into a result."""
        static_writes = self._agreed_static_writes(is_loop)
        write_all((self.inventory.params[slot], values[slot]) for slot in sorted(self.written))
        self.inventory.commit_statics(static_writes)
        return self.attach(result)

    def attach(self, result: Any) -> Any:
        """A result with the caller's own objects in their places."""
        return self.inventory.attach(result) if self._returns_live else result

    def _agreed_static_writes(self, is_loop: bool) -> dict[int, Any]:
        """Static writes have no array to travel in: all traces of a call must agree on them."""
        runs = [*self._static_runs, *([{}] if is_loop else [])]
        if not runs or all(same(run, runs[0]) for run in runs):
            return runs[0] if runs else {}
        # Setting what is there already changes nothing, in a loop and in one branch alone too.
        held = {place: self.inventory.statics[place].get() for run in runs for place in run}
        runs = [{place: v for place, v in run.items() if not same(v, held[place])} for run in runs]
        if all(same(run, runs[0]) for run in runs):
            return runs[0]
        raise TrackingError(
            "A static parameter was changed inside a loop, or differently in two branches. What a static "
            "parameter holds must be known before the program runs; use a `Param` for what changes there.",
            code="static_changed",
        )


class Bound(functools.partial[Any]):
    """A transformed method of one module, which is tracked as the keyword argument `self`."""


class Transformation:
    """A transformed function: positional arguments are pure values, keyword arguments are tracked.

    Used on a method of a module, the module itself is tracked.
    """

    def __init__(self, fun: Callable[..., Any], **options: Any) -> None:
        self._fun = fun
        self._options = options
        functools.update_wrapper(self, fun, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return Bound(self._as_method, self=instance)

    @functools.cached_property
    def _as_method(self) -> Transformation:
        return type(self)(tracking_self(self._fun), **self._options)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self._fun)})"


class Retracing(Transformation):
    """A transformation that traces anew at each call.

    Args:
        fun: the user's function.
        name: of the transformation.
        run: what a call does: `run(call, fun, args, **options)`, with the keyword arguments in `call`.
        **options: of the transformation.
    """

    def __init__(
        self, fun: Callable[..., Any], *, name: str, run: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(fun, name=name, run=run, **options)
        self._name, self._run, self._own_options = name, run, options

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._run(Call(kwargs), self._fun, args, **self._own_options)

    def __repr__(self) -> str:
        return f"{self._name}({name_of(self._fun)})"


def tracking_self(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a function whose keyword argument `self` is the module."""

    @functools.wraps(fun)
    def method(*args: Any, **kwargs: Any) -> Any:
        module = kwargs.pop("self")
        if isinstance(fun, Transformation):  # it tracks the module itself
            return fun.__get__(module)(*args, **kwargs)
        return fun(module, *args, **kwargs)

    signature = inspect.signature(fun)
    # Positions count what is passed by position, and the module is not.
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values()][1:]
    )
    return method


def decorator(
    transformation: Callable[..., Any], fun: Callable[..., Any] | None, **options: Any
) -> Any:
    """`f = transformation(f)`, `@transformation` and `@transformation(option=…)` alike.

    A module, or a method of one, is tracked: `vmap(model)(x)` changes the parameters of `model`.
    """
    if fun is None:
        return functools.partial(decorator, transformation, **options)
    owner = _owner(fun)
    if owner is None:
        return transformation(fun, **options)
    if isinstance(fun, Bound):
        return Bound(transformation(fun.func, **options), **fun.keywords)
    method = fun.__func__ if inspect.ismethod(fun) else type(fun).__call__
    return transformation(method, **options).__get__(owner)


def _owner(fun: Callable[..., Any]) -> Module | None:
    """The module that is called: the function itself, or what it is a method of."""
    if isinstance(fun, Module):
        return fun
    owner = fun.keywords["self"] if isinstance(fun, Bound) else getattr(fun, "__self__", None)
    is_method = isinstance(fun, Bound) or inspect.ismethod(fun)
    return owner if is_method and isinstance(owner, Module) else None


def with_callees(
    functions: Sequence[Callable[..., Any]], tracked: Mapping[str, Any]
) -> tuple[list[Callable[..., Any]], dict[str, Any]]:
    """Functions for one call, and its keyword arguments with the modules that are called by them.

    A module, or one whose method is called, is tracked as keyword argument `self`; several different ones as
    a list. For transformations that run at once: the functions run on the caller's own modules.
    """
    owners = [owner for owner in map(_owner, functions) if owner is not None]
    if not owners:
        return list(functions), dict(tracked)

    def without_self(fun: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, self: Any, **kwargs: Any) -> Any:
            return fun(*args, **kwargs)

        run.__name__ = run.__qualname__ = name_of(fun)
        return run

    is_one = all(owner is owners[0] for owner in owners)
    return [*map(without_self, functions)], {"self": owners[0] if is_one else owners, **tracked}


def eval_shape(fun: Callable[..., Any], /, *args: Any, **tracked: Any) -> Any:
    """The shapes and dtypes of a function's result. No parameter changes.

    Args:
        fun: the function.
        *args: its positional arguments, or `jax.ShapeDtypeStruct`s in their places.
        **tracked: its keyword arguments.
    """
    (fun,), tracked = with_callees((fun,), tracked)
    call = Call(tracked)
    result, _ = jax.eval_shape(call.pure(fun), call.values, *args)
    return call.attach(result)
