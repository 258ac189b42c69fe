"""From a user's function to a flat program: calls inlined, short loops unrolled, equal calls merged."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from operator import itemgetter
from typing import Any

import jax.numpy as jnp
from jax import lax

from chainrule._jaxpr import (
    CALLS,
    ClosedJaxpr,
    DropVar,
    JaxprEqn,
    Literal,
    close_program,
    evaluate,
    inline_calls,
    outside_call_of,
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
    return _merge_equal_calls(program)


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


def _merge_equal_calls(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program in which a component that is called twice with the same operands is called once.

    XLA does that too, but only for what is compiled, and after all derivatives have been asked for twice.
    """
    calls = [
        eqn for eqn in program.jaxpr.eqns if outside_call_of(eqn) is not None and not eqn.effects
    ]
    if len({_key(eqn, ()) for eqn in calls}) == len(calls):
        return program
    first: dict[Hashable, int] = {}
    same: dict[Any, Any] = {}
    kept: list[JaxprEqn] = []
    for eqn in program.jaxpr.eqns:
        operands = [
            atom if isinstance(atom, Literal) else same.get(atom, atom) for atom in eqn.invars
        ]
        key = None if eqn.effects else _key(eqn, operands)
        number = len(kept) if key is None else first.setdefault(key, len(kept))
        if number == len(kept):
            kept.append(eqn.replace(invars=operands))
            continue
        # A result that only the later equation uses gets its variable.
        pairs = list(zip(kept[number].outvars, eqn.outvars, strict=True))
        results = [new if isinstance(old, DropVar) else old for old, new in pairs]
        kept[number] = kept[number].replace(outvars=results)
        same.update(zip(eqn.outvars, results, strict=True))
    outputs = [a if isinstance(a, Literal) else same.get(a, a) for a in program.jaxpr.outvars]
    return close_program(
        program.jaxpr.invars, outputs, kept,
        like=program.jaxpr, constvars=program.jaxpr.constvars, consts=program.consts,
    )  # fmt: skip


def _key(eqn: JaxprEqn, operands: Sequence[Any]) -> Hashable | None:
    """Equal for equations that compute the same; `None` where that cannot be said."""
    atoms = [(str(atom.val), atom.aval) if isinstance(atom, Literal) else atom for atom in operands]
    params = sorted(eqn.params.items(), key=itemgetter(0))
    key = (eqn.primitive, tuple(params), tuple(atoms))
    try:
        hash(key)
    except TypeError:
        return None
    return key
