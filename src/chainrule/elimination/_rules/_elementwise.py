"""Elementwise primitives: every result entry depends on one entry of each operand.

The structure is a diagonal over all axes (operands of length 1 along an axis, and scalars, are broadcast).
The tables hold ∂z/∂x as a number, or as a function of operands and result. Primitives of this family
without an entry are differentiated by JAX itself, in the direction of ones, which for a diagonal Jacobian
gives all entries at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from chainrule._jaxpr import bind_equation
from chainrule.elimination._blocks import PartlyCut
from chainrule.elimination._rules._equation import (
    NOTHING,
    Edge,
    Equation,
    LocalJacobian,
    Rule,
    constant,
    selecting,
    term_structure,
)
from chainrule.elimination._structure import Axis, Structure


@dataclass(frozen=True)
class Factor:
    """A partial that equals a function of one operand, and is a constant when that operand is."""

    operand: int
    function: Callable[[Any], Any]


Partial = float | Factor | Callable[..., Any]

# A partial is written with the result z where that saves work: z is there already. d tanh = 1 - tanh² and d
# tan = 1 + tan² need no second transcendental function, and d sqrt = 1 / (2 sqrt) no second root.
# ∂z/∂x from (x, z).
UNARY: dict[str, Partial] = {
    "neg": -1.0,
    "copy": 1.0,
    "copy_p": 1.0,
    "reduce_precision": 1.0,
    "sin": lambda x, z: lax.cos(x),
    "cos": lambda x, z: -lax.sin(x),
    "tan": lambda x, z: 1 + z * z,
    "sinh": lambda x, z: lax.cosh(x),
    "cosh": lambda x, z: lax.sinh(x),
    "tanh": lambda x, z: 1 - z * z,
    "asinh": lambda x, z: lax.rsqrt(x * x + 1),
    "atan": lambda x, z: 1 / (1 + x * x),
    "exp": lambda x, z: z,
    "log": lambda x, z: 1 / x,
    "expm1": lambda x, z: z + 1,
    "log1p": lambda x, z: 1 / (x + 1),
    "logistic": lambda x, z: z * (1 - z),
    "sqrt": lambda x, z: 0.5 / z,
    "square": lambda x, z: 2 * x,
}

# z = x / y gives ∂z/∂y = -x / y² = -z / y. `atan2(x, y)` is the angle whose tangent is x / y: the first
# operand is the numerator, so ∂z/∂x = (1 / y) / (1 + (x / y)²) = y / (x² + y²).
# (∂z/∂x, ∂z/∂y); functions take (x, y, z).
BINARY: dict[str, tuple[Partial, Partial]] = {
    "add": (1.0, 1.0),
    "add_any": (1.0, 1.0),
    "sub": (1.0, -1.0),
    "mul": (Factor(1, lambda y: y), Factor(0, lambda x: x)),
    "div": (Factor(1, lambda y: 1 / y), lambda x, y, z: -z / y),
    "atan2": (lambda x, y, z: y / (x * x + y * y), lambda x, y, z: -x / (x * x + y * y)),
}

# Differentiated by JAX in the direction of ones.
BY_JVP = (
    "abs", "acos", "acosh", "asin", "atanh", "bessel_i0e", "bessel_i1e", "cbrt", "digamma", "erf",
    "erf_inv", "erfc", "exp2", "igamma", "igammac", "lgamma", "nextafter", "polygamma", "polynomial", "pow",
    "regularized_incomplete_beta", "rem", "rsqrt", "tan_pi", "zeta",
)  # fmt: skip

# Piecewise constant: no derivative anywhere that JAX defines one.
WITHOUT_DERIVATIVE = ("ceil", "floor", "round", "sign", "stop_gradient", "is_finite", "random_bits")


def _share(x: Any, y: Any, z: Any) -> Any:
    """The part of a maximum or minimum z that x gets: all, none, or half where x = y."""
    # Where x = y the derivative does not exist. One half each is JAX's convention, and the only one that is
    # symmetric and adds up to one.
    one = jnp.ones((), z.dtype)
    return (x == z).astype(z.dtype) / jnp.where(y == z, 2 * one, one)


def diagonal_structure(
    out_shape: Sequence[int],
    in_shape: Sequence[int],
    *,
    stored: Sequence[int] | None,
    coefficient: float = 1.0,
    index_map: bool = False,
) -> Structure | None:
    """The structure of an elementwise partial.

    Args:
        out_shape: shape of the result.
        in_shape: shape of the operand, broadcast the NumPy way.
        stored: the result's axes along which the value varies; `None` for no value.
        coefficient: static factor.
        index_map: whether the partial only moves entries.
    """
    missing = len(out_shape) - len(in_shape)
    out_axes = [Axis.of(v) for v in range(len(out_shape))]
    in_axes = [
        Axis.of(v + missing) if length == out_shape[v + missing] else Axis()
        for v, length in enumerate(in_shape)
    ]
    found = term_structure(
        out_shape, in_shape, out_shape, out_axes, in_axes, stored=stored,
        coefficient=coefficient, index_map=index_map,
    )  # fmt: skip
    return None if found is None else found[0]


def _elementwise(partials: Sequence[Partial]) -> Rule:
    def rule(equation: Equation) -> LocalJacobian:
        structures: dict[Edge, Structure] = {}
        functions: dict[Edge, Callable[..., Any]] = {}
        for position in equation.wanted_operands:
            structure, function = _edge(equation, position, partials[position])
            if structure is None:
                continue
            structures[0, position] = structure
            if function is not None:
                functions[0, position] = function
        return LocalJacobian(structures, _evaluator(functions, structures))

    return rule


def _edge(
    equation: Equation, position: int, partial: Partial
) -> tuple[Structure | None, Callable[..., Any] | None]:
    """The structure of one partial, and how to compute its value if it has one."""
    shapes = equation.result_shape(), equation.operand_shape(position)
    if isinstance(partial, Factor):
        number = _static(equation, partial)
        if number is None:
            operand, function = partial.operand, partial.function
            structure = diagonal_structure(*shapes, stored=long_axes(equation, operand))
            return structure, lambda *values: function(values[operand])
        partial = number
    if isinstance(partial, float):
        return diagonal_structure(*shapes, stored=None, coefficient=partial), None
    return diagonal_structure(*shapes, stored=range(len(shapes[0]))), partial


def long_axes(equation: Equation, position: int) -> tuple[int, ...]:
    """The result's axes along which an operand is not broadcast."""
    shape = equation.operand_shape(position)
    missing = len(equation.result_shape()) - len(shape)
    return tuple(axis + missing for axis, length in enumerate(shape) if length > 1)


