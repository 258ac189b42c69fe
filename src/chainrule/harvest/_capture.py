"""From a function with sows to its sown values, in four steps.

stage_capture      trace the function with the sows of a tag alive
run_with_taps      run the traced program so that the sown values come out beside its result
collect            put them into `{name: {mode: value}}`
compile_capture    all of this under one `jax.jit`, compiled once per signature
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import InputError
from chainrule._jaxpr import (
    FOLDS,
    ClosedJaxpr,
    Extra,
    JaxprEqn,
    Rewriter,
    SourceLocation,
    aval_of,
    capture_context,
    fence,
    ring,
    trace_avals,
    walk,
)
from chainrule._partition import Template, is_array, is_array_or_number, partition, seal, unseal
from chainrule.harvest._sow import (
    PRIMAL,
    Mode,
    Reduce,
    Sowing,
    SowWatch,
    current_watch,
    is_sow,
    sowing_of,
)

_log = logging.getLogger(__name__)


# --- trace ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagedFunction:
    """A traced function.

    Attributes:
        program: the flat program.
        operands: its operands.
        rebuild: makes the function's result from the outputs of the program.
    """

    program: ClosedJaxpr
    operands: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]


def stage(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    watch: SowWatch | None = None,
) -> StagedFunction:
    """Trace a function under a watch, beside those that are set already.

    Only arrays are traced; numbers and other leaves are what they are, as static arguments have to be.
    """
    template, operands = partition((args, kwargs), _is_traced)
    result: list[Template] = []

    def flat(*inputs: Any) -> tuple[Any, ...]:
        given, named = template.join(inputs)
        outputs, arrays = partition(function(*given, **named), is_array_or_number)
        result[:] = [outputs]
        return arrays

    # With jit disabled JAX would unroll loops, and the same program would have other intermediates.
    with capture_context(current_watch() | (watch or SowWatch())), jax.disable_jit(False):
        program = trace_avals(flat, [aval_of(operand) for operand in operands])

    return StagedFunction(program, list(operands), result[0].join)


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and is_array(leaf)


def stage_capture(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tag: str
) -> StagedFunction:
    """Trace a function with all sows of a tag kept, and with the cotangents of all their leaves.

    A leaf that does not depend on what is differentiated has no cotangent in the program that JAX makes
    (see `_sow._jvp`). Where such a leaf belongs to a tree that has cotangents, the function is traced once
    more with this leaf thawed. That may uncover further ones, in the derivative of a derivative.
    """
    trace = functools.partial(stage, function, args, kwargs)
    traced, watch = _trace_kept(trace, tag)
    tried: set[_Frozen] = set()
    while wanted := sorted(_frozen_leaves(traced.program, tag) - tried):
        tried.update(wanted)
        traced, watch = _thaw(trace, traced, watch, wanted)
    return traced


def _trace_kept(
    trace: Callable[[SowWatch], StagedFunction], tag: str
) -> tuple[StagedFunction, SowWatch]:
    """Trace with all sows of a tag kept, if JAX can.

    A sow whose cotangent is a symbolic zero keeps what led to it in the program that JAX transposes. Without
    the sow JAX drops it there. It may be a `while_loop`, which has no transpose, or a `scan`, whose transpose
    raises for stacked outputs with symbolic zeros. Then these sows go without cotangents.
    """
    watch = SowWatch(kept=frozenset({tag}))
    try:
        return trace(watch), watch
    except Exception as error:
        pruned = watch | SowWatch(pruned=frozenset({tag}))
        with contextlib.suppress(Exception):
            traced = trace(pruned)
            _log.info("Sows that no result depends on stay without cotangents: %s", error)
            return traced, pruned
        raise


_Frozen = tuple[str, str, int]
"""Tag, name and depth of derivative of a sow with frozen leaves."""


def _thaw(
    trace: Callable[[SowWatch], StagedFunction],
    traced: StagedFunction,
    watch: SowWatch,
    wanted: list[_Frozen],
) -> tuple[StagedFunction, SowWatch]:
    """Trace again with as many sows thawed as possible.

    A program may have no derivative with respect to a leaf that was frozen: the leaf enters a
    `while_loop`, or an input of a component that is not differentiable. JAX then raises, at any place
    and with any exception, and the leaf stays frozen. The function itself is not to blame: it was traced
    before without an error. Halving the list finds the sows to leave out in a few attempts.
    """
    wider = watch | SowWatch(thawed=frozenset(wanted))
    try:
        return trace(wider), wider
    except Exception as error:
        if len(wanted) == 1:
            ((_, name, _),) = wanted
            _log.info("Leaves of %r stay without cotangents: %s", name, error)
            return traced, watch
    middle = len(wanted) // 2
    traced, watch = _thaw(trace, traced, watch, wanted[:middle])
    return _thaw(trace, traced, watch, wanted[middle:])


def _frozen_leaves(program: ClosedJaxpr, tag: str) -> set[_Frozen]:
    return {
        (tag, sowing.name, depth) for sowing in sowings(program, tag) for depth in sowing.left_out
    }


def sowings(program: ClosedJaxpr, tag: str) -> Iterator[Sowing]:
    """What the sows of a tag say, in program order."""
    return (eqn.params["sowing"] for eqn in walk(program) if is_sow(eqn, tag))


# --- run ------------------------------------------------------------------------------------------

# XLA computes a sown value again for each later one unless there is a fence, and a fence costs 2 to 4 µs at
# every run. n values of m elements cost up to n²/2 · m operations more without fences: for 8 values of 1024
# elements about as much as 8 fences. Beyond either, fences are cheaper.
_FEW = 8
_SMALL = 1024

Tap = Callable[[Sowing, list[Any]], Extra]
"""Makes the extra of one sow from what it says and its operands."""


def run_with_taps(traced: StagedFunction, tag: str, tap: Tap) -> tuple[list[Any], list[Extra]]:
    """The outputs of a program, and one extra per sow of a tag, in execution order."""
    directions = _directions(traced.program, tag)
    are_many = sum(sowing.is_reported for sowing in sowings(traced.program, tag)) > _FEW

    def claim(eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]) -> Any:
        sowing = sowing_of(eqn)
        outputs: list[Any] = eqn.outvars
        values = operands[: len(outputs)]
        if not sowing.is_reported:
            return values, []
        if are_many or any(math.prod(var.aval.shape) > _SMALL for var in outputs):
            values = fence(values)
        return values, [tap(_without(sowing, directions), values)]

    rewriter = Rewriter(claim, is_claimed=functools.partial(is_sow, tag=tag))
    return rewriter.run(traced.program, traced.operands)


# `jacfwd(f)` is `vmap` over directions around `jvp(f)`. The tangent of a value has the axis of that
# `vmap`; the value itself does not depend on it. Along an axis of examples every value is reported; an
# axis of directions belongs to the tangent alone. So an axis that a tangent has, and that the value of
# this tangent does not depend on, is left out of the value. Axes are counted from the innermost `vmap`.

_Directions = dict[tuple[str, Any], set[int]]
"""By name and derivative steps, the positions of axes of directions."""


def _directions(program: ClosedJaxpr, tag: str) -> _Directions:
    found: _Directions = {}
    for sowing in sowings(program, tag):
        if sowing.mode.is_tangent:
            own = {n for n, size in enumerate(reversed(sowing.axes)) if size is None}
            found.setdefault((sowing.name, sowing.mode.steps[1:]), set()).update(own)
    return found


def _without(sowing: Sowing, directions: _Directions) -> Sowing:
    dropped = directions.get((sowing.name, sowing.mode.steps), ())
    n = len(sowing.axes)
    axes = (
        size
        for position, size in enumerate(sowing.axes)
        if size is None or n - 1 - position not in dropped
    )
    return replace(sowing, axes=tuple(axes))


def tap_values(reduce: Reduce | None, buffer: int | None) -> Tap:
    """Taps that hand out the sown values; the options are for sows that leave them open."""

    def tap(sowing: Sowing, values: list[Any]) -> Extra:
        chosen, kept = sowing.reduce or reduce, sowing.buffer or buffer
        if chosen in ("sum", "mean", "max"):
            _check_numbers(sowing, values, chosen)
        return Extra(
            tuple(sowing.repeat(values)),
            sowing,
            fold=FOLDS.get(chosen or "stack"),
            open_fold=ring(kept) if kept else None,
        )

    return tap


def _check_numbers(sowing: Sowing, values: list[Any], reduce: str) -> None:
    for value in values:
        dtype = aval_of(value).dtype
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            raise InputError(
                f"Expected numbers for reduce={reduce!r}; found an array of type {dtype} in "
                f'{sowing.name!r}, sown at {sowing.where}. Write `sow(…, {sowing.name!r}, reduce="last")`, '
                'or `reduce="stack"`.',
                code="sow_reduce",
            )


# --- collect --------------------------------------------------------------------------------------

Duplicates = Literal["error", "append", "last"]
"""What a name that is sown twice means."""


class DuplicateNameError(InputError):
    """A name was sown twice in one captured function."""

    default_code = "duplicate_name"


def check_duplicates(duplicates: Any, mode: Any, *, stacklevel: int) -> Duplicates:
    """The option `duplicates`, or what the option `mode` says, its name until now.

    Raises:
        InputError: the mode is unknown.
    """
    if mode is not None:
        duplicates = "error" if mode == "strict" else mode
        warnings.warn(
            f"The option `mode` is called `duplicates` now: write duplicates={duplicates!r} for "
            f"mode={mode!r}.",
            DeprecationWarning,
            stacklevel=stacklevel + 1,
        )
    choices = get_args(Duplicates)
    if duplicates not in choices:
        raise InputError(
            f"Expected duplicates to be one of {', '.join(map(repr, choices))}, found {duplicates!r}.",
            code="capture_mode",
        )
    chosen: Duplicates = duplicates
    return chosen


def collect(
    taps: Sequence[Extra],
    duplicates: Duplicates,
    value_of: Callable[[Extra], Any] = lambda tap: tap.label.value(tap.leaves),
) -> dict[str, dict[str, Any]]:
    """`{name: {mode: value}}` of taps in execution order; names in the order they first occur."""
    by_name: dict[str, dict[Mode, list[Extra]]] = {}
    for tap in taps:
        mode = tap.label.mode.undeepened()
        by_name.setdefault(tap.label.name, {}).setdefault(mode, []).append(tap)
    if duplicates == "error":
        for name, by_mode in by_name.items():
            _check_single(name, by_mode.get(PRIMAL, []))
    return {name: _entry(by_mode, duplicates, value_of) for name, by_mode in by_name.items()}


def _check_single(name: str, primals: list[Extra]) -> None:
    """One value may have several cotangents (backward passes), but a name has one value."""
    if len(primals) > 1:
        raise _duplicate(name, _places([tap.label.call_sites for tap in primals]))


def _places(stacks: list[tuple[SourceLocation, ...]]) -> list[str]:
    """The line of each sow; where a helper was called several times, the calls that tell them apart."""
    levels = enumerate(zip(*stacks, strict=False))
    parting = next((level for level, sites in levels if len(set(sites)) > 1), 0)
    lines = [str(stack[0]) if stack else "an unknown line" for stack in stacks]
    if not parting:
        return lines
    return [
        f"{line}, called at {stack[parting]}" for line, stack in zip(lines, stacks, strict=True)
    ]


def _duplicate(name: str, places: list[str]) -> DuplicateNameError:
    shown = "\n".join(f"  {place}" for place in places)
    return DuplicateNameError(
        f"Duplicate sow name {name!r}: sown {len(places)} times in one captured function:\n{shown}\n"
        'Give each its own name, or capture with duplicates="append" (a list, in execution order) or '
        'duplicates="last".',
        details={"name": name, "places": places},
    )


def _entry(
    by_mode: dict[Mode, list[Extra]], duplicates: Duplicates, value_of: Callable[[Extra], Any]
) -> dict[str, Any]:
    """The values of one name per mode, and beside them whether and how often they were reached."""

    def choose(values: list[Any]) -> Any:
        is_single = duplicates == "last" or (duplicates == "error" and len(values) == 1)
        return values[-1] if is_single else values

    entry: dict[str, Any] = {}
    for mode in sorted(by_mode, key=lambda mode: (len(mode.steps), mode.depths)):
        taps = by_mode[mode]
        entry[_free_label(mode.label, entry)] = choose([value_of(tap) for tap in taps])
        for fact in ("taken", "count"):
            if fact not in entry and all(getattr(tap, fact) is not None for tap in taps):
                entry[fact] = choose([getattr(tap, fact) for tap in taps])
    return entry


def _free_label(label: str, entry: dict[str, Any]) -> str:
    # Two derivatives of one kind nest, as in grad(grad(f)): the inner one has the plain name.
    while label in entry:
        label = f"outer_{label}"
    return label


# --- compile --------------------------------------------------------------------------------------

Rewrite = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Traces a function at arguments and runs what it makes of it."""


