"""`jit`: one compiled program per structure, and as little as possible in front of it.

What happens on a call, when nothing but values has changed since an earlier one: recognise the keyword
arguments by identity, gather the parameters' values into a list, call one `jax.jit`, store what comes back.
Modules are not walked and no object is rebuilt.

    bound      the flat parameter list of these very objects; valid while the structure epoch stands still.
               It does not hold the objects themselves, so a jitted function keeps no model alive
    program    a `jax.jit` shared by all keyword arguments of equal structure. When it has to trace, its body
               asks the thread for the keyword arguments of the call that is being made
    output     (result, {slot: new value}, notes). The written slots are keys of the output, so every
               specialisation of a program describes itself; notes (static writes, returned live objects)
               are part of the output's structure and cost nothing
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from chainrule._errors import InputError
from chainrule._jaxpr import NO_TRACE, is_transforming, trace_state
from chainrule.stateful._frames import epoch, local, write_all
from chainrule.stateful._nodes import is_node
from chainrule.stateful._plan import Plan, keyword_of, plain_values
from chainrule.stateful._program import Notes, Program, as_tuple
from chainrule.stateful._statics import Static
from chainrule.stateful._transformation import Transformation, decorator
from chainrule.stateful._values import is_arraylike
from chainrule.stateful._walk import flatten

__all__ = ["Jit", "jit"]

_MAX_PLANS = 64


class _Bound:
    """The parameters of keyword arguments, together with the program that runs them.

    Attributes:
        cells: the storage of the parameters, in the order of the program's slots.
        plain: positions of plain arrays among the leaves of the keyword arguments.
        epoch: of the structure when this was made; none where edits of the structure go unnoticed.
        identities: of the keyword arguments; `count` says how many.
        roots: weak references that remove this entry when a keyword argument dies.
    """

    __slots__ = (
        "call", "cells", "count", "donates", "epoch", "identities", "plain", "program", "roots",
    )  # fmt: skip

    def __init__(
        self, plan: Plan, program: Program, kwargs: Mapping[str, Any], roots: Sequence[Any]
    ) -> None:
        self.cells = [param._cell for param in plan.params]
        self.plain = plan.plain
        self.program = program
        self.call = program.call
        self.donates = bool(program.donated)
        self.epoch = None if plan.structure.has_foreign else epoch.now
        self.identities = [(name, id(value)) for name, value in kwargs.items()]
        self.count = len(kwargs)
        self.roots = roots

    def inputs(self, kwargs: dict[str, Any]) -> tuple[list[Any], ...]:
        """What the program takes before the positional arguments."""
        values = [cell.value for cell in self.cells]
        return self.program.arrange(values + plain_values(self.plain, kwargs))


def _static_arguments(
    fun: Callable[..., Any], nums: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions and the names of static arguments, which may be passed either way."""
    if not (nums or names):
        return (), ()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return nums, names
    positional = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    places = {p.name: i for i, p in enumerate(positional) if p.kind is p.POSITIONAL_OR_KEYWORD}
    chosen = {num + len(positional) if num < 0 else num for num in nums}
    named = [name for name, place in places.items() if place in chosen]
    return (*nums, *(places[name] for name in names if name in places)), (*names, *named)


def _heed(notes: Notes, plan: Plan, result: Any) -> Any:
    static_writes, returns_live = notes.value
    plan.commit_statics(static_writes)
    return plan.attach(result) if returns_live else result


def _forget(owner: weakref.ref[Jit], key: Any, _: Any) -> None:
    jit = owner()
    if jit is not None:
        jit._bound.pop(key, None)
        jit._last = None


