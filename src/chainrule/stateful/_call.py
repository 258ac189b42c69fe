"""One call of a transformed function: collect, run purely, commit.

The protocol is the same for all transformations: collect the tracked parameters, make a pure function of
their flat values, hand it to a JAX transformation, commit what was written. `execute` is the pure function's
core. `Call` is the whole protocol for transformations that trace anew each time; they add only how JAX
has to treat the values (mapped, differentiated, carried, …). `jit`, which replays, has its own (`_jit`).
`Transformation` is what all of them are to a user: a callable object around a function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from chainrule.stateful._errors import TrackingError
from chainrule.stateful._frames import Frame, enter, write_all
from chainrule.stateful._nodes import Node
from chainrule.stateful._plan import Plan
from chainrule.stateful._snapshots import same


class Outcome(NamedTuple):
    """What one run of the user's function left behind."""

    result: Any
    frame: Frame
    returns_live: bool


def execute(
    plan: Plan,
    function: Callable[..., Any],
    values: Sequence[Any],
    args: tuple[Any, ...],
    *,
    is_barrier: bool = False,
) -> Outcome:
    """Run the user's function on the caller's live objects, with `values` for what they hold."""
    count = len(plan.params)
    # Taken apart outside of the frame, put together inside: a positional module is a copy that belongs
    # to the frame, never the caller's.
    leaves, treedef = jax.tree.flatten(args)
    with enter(plan, values[:count], is_barrier=is_barrier) as frame:
        copies = jax.tree.unflatten(treedef, leaves)
        kwargs = plan.live_kwargs(values[count:])
        before = _contents(kwargs)
        result = function(*copies, **kwargs)
        result, returns_live = plan.detach(result)
    plan.check_unedited()
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
        plan: the parameters and their paths.
        values: the values of all slots at the start.
        written: slots that any run of the function has set.
    """

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        self.plan = Plan(kwargs)
        self.values = self.plan.read(kwargs)
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
            result, frame, returns_live = execute(self.plan, function, values, args)
            if within is not None:
                frame.check_types_kept(within)
            self.written.update(self.plan.slots_of(frame.written))
            self._static_runs.append(self.plan.static_writes(frame.statics))
            self._returns_live |= returns_live
            return result, frame.results()

        run.__name__ = run.__qualname__ = name_of(function)
        return run

    def finish(self, result: Any, values: Sequence[Any], *, is_loop: bool = False) -> Any:
        """Commit what was written, and put the caller's own objects back into a result."""
        static_writes = self._agreed_static_writes(is_loop)
        write_all((self.plan.params[slot], values[slot]) for slot in sorted(self.written))
        self.plan.commit_statics(static_writes)
        return self.attach(result)

    def attach(self, result: Any) -> Any:
        """A result with the caller's own objects in their places."""
        return self.plan.attach(result) if self._returns_live else result

    def _agreed_static_writes(self, is_loop: bool) -> dict[int, Any]:
        """Static writes have no array to travel in: all traces of a call must agree on them."""
        runs = [*self._static_runs, *([{}] if is_loop else [])]
        if not runs or all(same(run, runs[0]) for run in runs):
            return runs[0] if runs else {}
        # Setting what is there already changes nothing, in a loop and in one branch alone too.
        held = {place: self.plan.statics[place].get() for run in runs for place in run}
        runs = [{place: v for place, v in run.items() if not same(v, held[place])} for run in runs]
        if all(same(run, runs[0]) for run in runs):
            return runs[0]
        raise TrackingError(
            "A static parameter was changed inside a loop, or differently in two branches. What a static "
            "parameter holds must be known before the program runs; use a `Param` for what changes there.",
            code="static_changed",
        )


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
        return functools.partial(self._as_method, self=instance)

    @functools.cached_property
    def _as_method(self) -> Transformation:
        fun = self._fun

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
        return type(self)(method, **self._options)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self._fun)})"


def decorator(
    transformation: Callable[..., Any], fun: Callable[..., Any] | None, **options: Any
) -> Any:
    """`f = transformation(f)`, `@transformation` and `@transformation(option=…)` alike."""
    if fun is None:
        return functools.partial(transformation, **options)
    return transformation(fun, **options)


def eval_shape(fun: Callable[..., Any], /, *args: Any, **tracked: Any) -> Any:
    """The shapes and dtypes of a function's result. No parameter changes.

    Args:
        fun: the function.
        *args: its positional arguments, or `jax.ShapeDtypeStruct`s in their places.
        **tracked: its keyword arguments.
    """
    call = Call(tracked)
    result, _ = jax.eval_shape(call.pure(fun), call.values, *args)
    return call.attach(result)
