"""Tracing a function with its sows alive, and running it so that the sown values come out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    aval_of,
    fence,
    ring,
    trace_avals,
    walk,
)
from chainrule.harvest._slots import Slot, fill, is_array
from chainrule.harvest._sow import Reduce, Sowing, Watch, is_sow, sowing_of, watching

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Traced:
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
    watch: Watch | None = None,
) -> Traced:
    """Trace a function under a watch, beside those that are set already.

    Only arrays are traced; numbers and other leaves are what they are, as static arguments have to be.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    operands = [leaf for leaf in leaves if _is_traced(leaf)]
    notes: dict[str, Any] = {}

    def flat(*inputs: Any) -> list[Any]:
        traced = iter(inputs)
        given, named = jax.tree.unflatten(
            tree, [next(traced) if _is_traced(leaf) else leaf for leaf in leaves]
        )
        outputs, notes["tree"] = jax.tree.flatten(function(*given, **named))
        notes["outputs"] = [Slot.of(output) for output in outputs]
        return [output for output in outputs if is_array(output)]

    # With jit disabled JAX would unroll loops, and the same program would have other intermediates.
    with watching(watching.value | (watch or Watch())), jax.disable_jit(False):
        program = trace_avals(flat, [aval_of(operand) for operand in operands])

    def rebuild(outputs: Sequence[Any]) -> Any:
        return jax.tree.unflatten(notes["tree"], fill(notes["outputs"], outputs))

    return Traced(program, operands, rebuild)


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and is_array(leaf)


def stage_capture(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tag: str
) -> Traced:
    """Trace a function with all sows of a tag kept, and with the cotangents of all their leaves.

    A leaf that does not depend on what is differentiated has no cotangent in the program that JAX makes
    (see `_sow._jvp`). Where such a leaf belongs to a tree that has cotangents, the function is traced once
    more with this leaf thawed. That may uncover further ones, in the derivative of a derivative.
    """
    trace = functools.partial(stage, function, args, kwargs)
    watch = Watch(kept=frozenset({tag}))
    traced = trace(watch)
    tried: set[_Frozen] = set()
    while wanted := sorted(_frozen_leaves(traced.program, tag) - tried):
        tried.update(wanted)
        traced, watch = _thaw(trace, traced, watch, wanted)
    return traced


_Frozen = tuple[str, str, int]
"""Tag, name and depth of derivative of a sow with frozen leaves."""


def _thaw(
    trace: Callable[[Watch], Traced], traced: Traced, watch: Watch, wanted: list[_Frozen]
) -> tuple[Traced, Watch]:
    """Trace again with as many sows thawed as possible.

    A program may have no derivative with respect to a leaf that was frozen: the leaf enters a
    `while_loop`, or an input of a component that is not differentiable. JAX then raises, at any place
    and with any exception, and the leaf stays frozen. The function itself is not to blame: it was traced
    before without an error. Halving the list finds the sows to leave out in a few attempts.
    """
    wider = watch | Watch(thawed=frozenset(wanted))
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
    return (site.equation.params["sowing"] for site in walk(program) if is_sow(site.equation, tag))


Tap = Callable[[Sowing, list[Any]], Extra]
"""Makes the extra of one sow from what it says and its operands."""


def run_with_taps(traced: Traced, tag: str, tap: Tap) -> tuple[list[Any], list[Extra]]:
    """The outputs of a program, and one extra per sow of a tag, in execution order."""
    directions = _directions(traced.program, tag)

    def claim(eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]) -> Any:
        sowing = sowing_of(eqn)
        values = operands[: len(eqn.outvars)]
        if not sowing.is_reported:
            return values, []
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