class Lowered:
    """A lowered function; everything `jax.stages.Lowered` has, and `compile` that keeps tracking."""

    def __init__(self, owner: Jit, lowered: Any) -> None:
        self._owner = owner
        self._lowered = lowered

    def compile(self, **options: Any) -> Compiled:
        """Compile for the arguments it was lowered for."""
        return Compiled(self._owner, self._lowered.compile(**options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


class Compiled:
    """A compiled function; call it like the function, without its static arguments."""

    def __init__(self, owner: Jit, compiled: Any) -> None:
        self._owner = owner
        self._compiled = compiled

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._owner._call_any(args, kwargs, self._compiled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


class Jit(Transformation):
    """A compiled function; see `jit`."""

    def __init__(self, fun: Callable[..., Any], **options: Any) -> None:
        super().__init__(fun, **options)
        self.fun = fun
        nums, self._static_names = _static_arguments(
            fun, as_tuple(options["static_argnums"]), as_tuple(options["static_argnames"])
        )
        self.options = {**options, "static_argnums": nums}
        # Options that say something about single arguments need programs per number of arguments.
        special = ("static_argnums", "donate_argnums", "in_shardings")
        self._has_simple_options = not any(self.options[name] for name in special)
        self._bound: dict[Any, _Bound] = {}
        self._last: _Bound | None = None
        self._programs: dict[Any, Program] = {}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        bound = self._last
        if bound is None or bound.epoch != epoch.now or len(kwargs) != bound.count:
            return self._call_any(args, kwargs)
        if local.stack or trace_state.value is not NO_TRACE:
            return self._call_nested(args, kwargs)
        for name, identity in bound.identities:
            if id(kwargs.get(name)) != identity:
                return self._call_any(args, kwargs)
        # The way of almost every call, written out: a function call less is 2 % of a small program.
        cells = bound.cells
        local.call = kwargs
        try:
            values = [cell.value for cell in cells]
            if bound.donates:
                result, writes, notes = bound.call(*bound.program.arrange(values), *args)
            else:
                result, writes, notes = bound.call(values, *args)
        finally:
            local.call = None
        for slot, value in writes.items():
            cells[slot].value = value
        return result if notes is None else _heed(notes, self.plan(kwargs), result)

    def _call_any(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any = None) -> Any:
        if local.stack or is_transforming():
            return self._call_nested(args, kwargs)
        bound = self._find(args, kwargs)
        inputs = bound.inputs(kwargs)
        result, writes, notes = _calling(kwargs, call or bound.call, *inputs, *args)
        for slot, value in writes.items():
            bound.cells[slot].value = value
        return result if notes is None else _heed(notes, self.plan(kwargs), result)

    def _call_nested(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inside another transformed function: values come from frames and go back into them.

        A plain `jax.*` function has no frame; what would put its tracer into a parameter is refused.
        """
        plan = self.plan(kwargs)
        program = self._program(plan, args, kwargs, may_donate=False)
        result, writes, notes = _calling(kwargs, program.call, plan.read(kwargs), *args)
        write_all((plan.params[slot], value) for slot, value in writes.items())
        return result if notes is None else _heed(notes, plan, result)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Lower for these arguments without running; `.compile()` gives a callable that tracks too."""
        bound = self._find(args, kwargs)
        return Lowered(self, _calling(kwargs, bound.call.lower, *bound.inputs(kwargs), *args))

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Trace for these arguments: `jax.stages.Traced` of the flat function, with its jaxpr."""
        bound = self._find(args, kwargs)
        return _calling(kwargs, bound.call.trace, *bound.inputs(kwargs), *args)

    def clear_cache(self) -> None:
        """Forget every plan and compiled program."""
        self._bound.clear()
        self._last = None
        self._programs.clear()

    def plan(self, kwargs: dict[str, Any]) -> Plan:
        """What is tracked in these keyword arguments."""
        return Plan(kwargs, self._static_names)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        """What was bound for keyword arguments that hold more than nodes, or have changed."""
        is_simple = self._has_simple_options and all(map(is_node, kwargs.values()))
        if is_simple:
            key: Any = (*kwargs, *map(id, kwargs.values()))
        else:
            key = self._identity(args, kwargs)
        bound = self._bound.get(key)
        if bound is None or bound.epoch != epoch.now:
            bound = self._bind(key, args, kwargs)
        if is_simple:
            self._last = bound
        return bound

    def _identity(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A key for mixed keyword arguments: nodes by identity, arrays by place, the rest by value."""
        leaves, treedef = flatten(kwargs)
        marks = [id(leaf) if is_node(leaf) else None if self._is_plain(path, leaf) else Static(leaf)
                 for path, leaf in leaves]  # fmt: skip
        return len(args), treedef, tuple(marks)

    def _is_plain(self, path: str, leaf: Any) -> bool:
        return is_arraylike(leaf) and keyword_of(path) not in self._static_names

    def _bind(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        plan = self.plan(kwargs)
        for node in plan.structure.nodes:
            if not node._seen:
                object.__setattr__(node, "_seen", True)
        plan.read(
            kwargs
        )  # makes the state of generators nobody has drawn from: calls read the storage
        forget = functools.partial(_forget, weakref.ref(self), key)
        # A tuple cannot be referred to weakly. It is held, so that no other object gets its identity.
        roots = [
            leaf if isinstance(leaf, tuple) else weakref.ref(leaf, forget)
            for leaf in jax.tree.leaves(kwargs, is_leaf=is_node)
            if is_node(leaf)
        ]
        if len(self._bound) >= _MAX_PLANS:
            self._bound.clear()
        bound = _Bound(plan, self._program(plan, args, kwargs, may_donate=True), kwargs, roots)
        self._bound[key] = bound
        return bound

    def _program(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], *, may_donate: bool
    ) -> Program:
        donates = bool(self.options["donate"]) and may_donate
        key = (plan.key, len(args), donates)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _MAX_PLANS:
                self._programs.clear()
            program = Program(self, plan, len(args))
            if donates:
                slots = self._donated_slots(program, plan, args, kwargs)
                program = Program(self, plan, len(args), slots)
            self._programs[key] = program
        return program

    def _donated_slots(self, program: Program, plan: Plan, args: Any, kwargs: Any) -> list[int]:
        """Slots the function writes, among those the user lets go: found by an abstract run."""
        donate = self.options["donate"]
        names = plan.names if donate is True else as_tuple(donate)
        unknown = sorted(set(names) - set(plan.names))
        if unknown:
            raise InputError(
                f"donate names {', '.join(map(repr, unknown))}, but the call has the keyword arguments "
                f"{', '.join(map(repr, plan.names)) or 'none'}.",
                code="bad_argument",
            )
        values = plan.read(kwargs)
        _, writes, _ = _calling(kwargs, program.call.eval_shape, values, *args)
        return [slot for slot in writes if keyword_of(plan.paths[slot]) in names]


def _calling(kwargs: dict[str, Any], function: Callable[..., Any], *args: Any) -> Any:
    """Call something that may trace a program's body, which asks for these keyword arguments."""
    local.call = kwargs
    try:
        return function(*args)
    finally:
        local.call = None


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    donate: bool | str | Sequence[str] = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    kwargs_shardings: Any = None,
    keep_unused: bool = False,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a function; changes to parameters in keyword arguments are there after the call.

    Args:
        fun: the function. Without it, a decorator is returned.
        donate: let the program reuse the buffers of parameters it writes: `True`, or the keywords whose
            parameters may be donated. Arrays taken out of them before a call are dead after it, and so are
            the parameters when the compiled program itself fails (a host callback that raises).
        static_argnums: as in `jax.jit`; positions count the positional arguments.
        static_argnames: as in `jax.jit`. What is not an array or number is static without being named.
        donate_argnums: as in `jax.jit`, for positional arguments.
        in_shardings: as in `jax.jit`, for positional arguments.
        out_shardings: as in `jax.jit`, for the result.
        kwargs_shardings: a mask whose values are shardings: parameters are taken and kept so.
        keep_unused: as in `jax.jit`.
        inline: as in `jax.jit`.
        compiler_options: as in `jax.jit`.

    Returns:
        A `Jit`, which also has `lower`, `trace` and `clear_cache`.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, jit
        >>> @jit(donate=True)
        ... def decay(rate, *, weight):
        ...     weight *= rate
        ...     return jnp.sum(weight)
        >>> w = Param(jnp.ones(4))
        >>> float(decay(0.5, weight=w)), float(w[0])
        (2.0, 0.5)
    """
    return decorator(
        Jit,
        fun,
        donate=donate,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        kwargs_shardings=kwargs_shardings,
        keep_unused=keep_unused,
        inline=inline,
        compiler_options=compiler_options,
    )
