"""Running a program one equation at a time, with a hook to run some equations differently.

This is all that rewriting needs: to change a program, evaluate it under a trace with a rule that replaces
the equations of interest; the trace records the new program. Equations that no rule claims are bound
again exactly as they were, with their source lines and name stacks. `inline_calls` replaces call-like
equations by the equations of the programs that they call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from chainrule._jaxpr._names import (
    Atom,
    DropVar,
    bind_parameters,
    close_program,
    equation_context,
    fresh_variable,
    trace_flat,
)
from chainrule._jaxpr._programs import SubProgram, subprograms

Rule = Callable[[JaxprEqn, list[Any]], Sequence[Any] | None]
"""Given an equation and its operand values, the result values, or `None` to bind it as it is."""


NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a program that is traced needs the numbers themselves."""


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


CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr"})
"""Primitives that mean nothing but "run this program here".

`remat` changes what is saved, `custom_jvp` and `custom_vjp` change the derivative, `shard_map` changes the
meaning of collectives; they are inlined only when the caller names them.
"""


def inline_calls(
    program: ClosedJaxpr,
    primitives: Collection[str] = CALLS,
    *,
    only: Callable[[JaxprEqn], bool] = lambda eqn: True,
) -> ClosedJaxpr:
    """The same function with the named call-like equations replaced by their bodies, at any depth.

    With `only`, calls for which it is false stay.

    Every call site gets fresh variables: JAX shares one inner program between sites, and variables that
    stand for two values would be silently wrong. Constants of inner programs become constants of the
    result. Programs inside other higher-order primitives (loop bodies, branches) are left as they are.
    """
    flat = _Flattener(frozenset(primitives), only)
    environment = _Environment()
    for var in (*program.jaxpr.constvars, *program.jaxpr.invars):
        environment.atoms[var] = var
    flat.constvars.extend(program.jaxpr.constvars)
    flat.consts.extend(program.consts)
    flat.add(program, environment)
    outvars = [environment.read(atom) for atom in program.jaxpr.outvars]
    return close_program(
        program.jaxpr.invars, outvars, flat.eqns,
        like=program.jaxpr, constvars=flat.constvars, consts=flat.consts,
    )  # fmt: skip


@dataclass
class _Environment:
    """What the variables of one program instance stand for in the flat program."""

    atoms: dict[Var, Atom] = field(default_factory=dict)

    def read(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.atoms[atom]

    def define(self, var: Var) -> Var:
        fresh = var if isinstance(var, DropVar) else fresh_variable(var.aval)
        self.atoms[var] = fresh
        return fresh


@dataclass
class _Flattener:
    primitives: frozenset[str]
    only: Callable[[JaxprEqn], bool]
    eqns: list[JaxprEqn] = field(default_factory=list)
    constvars: list[Var] = field(default_factory=list)
    consts: list[Any] = field(default_factory=list)

    def add(self, program: ClosedJaxpr, environment: _Environment) -> None:
        for eqn in program.jaxpr.eqns:
            operands = [environment.read(atom) for atom in eqn.invars]
            called = self._called(eqn)
            if called is None:
                fresh = [environment.define(var) for var in eqn.outvars]
                self.eqns.append(eqn.replace(invars=operands, outvars=fresh))
            else:
                results = self._enter(called, operands)
                environment.atoms.update(zip(eqn.outvars, results, strict=True))

    def _called(self, eqn: JaxprEqn) -> SubProgram | None:
        if eqn.primitive.name not in self.primitives or not self.only(eqn):
            return None
        (sub,) = subprograms(eqn)
        return sub

    def _enter(self, sub: SubProgram, operands: list[Atom]) -> list[Atom]:
        inner = _Environment()
        jaxpr = sub.program.jaxpr
        for var, value in zip(jaxpr.constvars, sub.program.consts, strict=True):
            self.constvars.append(inner.define(var))
            self.consts.append(value)
        inner.atoms.update(zip(jaxpr.invars, operands, strict=True))
        self.add(sub.program, inner)
        return [inner.read(atom) for atom in jaxpr.outvars]
