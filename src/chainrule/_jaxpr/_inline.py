"""Replacing call-like equations by the equations they call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from chainrule._jaxpr._names import Atom, DropVar, close_program, fresh_variable, replace_equation
from chainrule._jaxpr._programs import SubProgram, subprograms

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
                self.eqns.append(replace_equation(eqn, invars=operands, outvars=fresh))
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
