"""From a user's function to a flat program: calls inlined, short loops unrolled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from chainrule._jaxpr import (
    CALLS,
    ClosedJaxpr,
    JaxprEqn,
    evaluate,
    inline_calls,
    scan_layout,
    subprograms,
    trace_avals,
    walk,
)

# Rematerialisation changes what is kept for a backward pass; elimination keeps nothing for later.
_INLINED = CALLS | {"remat", "remat2", "checkpoint"}

_UNROLLED_EQUATIONS = 64
"""A loop is unrolled when that makes no more equations than this, so that its steps can be eliminated."""


def flatten(program: ClosedJaxpr, *, also: Collection[str] = ()) -> ClosedJaxpr:
    """The program without short loops and call-like equations, among them the primitives in `also`."""
    program = inline_calls(program, _INLINED.union(also))
    if any(_is_short_loop(eqn) for eqn in program.jaxpr.eqns):
        avals = [var.aval for var in program.jaxpr.invars]
        unrolled = trace_avals(lambda *inputs: evaluate(program, inputs, _unroll), avals)
        return flatten(unrolled, also=also)
    return program


def _is_short_loop(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "scan":
        return False
    (body,) = subprograms(eqn)
    steps = sum(1 for _ in walk(body.program))
    return 0 < eqn.params["length"] * max(1, steps) <= _UNROLLED_EQUATIONS


def _unroll(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
    """A short scan step by step; `None` for every other equation."""
    if not _is_short_loop(eqn):
        return None
    (body,) = subprograms(eqn)
    n_constants, n_carry = scan_layout(eqn)
    constants = operands[:n_constants]
    carry = list(operands[n_constants : n_constants + n_carry])
    scanned = operands[n_constants + n_carry :]
    steps = range(eqn.params["length"])
    stacked: dict[int, list[Any]] = {}
    for step in reversed(steps) if eqn.params["reverse"] else steps:
        slices = [lax.index_in_dim(x, step, keepdims=False) for x in scanned]
        results = evaluate(body.program, [*constants, *carry, *slices])
        carry = results[:n_carry]
        stacked[step] = results[n_carry:]
    columns = zip(*(stacked[step] for step in steps), strict=True)
    return [*carry, *(jnp.stack(column) for column in columns)]