def compile_rewrite(
    function: Callable[..., Any], rewrite: Rewrite, **options: Any
) -> Callable[..., Any]:
    """`rewrite(function, args, kwargs)` as a function of the arguments, under one `jax.jit`."""
    return _Compiled(function, rewrite, **options).for_users_of(function)


def compile_capture(
    function: Callable[..., Any], rewrite: Rewrite, key: Hashable, **options: Any
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Like `compile_rewrite`, for a rewrite that gives a result and what was found inside, by name.

    `key` says which rewrite it is: as with `jax.jit`, capturing the same function again in the same way
    finds what was compiled before.
    """
    try:
        known = _KNOWN.setdefault(function, {})
    except TypeError:  # not hashable, or not weakly referable: this one is on its own
        known = {}
    whole = (key, *map(_frozen, options.values()))
    capture = known.get(whole)
    # It may be that of an equal function: every `model.method` is a new object. Without that one, which it
    # refers to, it could not be traced again.
    own = None if capture is None else capture.function()
    if capture is None or own is None:
        own = function
        capture = known[whole] = _Capture(function, rewrite, **options)
    return capture.for_users_of(own)


class _Compiled:
    """A rewritten function under `jit`, which also takes and gives values that are not arrays.

    Such values are hidden from `jit`, once it turns out that there are some. The function is held weakly:
    `_KNOWN` maps functions to their compiled captures, and an entry whose value holds its key would never
    go. During a call the function is alive, because the wrapper that the user calls holds it.

    Attributes:
        function: gives the function, or `None` if it is gone.
        call: the function to call with the arguments.
        finish: what is left to do with its output; `None` in the usual case.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rewrite: Rewrite,
        *,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self.function = _weakly(function)

        def traced(*args: Any, **kwargs: Any) -> Any:
            output = rewrite(self.function(), *unseal((args, kwargs)))
            self._note(output)
            return seal(output, is_array_or_number)

        _look_like(traced, function)
        self._jitted = jax.jit(
            traced, static_argnums=static_argnums, static_argnames=static_argnames
        )
        self.call: Callable[..., Any] = self._jitted
        self.finish: Callable[[Any], Any] | None = None

    def for_users_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What a user calls, and what holds the function. It runs at every call, so it does little."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                output = self.call(*args, **kwargs)
            except TypeError:
                if self.call is not self._jitted or not _has_statics((args, kwargs)):
                    raise
                self.call = self._sealing
                output = self.call(*args, **kwargs)
            return output if self.finish is None else self.finish(output)

        return wrapped

    def _sealing(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = seal((args, kwargs), is_array_or_number)
        return self._jitted(*args, **kwargs)

    def _note(self, output: Any) -> None:
        """Look at what came out of a trace, and decide what has to be done after each call."""
        if _has_statics(output):
            self.finish = unseal


class _Capture(_Compiled):
    """A rewrite that finds things by name: they come in the order of the program.

    `jit` sorts the keys of dictionaries.
    """

    def __init__(self, function: Callable[..., Any], rewrite: Rewrite, **options: Any) -> None:
        super().__init__(function, rewrite, **options)
        self._names: dict[str, None] = {}

    def _note(self, output: Any) -> None:
        self._names.update(dict.fromkeys(output[1]))
        if _has_statics(output):
            self.finish = lambda output: self._order(unseal(output))
        elif self.finish is None and list(self._names) != sorted(self._names):
            self.finish = self._order

    def _order(self, output: Any) -> Any:
        result, found = output
        return result, {name: found[name] for name in self._names if name in found}


_KNOWN: MutableMapping[Any, dict[Hashable, _Capture]] = weakref.WeakKeyDictionary()
"""What was compiled, by function; an entry goes with its function."""


def _weakly(function: Callable[..., Any]) -> Callable[[], Any]:
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


def _look_like(traced: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Name and signature for `jit`; not `functools.wraps`, which would hold the function."""
    traced.__name__ = getattr(function, "__name__", type(function).__name__)
    with contextlib.suppress(TypeError, ValueError):
        traced.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]


def _frozen(option: Any) -> Hashable:
    return option if option is None or isinstance(option, (int, str)) else tuple(option)


def _has_statics(tree: Any) -> bool:
    """Whether some leaf is neither an array nor a number."""
    return not all(map(is_array_or_number, jax.tree.leaves(tree)))
