"""Running a program one equation at a time, with a hook to run some equations differently.

This is the whole of rewriting: to change a program, evaluate it under a trace with a rule that replaces
the equations of interest; the trace records the new program. Equations that no rule claims are bound
again exactly as they were, with their source lines and name stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from chainrule._jaxpr._names import bind_parameters, equation_context, trace_flat

Rule = Callable[[JaxprEqn, list[Any]], Sequence[Any] | None]
"""Given an equation and its operand values, the result values, or `None` to bind it as it is."""


def evaluate(program: ClosedJaxpr, operands: Sequence[Any], rule: Rule | None = None) -> list[Any]:
    """The outputs of a program on operands (arrays or tracers)."""
    jaxpr = program.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        with equation_context(eqn):
            results = rule(eqn, inputs) if rule is not None else None
        if results is None:
            results = bind_equation(eqn, inputs)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def bind_equation(
    eqn: JaxprEqn, operands: Sequence[Any], params: dict[str, Any] | None = None
) -> list[Any]:
    """Apply an equation's primitive to operands; always a list, also for single results."""
    if params is not None:
        eqn = eqn.replace(params=params)
    functions, bound = bind_parameters(eqn)
    with equation_context(eqn), eqn.ctx.manager:
        results = eqn.primitive.bind(*functions, *operands, **bound)
    return list(results) if eqn.primitive.multiple_results else [results]


def as_function(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    """An equation as a differentiable function of its operands."""

    def function(*operands: Any) -> list[Any]:
        return bind_equation(eqn, operands)

    return function


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[ClosedJaxpr, Any, Any]:
    """Trace a function of pytrees: its flat program, and the tree structures of inputs and output."""
    program, out_shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    in_tree = jax.tree.structure((args, kwargs))
    return program, in_tree, jax.tree.structure(out_shape)


def trace_avals(function: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> ClosedJaxpr:
    """Trace a flat function at exact avals (weak types, shardings, manual axes are kept)."""
    return trace_flat(lambda *args: list(function(*args)), avals)