def _static(equation: Equation, factor: Factor) -> float | None:
    """The factor as a number, if its operand is known and the number is an ordinary one."""
    known = equation.known_scalar(factor.operand)
    # A coefficient says that every entry is this number for all inputs. With 0 there would be no entry, but 0
    # · inf in the rest of a path is NaN, in JAX too: such a factor stays a value.
    if known is None or known == 0 or not math.isfinite(known):
        return None
    return float(factor.function(known))


def _evaluator(
    functions: dict[Edge, Callable[..., Any]], structures: dict[Edge, Structure]
) -> Callable[[Sequence[Any], Sequence[Any]], dict[Edge, tuple[Any, ...]]]:
    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        # Literals are Python numbers, which would raise where arrays give infinities.
        values = [jnp.asarray(value) for value in (*operands, *results)]
        return {
            edge: (_shaped(function(*values), structures[edge]),)
            for edge, function in functions.items()
        }

    return evaluate


def _shaped(value: Any, structure: Structure) -> Any:
    """A value, possibly still to be broadcast, in the shape that the term stores."""
    (term,) = structure.terms
    if value.size != math.prod(term.stored_shape):
        value = jnp.broadcast_to(value, structure.out_shape)
    return value.reshape(term.stored_shape)


def _by_jvp(equation: Equation) -> LocalJacobian:
    def derivative(position: int) -> Callable[..., Any]:
        def function(*values: Any) -> Any:
            operands = list(values[:-1])

            def alone(x: Any) -> Any:
                return bind_equation(
                    equation.eqn, [*operands[:position], x, *operands[position + 1 :]]
                )[0]

            primal = jnp.asarray(operands[position])
            return jax.jvp(alone, (primal,), (jnp.ones_like(primal),))[1]

        return function

    return _elementwise([derivative(k) for k in range(len(equation.eqn.invars))])(equation)


def _integer_pow(equation: Equation) -> LocalJacobian:
    # d xⁿ = n xⁿ⁻¹. For n = 0 the result is the constant 1, also at x = 0, where 0 · x⁻¹ would be NaN.
    exponent = equation.eqn.params["y"]
    if exponent == 0:
        return NOTHING
    if exponent == 1:
        return _elementwise([1.0])(equation)
    power = exponent - 1
    return _elementwise([lambda x, z: exponent * (x if power == 1 else lax.integer_pow(x, power))])(
        equation
    )


def _select(equation: Equation) -> LocalJacobian:
    """`select_n(which, *cases)`: the partial of a case is 1 where it is chosen, and cut elsewhere."""
    varying = long_axes(equation, 0)
    structures = {
        (0, k): structure
        for k in equation.wanted_operands
        if (structure := diagonal_structure(
            equation.result_shape(), equation.operand_shape(k), stored=varying
        )) is not None
    }  # fmt: skip

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        which, dtype = jnp.asarray(operands[0]), results[0].dtype
        values = {}
        for edge, structure in structures.items():
            chosen = _shaped(_is_chosen(which, edge[1] - 1), structure)
            values[edge] = (PartlyCut(chosen.astype(dtype), (chosen,)),)
        return values

    return LocalJacobian(structures, evaluate)


def _is_chosen(which: Any, case: int) -> Any:
    if which.dtype != bool:
        return which == case
    return which if case else ~which


def _extremum(equation: Equation) -> LocalJacobian:
    """`max` and `min`: the operand that is not taken is cut (JAX multiplies by 0)."""
    shares = (lambda x, y, z: _share(x, y, z), lambda x, y, z: _share(y, x, z))
    return selecting(_elementwise(shares)(equation))


def _clamp(equation: Equation) -> LocalJacobian:
    # JAX's partials are 1 where an operand is taken and 0 elsewhere: a selection.
    return selecting(_by_jvp(equation))


def _convert(equation: Equation) -> LocalJacobian:
    structure = diagonal_structure(
        equation.result_shape(), equation.operand_shape(0), stored=None, index_map=True
    )
    return NOTHING if structure is None else constant({(0, 0): structure})


ELEMENTWISE_RULES: dict[str, Rule] = {
    **{name: _elementwise([partial]) for name, partial in UNARY.items()},
    **{name: _elementwise(partials) for name, partials in BINARY.items()},
    **dict.fromkeys(BY_JVP, _by_jvp),
    **dict.fromkeys(WITHOUT_DERIVATIVE, lambda equation: NOTHING),
    "integer_pow": _integer_pow,
    "select_n": _select,
    "max": _extremum,
    "min": _extremum,
    "clamp": _clamp,
    "convert_element_type": _convert,
}
