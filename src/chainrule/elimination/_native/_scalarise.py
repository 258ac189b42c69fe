"""From a program over small arrays to its scalars."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import (
    CALLBACKS,
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    bind_equation,
    inline_calls,
    locate,
)
from chainrule.elimination._native._scalar_rules import (
    DTYPES,
    RULES,
    TYPE_ONLY,
    Rule,
    aval_of,
    dtype_name,
)
from chainrule.elimination._native._scalars import NativeUnavailableError, Node, ScalarProgram

# By the time a kernel is built the derivative has been taken, so custom rules have done their work.
_INLINED = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
     "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)  # fmt: skip


def scalarise(program: ClosedJaxpr) -> ScalarProgram:
    """The scalar graph of a program.

    Raises:
        NativeUnavailableError: an equation has no scalar form here, or there are too many scalars.
    """
    flat = inline_calls(program, _INLINED)
    scalars = ScalarProgram()
    # A value is either known now, whatever it is (a random key is no array of numbers), or made of nodes.
    known: dict[Any, Any] = {}
    values: dict[Any, np.ndarray] = {}
    for argument, var in enumerate(flat.jaxpr.invars):
        values[var] = _input_nodes(scalars, argument, var.aval)
    for var, const in zip(flat.jaxpr.constvars, flat.consts, strict=True):
        known[var] = const

    def read_known(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return np.asarray(atom.val, aval_of(atom).dtype)
        return known.get(atom)

    def read(atom: Any) -> np.ndarray:
        constant = read_known(atom)
        return values[atom] if constant is None else _constant_nodes(scalars, constant)

    for eqn in flat.jaxpr.eqns:
        constants = [read_known(atom) for atom in eqn.invars]
        if all(constant is not None for constant in constants) and _is_computed_now(eqn):
            results = constants if eqn.primitive.name in TYPE_ONLY else _evaluated(eqn, constants)
            known.update(zip(eqn.outvars, results, strict=True))
        else:
            nodes = _rule_of(eqn)(scalars, eqn, *map(read, eqn.invars))
            results = nodes if eqn.primitive.multiple_results else [nodes]
            values.update(zip(eqn.outvars, results, strict=True))
    for atom in flat.jaxpr.outvars:
        dtype_name(aval_of(atom).dtype)  # results that are constants may have any dtype
    scalars.outputs = [read(atom) for atom in flat.jaxpr.outvars]
    return scalars


def _is_computed_now(eqn: JaxprEqn) -> bool:
    """Whether an equation on constants may be evaluated already: a callback runs when the program does."""
    return eqn.primitive.name not in CALLBACKS


def _evaluated(eqn: JaxprEqn, constants: list[Any]) -> list[Any]:
    with jax.ensure_compile_time_eval():
        return bind_equation(eqn, constants)


def has_scalar_form(program: ClosedJaxpr) -> bool:
    """Whether all equations of a program have a scalar form and dtype, or follow from constants."""
    flat = inline_calls(program, _INLINED)
    known = set(flat.jaxpr.constvars)
    made = list(flat.jaxpr.invars)
    for eqn in flat.jaxpr.eqns:
        is_known = all(isinstance(atom, Literal) or atom in known for atom in eqn.invars)
        if is_known and _is_computed_now(eqn):
            known.update(eqn.outvars)
        elif eqn.primitive.name not in RULES:
            return False
        else:
            made += eqn.outvars
    return all(aval_of(var).dtype.name in DTYPES for var in made)


def _rule_of(eqn: JaxprEqn) -> Rule:
    rule = RULES.get(eqn.primitive.name)
    if rule is None:
        raise NativeUnavailableError(
            f"No native form of the primitive {eqn.primitive.name!r} at {locate(eqn) or 'an unknown line'}; "
            "use backend='xla'."
        )
    return rule


def _input_nodes(scalars: ScalarProgram, argument: int, aval: Any) -> np.ndarray:
    dtype = dtype_name(aval.dtype)
    size = int(np.prod(aval.shape, dtype=np.int64))
    numbers = [scalars.add(Node("input", (), dtype, (argument, i))) for i in range(size)]
    return np.array(numbers, np.int64).reshape(aval.shape)


def _constant_nodes(scalars: ScalarProgram, constant: Any) -> np.ndarray:
    # Integers occur as exponents and masks; their value is exact in float64.
    is_integer = jnp.issubdtype(constant.dtype, jnp.integer)
    dtype = "float64" if is_integer else dtype_name(constant.dtype)
    numbers = [scalars.constant(value, dtype) for value in np.asarray(constant).ravel()]
    return np.array(numbers, np.int64).reshape(constant.shape)
